"""Repair: the rows of a table that are not the server's, found by key ranges and fetched alone.

How the comparison is exact: the server takes one moment and says its position first. The device reads the log exactly
up to it (pages are cut at that position), while nothing else applies the log or pulls (the reader's turn is held): from
then on its base and the server's rows must be equal, whatever is written at the server meanwhile, and every difference
that is found is a fault. Local writes go on: they are in the overlay and change no base. The differences are put into
the base in one transaction, the pending writes are shown on top of it as after any change of a base, and the table's
sum is compared with the log's.

Rows that can't be read, a table that the log has to leave aside, and more than ``MOST_ROWS`` rows to be fetched are
mended by a pull of the whole table. So is a restricted table with any difference: the server compares the rows that the
device may see, and only a pull brings their audiences.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from anabranch import ranges
from anabranch.client.errors import CallFailed
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import Patch
from anabranch.client.queue import settle
from anabranch.client.reading import held, sums
from anabranch.client.reading.effects import Folded
from anabranch.client.reading.prefetch import prefetched
from anabranch.client.remote import RemoteDb
from anabranch.errors import AnabranchError
from anabranch.ranges import WHOLE, KeyRange, RangeSum, RangeSums
from anabranch.v1 import position_pb2, snapshot_pb2, value_pb2
from anabranch.values import Cell

MOST_ROWS = 100_000
"""Rows to be fetched at most; for more, a pull costs less."""
_AHEAD = 4
_SILENCE_S = 300.0
"""Seconds without a response. A comparison may wait for its turn, and for the server to read the table."""

Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair. ``rows``: how many base rows were changed, added or removed; ``pulled``: whether the
    whole table was pulled instead; ``agrees``: whether the table's sum is now the one that the log carries."""

    rows: int
    pulled: bool
    agrees: bool


class PullInstead(AnabranchError):
    """The table is better pulled as a whole."""


@dataclass
class _Comparison:
    """The two directions of the call. Each answer is read to its end before the next request is put."""

    responses: Iterator[snapshot_pb2.CompareResponse]
    asked: queue.SimpleQueue[snapshot_pb2.CompareRequest | None] = field(default_factory=queue.SimpleQueue)

    def opening(self) -> snapshot_pb2.CompareResponse:
        for response in self.responses:
            return response
        raise CallFailed("ABORTED", "", "the comparison ended before it began", again=True)

    def answer(self) -> Iterator[snapshot_pb2.CompareResponse]:
        for response in self.responses:
            yield response
            if response.done:
                return
        raise CallFailed("ABORTED", "", "the comparison ended before its answer was whole", again=True)

    def sums(self) -> dict[KeyRange, RangeSum]:
        return {
            KeyRange(s.range.bits, s.range.prefix): RangeSum(s.count, int.from_bytes(s.hash, "big"))
            for response in self.answer()
            for s in response.sums
        }

    def split(self, wanted: Sequence[KeyRange]) -> dict[KeyRange, RangeSum]:
        self.asked.put(snapshot_pb2.CompareRequest(split=map(_message, wanted)))
        return self.sums()

    def read(self, wanted: Sequence[KeyRange]) -> Iterator[bytes]:
        self.asked.put(snapshot_pb2.CompareRequest(read=map(_message, wanted)))
        parts: list[bytes] = []
        for response in self.answer():
            for i, data in enumerate(response.rows):
                parts.append(data)
                if i < len(response.rows) - 1 or not response.row_incomplete:
                    yield b"".join(parts)
                    parts.clear()


def _message(one: KeyRange) -> snapshot_pb2.KeyRange:
    return snapshot_pb2.KeyRange(bits=one.bits, prefix=one.prefix)


