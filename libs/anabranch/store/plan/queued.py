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
_SHOWN = 80

_WAITING: LiteralString = """
select i.batch_id, coalesce(nullif(n.name, ''), i.node_id), i.payload
from anabranch.inbox i
left join anabranch.nodes n on n.database_id = i.database_id and n.node_id = i.node_id
where i.database_id = %s and i.refusal is null
order by i.arrival desc limit %s
"""


class WaitingBatch(NamedTuple):
    """A batch that has no verdict yet. ``node`` is the name of its node, or the id."""

    id: str
    node: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class QueuedTrouble:
    """A batch that would be refused (``refused``), or would lose values, and why."""

    batch_id: str
    node: str
    table: str
    refused: bool
    why: str


def waiting_batches(conn: Session, database_id: int) -> list[WaitingBatch]:
    """The batches that wait, ``MOST`` at most. Raises psycopg.Error."""
    return [WaitingBatch(*row) for row in conn.execute(_WAITING, (database_id, MOST)).fetchall()]


def queued_troubles(
    conn: Session, batches: Iterable[WaitingBatch], changes: Sequence[TableChange]
) -> list[QueuedTrouble]:
    """The troubles of these batches, each table of a batch once for each reason. ``conn``: a session of the copy, in
    which values are cast.

    Raises:
        psycopg.Error: the copy can't be asked.
    """
    by_name: dict[str, TableChange] = {}
    for change in changes:
        if change.before is not None:
            by_name[change.before.sql_name] = change
    by_name |= {change.before.name: change for change in changes if change.before is not None}
    found: dict[QueuedTrouble, None] = {}
    uncast: dict[tuple[str, str], list[tuple[WaitingBatch, Cell]]] = {}
    for batch in batches:
        try:
            mutations = batch_pb2.DbMutationBatch.FromString(batch.payload).mutations
        except DecodeError:
            # Refused in any case.
            continue
        for mutation in mutations:
            if mutation.table in by_name:
                found |= dict.fromkeys(_of_mutation(batch, mutation, by_name[mutation.table], uncast))
    for change in changes:
        found |= dict.fromkeys(_cast(conn, change, uncast))
    return list(found)


def _of_mutation(
    batch: WaitingBatch,
    mutation: batch_pb2.DbMutation,
    change: TableChange,
    uncast: dict[tuple[str, str], list[tuple[WaitingBatch, Cell]]],
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
        for row in mutation.rows:
            cell = _cell(column, row.values[place]) if place < len(row.values) else _NOT_GIVEN
            if cell is _NOT_GIVEN:
                continue
            if gone is not None and not gone.successor:
                why = f'its value of column "{column.sql_name}" is kept as lost'
                yield QueuedTrouble(batch.id, batch.node, after.sql_name, False, why)
            elif gone is not None and cell is not None:
                uncast.setdefault((before.name, column.name), []).append((batch, cell))
            elif now is not None and cell is None and now.not_null and not column.not_null:
                why = f'column "{now.sql_name}" takes no NULL then'
                yield QueuedTrouble(batch.id, batch.node, after.sql_name, True, why)


_NOT_GIVEN = ("not given",)


def _cell(column: Column, value: value_pb2.Value) -> Cell:
    """The cell of a value; ``_NOT_GIVEN`` where the row does not give it, or gives what is none of the column's."""
    try:
        return column_reader(column)(value)
    except (NotGivenError, ValueError):
        return _NOT_GIVEN


def _cast(
    conn: Session, change: TableChange, uncast: dict[tuple[str, str], list[tuple[WaitingBatch, Cell]]]
) -> Iterator[QueuedTrouble]:
    before, after = change.before, change.after
    if before is None or after is None:
        return
    for former in change.dropped:
        given = uncast.get((before.name, former.column.name), [])
        if not former.successor or not given:
            continue
        column = after.by_name[former.successor]
        with conn.transaction(force_rollback=True):
            made = cast_cells(conn, former.column, column, [cell for _, cell in given])
        for (batch, cell), one in zip(given, made, strict=True):
            if one.failure:
                shown = repr(cell)[:_SHOWN]
                why = f'its value {shown} of column "{column.sql_name}" can\'t be cast to {column.postgres_type}'
                yield QueuedTrouble(batch.id, batch.node, after.sql_name, True, why)
