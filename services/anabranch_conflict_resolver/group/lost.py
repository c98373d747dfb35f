"""The records of values that lost: in conflicts, and since their columns are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anabranch.merge import SERVER_NODE
from anabranch.store.group.records import ConflictRow
from anabranch.v1 import change_pb2
from anabranch.values.messages import column_writer
from anabranch_conflict_resolver.batch.decode import GoneValue, RowKey
from anabranch_conflict_resolver.batch.results import Applied, Change
from anabranch_conflict_resolver.batch.shown import Shown
from anabranch_conflict_resolver.captured.server_batches import schema_batch_id
from anabranch_conflict_resolver.group.table import SyncedTable

_COLUMN_DROPPED = int(change_pb2.LOSS_CAUSE_COLUMN_DROPPED)


def conflict_rows(tables: Mapping[str, SyncedTable], result: Applied) -> list[ConflictRow]:
    """The values that lost because of a batch, and those of it that did."""
    rows: list[ConflictRow] = []
    seen = _seen(result.changes)
    for number, conflict in enumerate(result.accepting.decision.conflicts):
        table = tables[conflict.table]
        value = table.writers[conflict.column](conflict.losing_value).SerializeToString()
        whom = seen.get((conflict.table, conflict.key))
        rows.append(
            ConflictRow(
                result.taken.batch_id,
                number,
                table.table.id,
                conflict.key,
                conflict.column,
                value,
                conflict.losing_batch,
                conflict.losing_node,
                conflict.winning_batch,
                conflict.winning_node,
                None if whom is None else whom.before,
                None if whom is None else whom.after,
            )
        )
    taken, lost = result.taken, result.candidate.decoded.lost
    if lost:
        numbers = {name: table.table.id for name, table in tables.items()}
        first = len(result.accepting.decision.conflicts)
        rows += _gone_rows(taken.batch_id, taken.node_id, lost, numbers, seen, first)
    return rows


def _seen(changes: Sequence[Change]) -> dict[RowKey, Shown]:
    """By row of a restricted table, whom it was for before the batch, and is for after it."""
    seen: dict[RowKey, Shown] = {}
    for change in changes:
        if change.shown is not None:
            at = (change.write.table, change.write.key)
            seen[at] = Shown(seen.get(at, change.shown).before, change.shown.after)
    return seen


def _gone_rows(
    batch_id: str,
    node_id: str,
    lost: Sequence[GoneValue],
    numbers: Mapping[str, int],
    seen: Mapping[RowKey, Shown],
    first: int,
) -> Iterator[ConflictRow]:
    """The records of values for columns that are gone; ``numbers``: those of the tables, ``first``: that of the first
    record among the batch's."""
    for number, one in enumerate(lost, first):
        whom = seen.get((one.table, one.key))
        yield ConflictRow(
            batch_id,
            number,
            numbers[one.table],
            one.key,
            one.former.column.name,
            column_writer(one.former.column)(one.value).SerializeToString(),
            batch_id,
            node_id,
            schema_batch_id(one.former.dropped_position),
            SERVER_NODE,
            None if whom is None else whom.before,
            None if whom is None else whom.after,
            _COLUMN_DROPPED,
        )
