"""A device's file against the server: its base rows at the position that it has read to, by key ranges.

The server's rows are those of its head; rows with an entry in the log between the two positions are left out on both
sides, since their values at the file's position are not known.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from anabranch.cli.verify.log import RowComparison
from anabranch.client.errors import ForeignFile
from anabranch.client.file import audience_sums, row_audiences, state
from anabranch.client.file.believed import UNREADABLE, believed
from anabranch.client.file.device_table import DeviceTable, device_table
from anabranch.client.file.identify import is_devices
from anabranch.client.reading import sums
from anabranch.errors import ServerError
from anabranch.ranges import RangeSums, differing_ranges, in_ranges
from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.catalog.databases import Database
from anabranch.store.cells.binary_cells import Row
from anabranch.store.log.moment import moment, rows_at
from anabranch.store.log.rows import keys_since
from anabranch.store.session.engine import Session
from anabranch.v1 import snapshot_pb2
from anabranch.values import Cell, Table, key_text
from anabranch.values.canonical import RowEncoder

FILE_TIMEOUT_S = 30.0


class NotComparableError(ServerError):
    """The file, or a table of it, can't be compared; the message says why."""


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The result for one table. ``changed``: the number of rows left out; ``differences``: in words."""

    table: str
    position: int
    head: int
    changed: int
    differences: Sequence[str]


def check_device(conn: Session, database: Database, file: Path, only: str | None) -> Iterator[DeviceCheck]:
    """Compare each table of the file, or one.

    Raises:
        NotComparableError: the file or a table of it can't be compared with this database.
        ForeignFile: the file is not a device's file; it is left as it is.
        ClientError: it is damaged, or can't be read.
        sqlite3.Error: as long as it is read.
    """
    if not is_devices(file):
        raise ForeignFile(file, "there is nothing in it" if file.exists() else "there is no file")
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=FILE_TIMEOUT_S)) as device:
        device.isolation_level = None
        current = state.load(device)
        if current.db_name != database.name:
            raise NotComparableError(f"{file} holds the database {current.db_name!r}")
        if current.greatest_epoch not in ("", database.epoch):
            raise NotComparableError(f"{file} has followed another history: it has to take a new snapshot")
        if current.cursor_ms < database.floor_ms:
            raise NotComparableError(
                f"{file} has read to {current.cursor_ms}, and the log goes back to {database.floor_ms}"
            )
        rows = device.execute("SELECT name, value, stage, last_ms FROM _db_tables ORDER BY ordinal").fetchall()
        names = set[str]()
        for name, value, stage, last_ms in rows:
            with believed(f"the description of the table {name}"):
                table = device_table(snapshot_pb2.Table.FromString(value))
            names.add(table.sql_name)
            if only not in (None, table.sql_name):
                continue
            if stage != "live" or last_ms > current.cursor_ms:
                raise NotComparableError(f"{table.sql_name} is not completely pulled: have the device sync first")
            yield _check(conn, database, device, table)
        if only is not None and only not in names:
            raise NotComparableError(f"{file} has no table {only!r}")


def _check(conn: Session, database: Database, device: sqlite3.Connection, here: DeviceTable) -> DeviceCheck:
    table = database.tables.get(here.name)
    if table is None:
        raise NotComparableError(f"{here.sql_name} is not synced any more")
    if [(c.name, c.kind, c.element_kind) for c in table.columns] != [
        (c.name, c.kind, c.element_kind) for c in here.table.columns
    ]:
        raise NotComparableError(f"the columns of {here.sql_name} have changed: have the device sync first")
    with sums.one_moment(device), moment(conn, database, table) as server:
        cursor = state.load(device).cursor_ms
        if cursor > server.head:
            raise NotComparableError(f"the file has read to {cursor}, beyond the server's head {server.head}")
        changed = keys_since(conn, database.id, table.id, cursor, server.head)
        sight = _sight(conn, database, device, here, table)
        try:
            mine = _sums(here.table, sight.here(sums.base_rows(device, here)), changed)
        except UNREADABLE as error:
            raise NotComparableError(
                f"a row of {here.sql_name} can't be read: {error}; repair pulls the table"
            ) from error
        theirs = _sums(table, sight.there(rows_at(conn, database, table)), changed)
        wanted = differing_ranges(mine, theirs)
        differences: list[str] = []
        if wanted:
            is_in = in_ranges(here.encoder, wanted)
            rows_here = _by_key(table, filter(is_in, sight.here(sums.base_rows(device, here))), changed)
            rows_there = _by_key(table, filter(is_in, sight.there(rows_at(conn, database, table))), changed)
            differences = _differences(table, rows_here, rows_there)
    return DeviceCheck(here.sql_name, cursor, server.head, len(changed), differences)


@dataclass(frozen=True, slots=True)
class _Comparable:
    """The rows that are compared: all of an open table, and of a restricted one those of audiences whose every row the
    device has."""

    here: Callable[[Iterable[Sequence[Cell]]], Iterable[Sequence[Cell]]]
    there: Callable[[Iterable[list[Row]]], Iterable[Sequence[Cell]]]


def _sight(
    conn: Session, database: Database, device: sqlite3.Connection, here: DeviceTable, table: Table
) -> _Comparable:
    audience = database.restricted.get(table.name)
    if audience is None:
        return _Comparable(iter, chain.from_iterable)
    if not device.execute("SELECT 1 FROM sqlite_master WHERE name = '_db_row_audiences'").fetchall():
        raise NotComparableError(
            f"the file does not know whom rows of {here.sql_name} are for: have the device sync first"
        )
    complete = audience_sums.complete(device, here.name)
    try:
        keys = {key for some in row_audiences.keys_of(device, here.name, complete) for key in some}
    except (ValueError, TypeError) as error:
        text = f"the audiences of {here.sql_name} can't be read: {error}; repair pulls the table"
        raise NotComparableError(text) from error

    of_table = RowAudiences(table, audience)

    def of_complete(rows: Iterable[list[Row]]) -> Iterator[Sequence[Cell]]:
        for some in rows:
            found = zip(some, of_table.of_all(conn, some), strict=True)
            yield from (row for row, audiences in found if not complete.isdisjoint(audiences))

    return _Comparable(lambda rows: (row for row in rows if _key(table, row) in keys), of_complete)


def _key(table: Table, row: Sequence[Cell]) -> str:
    return key_text([row[i] for i in table.key_index])


def _sums(table: Table, rows: Iterable[Sequence[Cell]], changed: set[str]) -> RangeSums:
    found = RangeSums()
    if changed:
        rows = (row for row in rows if _key(table, row) not in changed)
    found.add(RowEncoder(table), rows)
    return found


def _by_key(table: Table, rows: Iterable[Sequence[Cell]], changed: set[str]) -> dict[str, list[Cell]]:
    found = {_key(table, row): list(row) for row in rows}
    return {key: row for key, row in found.items() if key not in changed}


def _differences(table: Table, here: dict[str, list[Cell]], there: dict[str, list[Cell]]) -> list[str]:
    comparison = RowComparison(table)
    return [
        comparison.describe(key, here.get(key), there.get(key), ("on the device", "on the server"))
        for key in sorted(here.keys() | there.keys())
        if key not in here or key not in there or comparison.differing(here[key], dict(enumerate(there[key])))
    ]
