"""Values that were made before the columns of a table changed, carried over to the columns of today: those of retyped
columns are cast by Postgres, in sets; those of columns that are gone are kept as values that lost (``group.lost``).

A value that can't be cast refuses its batch, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from anabranch.merge import Accepted, MutationOutcome, Outcome
from anabranch.store.group.casts import cast_cells
from anabranch.store.session.engine import Session
from anabranch.v1 import errors_pb2
from anabranch.values import Column
from anabranch_conflict_resolver.batch.decode import Decoded, Refusal, Uncast

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
