"""The fate of the batches that wait in the inbox once tables have changed, as far as the copy can tell.

The queues of devices that are away are not known to anybody but these: so this is a sample, of what is on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import LiteralString, NamedTuple

from google.protobuf.message import DecodeError

from anabranch.store.ddl.difference import TableChange
from anabranch.store.group.casts import cast_cells
from anabranch.store.session.engine import Session
from anabranch.v1 import batch_pb2, value_pb2
from anabranch.values import Cell, Column
from anabranch.values.messages import NotGivenError, column_reader

MOST = 10_000
"""The most batches that are looked at, those that came last."""
MOST_BYTES = 256 * 1024 * 1024
"""The most bytes of batches that are read, unless the last one alone has more."""
_AT_ONCE = 16 * 1024 * 1024
"""The most bytes of batches that are held, unless one alone has more."""
_CELLS_AT_ONCE = 10_000
_CELL_BYTES_AT_ONCE = 16 * 1024 * 1024
_SHOWN = 80

_SIZES: LiteralString = """
select arrival, octet_length(payload), count(*) over ()
from anabranch.inbox
where database_id = %s and refusal is null
order by arrival desc limit %s
"""
_PIECE: LiteralString = """
select i.batch_id, coalesce(nullif(n.name, ''), i.node_id), i.payload
from anabranch.inbox i
left join anabranch.nodes n on n.database_id = i.database_id and n.node_id = i.node_id
where i.database_id = %s and i.arrival = any(%s) and i.refusal is null
order by i.arrival desc
"""


class WaitingBatch(NamedTuple):
    """A batch that has no verdict yet. ``node`` is the name of its node, or the id."""

    id: str
    node: str
    payload: bytes


class ReadBatches:
    """The batches that wait, the last one first: read while they are iterated, a piece at a time. ``unread``: how many
    are left out, above ``MOST`` and ``MOST_BYTES``; ``read``: how many have been read. One that gets its verdict before
    it is read is neither.

    Raises:
        psycopg.Error: Postgres can't be asked, also later, while iterating.
    """

    def __init__(self, conn: Session, database_id: int) -> None:
        sizes = conn.execute(_SIZES, (database_id, MOST)).fetchall()
        self.read = 0
        self._conn = conn
        self._database_id = database_id
        self._pieces = pieces_of([(arrival, size) for arrival, size, _ in sizes])
        self.unread = (sizes[0][2] if sizes else 0) - sum(map(len, self._pieces))

    def __iter__(self) -> Iterator[WaitingBatch]:
        for piece in self._pieces:
            for row in self._conn.execute(_PIECE, (self._database_id, piece)).fetchall():
                self.read += 1
                yield WaitingBatch(*row)


def pieces_of(sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The batches that are read, of all with their sizes, in pieces that are held at once."""
    pieces: list[list[int]] = []
    held = total = 0
    for arrival, size in sizes:
        total += size
        if total > MOST_BYTES and pieces:
            break
        if not pieces or held + size > _AT_ONCE:
            pieces.append([])
            held = 0
        pieces[-1].append(arrival)
        held += size
    return pieces


@dataclass(frozen=True, slots=True)
class QueuedTrouble:
    """A batch that would be refused (``refused``), or would lose values, and why."""

    batch_id: str
    node: str
    table: str
    refused: bool
    why: str