def repair(
    file: DeviceFile,
    remote: RemoteDb,
    pendings: Pendings,
    name: str,
    node_state: position_pb2.NodeState,
    read_to: Callable[[int], None],
    now_ms: int,
) -> Repaired:
    """Mend the base rows of a live table. ``node_state`` is the node's report on itself, ``read_to`` reads the log up
    to a position. The caller sees to it that nothing else reads the log meanwhile.

    Raises:
        PullInstead: a row can't be read, the log leaves the table aside, more than ``MOST_ROWS`` rows would be fetched,
            or the table is restricted and differs.
        CallFailed: a call failed, or the table has changed meanwhile; nothing was changed, and it can be called again.
        sqlite3.Error: the file can't be written.
    """
    asked: queue.SimpleQueue[snapshot_pb2.CompareRequest | None] = queue.SimpleQueue()
    asked.put(snapshot_pb2.CompareRequest(db_name=file.current().db_name, node_state=node_state, table=name))
    with prefetched(remote.compare(iter(asked.get, None)), _AHEAD, _SILENCE_S) as responses:
        try:
            comparison = _Comparison(responses, asked)
            opening = comparison.opening()
            position = opening.as_of.server_timestamp_ms
            read_to(position)
            version = file.current().tables_version
            table = _exact(file, name, position)
            mine = _range_sums(file, table)
            wanted, rows = _wanted(comparison, mine)
            if rows > MOST_ROWS:
                raise PullInstead
            here = _rows_here(file, table, wanted)
            there = _rows_there(table, comparison.read(wanted)) if wanted else {}
        finally:
            # This ends the requests, for which a thread of gRPC waits.
            asked.put(None)
    patches = _patches(table, here, there, position)
    if table.restricted and (patches or name in sums.disagreements(file.reader())):
        # A comparison does not say whose a row is, and it may be that alone which is wrong here.
        raise PullInstead
    with file.transaction() as tx:
        _exact(file, name, position)
        if tx.state.tables_version != version:
            raise _changed(table.sql_name)
        sums.keep(tx, name, *mine.of(WHOLE))
        settle.show(tx, Folded(patches={name: patches}), {}, pendings, "snapshot", {name: position})
        tx.conn.execute("UPDATE _db_tables SET verified = ? WHERE name = ?", (now_ms, name))
        sums.compare(tx, [opening.sum], position)
        agrees = sums.kept(tx.conn)[name] == (opening.sum.count, opening.sum.hash)
    file.listeners.deliver()
    return Repaired(len(patches), False, agrees)


def _changed(name: str) -> CallFailed:
    return CallFailed("ABORTED", "", f"{name} has changed during the comparison", again=True)


def _exact(file: DeviceFile, name: str, position: int) -> DeviceTable:
    """The table, where the file stands at the position and the table has caught up with it."""
    row = file.reader().execute(
        "SELECT 1 FROM _db_tables WHERE name = ? AND stage = 'live' AND last_ms <= ?", (name, position)
    )
    table = file.tables().get(name)
    if row.fetchone() is None or table is None or file.current().cursor_ms != position:
        raise _changed(file.tables().told(name))
    if table.restricted and held.owed(file.reader(), [table]):
        raise _changed(table.sql_name)
    return table


def _range_sums(file: DeviceFile, table: DeviceTable) -> RangeSums:
    conn, found = file.reader(), RangeSums()
    try:
        with sums.one_moment(conn), closing(sums.base_rows(conn, table)) as rows:
            found.add(table.encoder, rows)
    except UNREADABLE as error:
        raise PullInstead from error
    return found


def _wanted(comparison: _Comparison, mine: RangeSums) -> tuple[list[KeyRange], int]:
    """The ranges to read, and how many rows the server has in them."""
    theirs = comparison.sums()
    split, wanted = ranges.next_steps(mine, WHOLE, theirs)
    if split:
        theirs.update(comparison.split(split))
        for one in split:
            # The parts of these are the finest ranges, which are not split again.
            wanted += ranges.next_steps(mine, one, theirs)[1]
    return wanted, sum(theirs.get(one, ranges.EMPTY).rows for one in wanted)


def _rows_here(file: DeviceFile, table: DeviceTable, wanted: Sequence[KeyRange]) -> dict[str, Row]:
    if not wanted:
        return {}
    conn = file.reader()
    is_in = ranges.in_ranges(table.encoder, wanted)
    with sums.one_moment(conn), closing(sums.base_rows(conn, table)) as rows:
        return {table.key_text(table.key_of(row)): row for row in rows if is_in(row)}


def _rows_there(table: DeviceTable, rows: Iterator[bytes]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for data in rows:
        values = value_pb2.Row.FromString(data).values
        if len(values) != len(table.readers):
            raise _changed(table.sql_name)
        row = tuple(read(value) for read, value in zip(table.readers, values, strict=True))
        found[table.key_text(table.key_of(row))] = row
    return found


def _patches(table: DeviceTable, here: dict[str, Row], there: dict[str, Row], position: int) -> dict[str, Patch]:
    row_hash = table.encoder.hash
    patches: dict[str, Patch] = {
        text: (table.key_of(row), row, None, position, None)
        for text, row in there.items()
        if text not in here or row_hash(here[text]) != row_hash(row)
    }
    patches.update(
        (text, (table.key_of(row), None, None, position, None)) for text, row in here.items() if text not in there
    )
    return patches
