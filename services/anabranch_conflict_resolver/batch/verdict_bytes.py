"""The common verdict, put together by hand: everything applied as written.

Building it in protobuf takes five times as long, and there is one for every batch. A test holds both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anabranch.merge import MutationOutcome, Outcome
from anabranch.v1 import verdict_pb2
from anabranch.values import Cell, Table
from anabranch.values.message_bytes import LENGTH_DELIMITED, delimited, field_number, value_writer, varint

Head = Callable[[Sequence[Cell]], bytes]
_VERDICT, _MUTATION = verdict_pb2.Verdict, verdict_pb2.MutationVerdict
_BATCH_ID = varint(field_number(_VERDICT, "batch_id") << 3 | LENGTH_DELIMITED)
_POSITION = varint(field_number(_VERDICT, "position") << 3)
_STATUS = varint(field_number(_VERDICT, "status") << 3) + varint(verdict_pb2.VERDICT_STATUS_APPLIED) + _POSITION
_MUTATIONS = varint(field_number(_VERDICT, "mutations") << 3 | LENGTH_DELIMITED)
_INDEX = varint(field_number(_MUTATION, "index") << 3)
_OUTCOME = varint(field_number(_MUTATION, "outcome") << 3) + varint(verdict_pb2.OUTCOME_APPLIED)
_APPLIED = Outcome.APPLIED


def mutation_writer(table: Table) -> Head:
    """Return the function that takes a key's cells to the bytes of a MutationVerdict of ``table`` after its index,
    where the mutation was applied as written."""
    tag = varint(field_number(_MUTATION, "key") << 3 | LENGTH_DELIMITED)
    head = _OUTCOME + delimited(field_number(_MUTATION, "table"), table.name.encode())
    writers = [
        value_writer(column.kind, column.element_kind, tag)
        for column in (table.by_name[name] for name in table.key_columns)
    ]
    return lambda key: head + b"".join([write(cell) for write, cell in zip(writers, key)])  # noqa: B905


def applied_as_written(
    batch_id: str,
    position: int,
    outcomes: Sequence[MutationOutcome],
    keys: Mapping[tuple[str, str], Sequence[Cell]],
    writers: Mapping[str, Head],
) -> bytes | None:
    """The serialized verdict; None where a mutation has another outcome than APPLIED, or columns to name."""
    raw = batch_id.encode()
    parts = [_BATCH_ID, varint(len(raw)), raw, _STATUS, varint(position)]
    for number, outcome in enumerate(outcomes):
        if outcome.outcome is not _APPLIED or outcome.columns:
            return None
        table = outcome.table
        content = writers[table](keys[table, outcome.key])
        if number:
            content = _INDEX + varint(number) + content
        parts += (_MUTATIONS, varint(len(content)), content)
    return b"".join(parts)