class _Uncast:
    """Values of retyped columns that wait to be cast: each once for each batch, and few at a time. Of a batch one value
    of a column that can't be cast is told, and no more of that column are kept."""

    def __init__(self, conn: Session, changes: Sequence[TableChange]) -> None:
        self._conn = conn
        self._ways = {
            (change.before.name, former.column.name): (former.column, change.after.by_name[former.successor], change)
            for change in changes
            if change.before is not None and change.after is not None
            for former in change.dropped
            if former.successor in change.after.by_name
        }
        self._waiting: dict[tuple[str, str], dict[tuple[str, str, Cell], None]] = {}
        self._told: set[tuple[str, str, str]] = set()
        self._count = self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._count >= _CELLS_AT_ONCE or self._bytes >= _CELL_BYTES_AT_ONCE

    def add(self, batch: WaitingBatch, at: tuple[str, str], cell: Cell, size: int) -> None:
        """Have a value of so many bytes cast that the batch gives for a table's column, both by identity."""
        waiting = self._waiting.setdefault(at, {})
        if (batch.id, *at) not in self._told and (one := (batch.id, batch.node, cell)) not in waiting:
            waiting[one] = None
            self._count += 1
            self._bytes += size

    def cast(self) -> Iterator[QueuedTrouble]:
        """Cast all that wait. Raises psycopg.Error."""
        waiting, self._waiting = self._waiting, {}
        self._count = self._bytes = 0
        for (table, name), values in waiting.items():
            former, column, change = self._ways[table, name]
            assert change.after is not None
            with self._conn.transaction(force_rollback=True):
                made = cast_cells(self._conn, former, column, [cell for _, _, cell in values])
            for (batch_id, node, cell), one in zip(values, made, strict=True):
                if one.failure and (batch_id, table, name) not in self._told:
                    self._told.add((batch_id, table, name))
                    shown = f'its value {_short(cell)} of column "{column.sql_name}"'
                    why = f"{shown} can't be cast to {column.postgres_type}"
                    yield QueuedTrouble(batch_id, node, change.after.sql_name, True, why)


def _short(cell: Cell) -> str:
    return repr(cell[:_SHOWN] if isinstance(cell, str | bytes) else cell)[:_SHOWN]


def queued_troubles(
    conn: Session, batches: Iterable[WaitingBatch], changes: Sequence[TableChange]
) -> list[QueuedTrouble]:
    """The troubles of these batches, each table of a batch once for each reason. ``conn``: a session of the copy, in
    which values are cast.

    Raises:
        psycopg.Error: the copy, or whoever gives the batches, can't be asked.
    """
    by_name: dict[str, TableChange] = {}
    for change in changes:
        if change.before is not None:
            by_name[change.before.sql_name] = change
    by_name |= {change.before.name: change for change in changes if change.before is not None}
    found: dict[QueuedTrouble, None] = {}
    uncast = _Uncast(conn, changes)
    for batch in batches:
        try:
            mutations = batch_pb2.DbMutationBatch.FromString(batch.payload).mutations
        except DecodeError:
            # Refused in any case.
            continue
        for mutation in mutations:
            if mutation.table in by_name:
                found |= dict.fromkeys(_of_mutation(batch, mutation, by_name[mutation.table], uncast))
    found |= dict.fromkeys(uncast.cast())
    return list(found)


def _of_mutation(
    batch: WaitingBatch, mutation: batch_pb2.DbMutation, change: TableChange, uncast: _Uncast
) -> Iterator[QueuedTrouble]:
    before, after = change.before, change.after
    assert before is not None
    if after is None:
        yield QueuedTrouble(batch.id, batch.node, before.sql_name, True, "its table is gone")
        return
    former = {one.column.name: one for one in change.dropped}
    for place, given in enumerate(mutation.columns):
        column = before.find(given)
        if column is None:
            continue
        gone, now = former.get(column.name), after.by_name.get(column.name)
        if gone is None and (now is None or not now.not_null or column.not_null):
            continue
        for row in mutation.rows:
            cell = _cell(column, row.values[place]) if place < len(row.values) else _NOT_GIVEN
            if cell is _NOT_GIVEN:
                continue
            if gone is None:
                if now is not None and cell is None:
                    why = f'column "{now.sql_name}" takes no NULL then'
                    yield QueuedTrouble(batch.id, batch.node, after.sql_name, True, why)
                    break
            elif gone.successor not in after.by_name:
                why = f'its value of column "{column.sql_name}" is kept as lost'
                yield QueuedTrouble(batch.id, batch.node, after.sql_name, False, why)
                break
            elif cell is not None:
                uncast.add(batch, (before.name, column.name), cell, row.values[place].ByteSize())
                if uncast.is_full:
                    yield from uncast.cast()


_NOT_GIVEN = ("not given",)


def _cell(column: Column, value: value_pb2.Value) -> Cell:
    """The cell of a value; ``_NOT_GIVEN`` where the row does not give it, or gives what is none of the column's."""
    try:
        return column_reader(column)(value)
    except (NotGivenError, ValueError):
        return _NOT_GIVEN
