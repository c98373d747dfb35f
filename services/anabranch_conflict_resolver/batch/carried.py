"""Values that were made before the columns of a table changed, carried over to the columns of today: those of retyped
columns are cast by Postgres, in sets; those of columns that are gone are kept as values that lost.

A value that can't be cast refuses its batch, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from anabranch.merge import SERVER_NODE, Accepted, MutationOutcome, Outcome
from anabranch.store.group.casts import cast_cells
from anabranch.store.group.records import ConflictRow
from anabranch.store.session.engine import Session
from anabranch.v1 import change_pb2, errors_pb2
from anabranch.values import Column
from anabranch.values.messages import column_writer
from anabranch_conflict_resolver.batch.decode import Decoded, GoneValue, Refusal, RowKey, Uncast
from anabranch_conflict_resolver.batch.shown import Shown
from anabranch_conflict_resolver.captured.server_batches import schema_batch_id

COLUMN_DROPPED = int(change_pb2.LOSS_CAUSE_COLUMN_DROPPED)
_SHOWN = 80
"""Characters of a value that a message shows."""


def cast_values(conn: Session, batches: Sequence[Decoded]) -> None:
    """Cast the values of retyped columns in these batches, and refuse those of which one can't be. A batch is done
    once.

    Raises:
        psycopg.Error: Postgres refused something that is no value's fault.
    """
    waiting = [(decoded, value) for decoded in batches for value in decoded.uncast]
    while waiting:
        steps: dict[tuple[str, str, str], list[tuple[Decoded, Uncast]]] = {}
        for decoded, value in waiting:
            if decoded.refusal is None:
                at = (value.table, value.former.name, value.ways[0].name)
                steps.setdefault(at, []).append((decoded, value))
        waiting = [one for of_step in steps.values() for one in _cast(conn, of_step)]
    for decoded in batches:
        decoded.uncast = []


def _cast(conn: Session, values: Sequence[tuple[Decoded, Uncast]]) -> Iterator[tuple[Decoded, Uncast]]:
    """Cast values of one column to the one that it became; gives those that have further to go."""
    _, first = values[0]
    former, column = first.former, first.ways[0]
    made = cast_cells(conn, former, column, [value.cell for _, value in values])
    for (decoded, value), one in zip(values, made, strict=True):
        if one.failure:
            _refuse(decoded, value, column, one.failure)
        elif len(value.ways) > 1:
            yield decoded, replace(value, former=column, ways=value.ways[1:], cell=one.cell)
        else:
            value.values[column.name] = one.cell


def _refuse(decoded: Decoded, value: Uncast, column: Column, sqlstate: str) -> None:
    text = (
        f'column "{column.sql_name}" was {value.former.postgres_type} when the batch was made and is '
        f"{column.postgres_type} now: the value {_short(value.cell)} can't be cast (SQLSTATE {sqlstate})"
    )
    decoded.refusal = Refusal(errors_pb2.REASON_VALUE_NOT_CAST, text, value.mutation, value.table, sqlstate)
    decoded.mutations, decoded.keys, decoded.lost, decoded.emptied = [], {}, [], {}


def _short(cell: object) -> str:
    text = repr(cell) if not isinstance(cell, str) else f'"{cell}"'
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def without_gone(decoded: Decoded, decision: Accepted) -> Accepted:
    """The rules' decision on a batch as it stands where updates gave values for gone columns only: nothing of such an
    update is written, and it was superseded by the change of the schema."""
    emptied = decoded.emptied
    if not emptied:
        return decision
    writes = [replace(w, type=None, values={}) if w.mutation in emptied else w for w in decision.writes]
    outcomes = [
        MutationOutcome(Outcome.SUPERSEDED, one.table, decoded.mutations[number].rows[0].key, emptied[number])
        if number in emptied
        else one
        for number, one in enumerate(decision.outcomes)
    ]
    return replace(decision, writes=writes, outcomes=outcomes)


def lost_rows(
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
            COLUMN_DROPPED,
        )
