"""The end of a fault run for the tables that DDL changed, judged by tables alone.

No rule is decided anew here: Postgres's catalog says which tables and columns there are, and its rows what a device
must show; a batch is in the log, or it is a dead letter with a reason; DDL was refused for no reason of ours.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from anabranch.store.catalog.databases import Database
from anabranch.store.cells.binary_cells import quote, read_expression, row_loader
from anabranch.store.lake.source import open_lake
from anabranch.store.session import binary
from anabranch.store.session.engine import Session
from anabranch.testkit import oracle
from anabranch.testkit.comparison import differences
from anabranch.testkit.torture import checks
from anabranch.testkit.torture.changing_tables import GONE, NAME, tables_there
from anabranch.testkit.torture.checks import Check, promise
from anabranch.testkit.torture.processes import Node
from anabranch.v1 import batch_pb2, errors_pb2, verdict_pb2
from anabranch.values import Cell, Table
from anabranch.values.canonical import RowEncoder
from anabranch.wire.enum_names import enum_name

_LOGGED = """
select distinct batch_id from anabranch.log where database_id = %(db)s and batch_id = any(%(ids)s)
"""
_VERDICTS = "select batch_id, verdict from anabranch.batches where database_id = %(db)s and batch_id = any(%(ids)s)"
_OWN_PREFIX = "_db_"
_MARK = re.compile(r"[0-9a-f]+\.[0-9]+\.[0-9]+")


@dataclass(frozen=True)
class Changed:
    """The end of a run: the ``database`` as it is registered now, and of each node its record, its last state and its
    file. ``alterers``: who ran the DDL."""

    conn: Session
    database: Database
    recorded: Sequence[oracle.Recorded]
    ends: Sequence[Mapping[str, object]]
    files: Sequence[Path]
    alterers: Sequence[Node]

    def promises(self) -> dict[str, Check]:
        """The checks by promise."""
        return {
            "changing tables: 5 convergent": promise(self.check_same, "tables with the server's columns and rows"),
            "changing tables: sums": promise(
                lambda: checks.check_sums(self.conn, self.database, self.ends), "tables equal by their sums"
            ),
            "changing tables: 6 nothing lost": promise(self.check_batches, "batches in the log, or dead for a reason"),
            "changing tables: inserts": promise(self.check_inserts, "inserted rows that are there, or were removed"),
            "changing tables: DDL never fails": promise(self.check_ddl, "transactions with DDL, none refused for us"),
        }

    def check_same(self) -> int:
        """Every device has exactly the tables and columns of the server's catalog, and their rows. Returns the number
        of tables compared."""
        there = {name: {c.name for c in columns} for name, columns in tables_there(self.conn).items()}
        synced = {t.sql_name: {c.sql_name for c in t.columns} for t in self.database.tables.values()}
        assert synced == there, f"synced are {synced}, there are {there}"
        compared = 0
        for file in self.files:
            with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as device:
                found = _shown(device)
                assert found == there, f"{file.name} has {found}, the server {there}"
                for table in self.database.tables.values():
                    told = differences(self.conn, NAME, table, device)
                    assert not told, f"{file.name}: {told}"
                    compared += 1
        return compared

    def check_batches(self) -> int:
        """Every batch has a verdict; an accepted one is in the log, a rejected one is dead on its device, for the same
        reason. Returns the number of batches."""
        count = 0
        for device in self.recorded:
            named = {"db": self.database.id, "ids": list(device.made)}
            logged = {batch_id for (batch_id,) in self.conn.execute(_LOGGED, named)}
            verdicts = {i: verdict_pb2.Verdict.FromString(raw) for i, raw in self.conn.execute(_VERDICTS, named)}
            assert device.made.keys() == verdicts.keys(), f"no verdict: {device.made.keys() - verdicts.keys()}"
            for batch_id, verdict in verdicts.items():
                if verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED:
                    assert batch_id in logged, f"{batch_id} was accepted, and is not in the log"
                    assert batch_id not in device.dead, f"{batch_id} was accepted, and is dead on its device"
                else:
                    reason = enum_name(errors_pb2.Reason, verdict.reason)
                    told = f"{batch_id} was refused for {reason!r}: {verdict.message}"
                    assert reason, told
                    assert device.dead.get(batch_id) == reason, f"{told}; its device says {device.dead.get(batch_id)}"
                    assert batch_id not in logged, f"{told}; it is in the log"
            count += len(verdicts)
        return count

    def check_inserts(self) -> int:
        """Every row that an accepted batch inserted is in a table, unless somebody removed it. Returns their number."""
        gone = {key.partition("/")[0] for (key,) in self.conn.execute(f"select key from {GONE}".encode())}
        there = {key for table in self.database.tables.values() for key in self._keys(table)}
        made: set[str] = set()
        for device in self.recorded:
            named = {"db": self.database.id, "ids": list(device.made)}
            for batch_id, raw in self.conn.execute(_VERDICTS, named):
                if verdict_pb2.Verdict.FromString(raw).status == verdict_pb2.VERDICT_STATUS_APPLIED:
                    for mutation in batch_pb2.DbMutationBatch.FromString(device.made[batch_id]).mutations:
                        if mutation.type == batch_pb2.MUTATION_TYPE_INSERT:
                            made |= _marks(mutation)
                        elif mutation.type == batch_pb2.MUTATION_TYPE_DELETE:
                            gone |= _marks(mutation)
        lost = made - there - gone
        assert not lost, f"{len(lost)} inserted rows are nowhere, such as {sorted(lost)[:5]}"
        return len(made)

    def _keys(self, table: Table) -> set[str]:
        """The first column of the keys, in which every row of a device has its mark."""
        name = quote(table.by_name[table.key_columns[0]].sql_name)
        statement = f"select {name}::text from {NAME}.{quote(table.sql_name)}"
        return {key for (key,) in self.conn.execute(statement.encode())}

    def check_ddl(self) -> int:
        """No DDL was refused for a reason that is not its own. Returns how many transactions with some there were."""
        lines = [line for alterer in self.alterers for line in alterer.lines()]
        for line in lines:
            assert "failed" not in line, f"{line['failed']}: {line['sql']}"
        return len(lines)

    def check_lake(self) -> int:
        """The lake's rows are the server's. Returns their number."""
        count = 0
        for name, table in self.database.tables.items():
            encode = RowEncoder(table).encode
            rows = open_lake(self.conn, self.database, name).lake.rows().values()
            here = {encode([row[column] for column in table.column_names]) for row in rows}
            there = {encode(row) for row in self._rows(table)}
            assert here == there, f"{name}: {len(here - there)} rows only in files, {len(there - here)} only there"
            count += len(here)
        return count

    def _rows(self, table: Table) -> Sequence[Sequence[Cell]]:
        columns = ", ".join(read_expression(column, "t") for column in table.columns)
        cursor = binary.cursor(self.conn)
        cursor.execute(f"select {columns} from {NAME}.{quote(table.sql_name)} t".encode(), prepare=False, binary=True)
        return row_loader(table.columns)(cursor.fetchall())


def _marks(mutation: batch_pb2.DbMutation) -> set[str]:
    """The marks of a mutation's rows that a device has made: a row's is in the first column, with which keys begin."""
    texts = (row.values[0].string_value for row in mutation.rows)
    return {text for text in texts if _MARK.fullmatch(text)}


def _shown(device: sqlite3.Connection) -> dict[str, set[str]]:
    """The tables and columns that a device's file shows an app."""
    names = [name for (name,) in device.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {
        name: {column for (column,) in device.execute("SELECT name FROM pragma_table_info(?)", (name,))}
        for name in names
        if not name.lower().startswith((_OWN_PREFIX, "sqlite_"))
    }
