"""Results of a group as verdicts: the bytes that are kept and sent.

Verdicts without mutations are also made in ``anabranch_ingest.answers``, ``anabranch.wire.awaited``, this service's
``captured.server_batches`` and ``explain``, and on devices in ``client.queue.sender`` and ``client.reading.rewind``.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.merge import Outcome
from anabranch.store.group.rows import Row
from anabranch.v1 import errors_pb2, verdict_pb2
from anabranch_conflict_resolver.batch.results import Applied, Rejection
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.group.table import SyncedTable

_APPLIED = Outcome.APPLIED


def applied_verdict(
    tables: Mapping[str, SyncedTable], position: int, result: Applied, rights: Rights | None = None
) -> verdict_pb2.Verdict:
    """The verdict of a batch that was applied. ``rights``: the batch's, where it touches a restricted table."""
    keys = result.candidate.decoded.keys
    verdict = verdict_pb2.Verdict(
        batch_id=result.candidate.taken.batch_id,
        status=verdict_pb2.VERDICT_STATUS_APPLIED,
        position=position,
    )
    for number, outcome in enumerate(result.decision.outcomes):
        table = tables[outcome.table]
        mutation = verdict.mutations.add(
            index=number,
            outcome=verdict_pb2.Outcome.ValueType(outcome.outcome),
            table=outcome.table,
            key=table.key_values(keys[outcome.table, outcome.key]),
            columns=outcome.columns,
        )
        row = result.superseded.get(number) if result.superseded else None
        if row is not None and _is_seen(table, row, rights):
            mutation.server_row.CopyFrom(table.named_row(row))
    return verdict


def rejected_verdict(
    tables: Mapping[str, SyncedTable], position: int, result: Rejection, rights: Rights | None = None
) -> verdict_pb2.Verdict:
    """The verdict of a batch that was rejected. ``rights``: the batch's, where it touches a restricted table."""
    verdict = verdict_pb2.Verdict(
        batch_id=result.taken.batch_id,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        position=position,
        reason=errors_pb2.Reason.ValueType(result.reason),
        message=result.message,
        constraint=result.constraint,
        sqlstate=result.sqlstate,
    )
    if result.table:
        mutation = verdict.mutations.add(index=result.mutation, table=result.table, columns=result.columns)
        table = tables.get(result.table)
        if table is not None:
            mutation.key.extend(table.key_values(result.key) if result.key else ())
            if result.server_row is not None and _is_seen(table, result.server_row, rights):
                mutation.server_row.CopyFrom(table.named_row(result.server_row))
    return verdict


def _is_seen(table: SyncedTable, row: Row, rights: Rights | None) -> bool:
    """Whether the sender of a batch may see a row. A row whose audiences are not known any more is not shown."""
    if table.audiences is None:
        return True
    audiences = table.audiences.known(row)
    return rights is not None and audiences is not None and rights.may_read(audiences)


def waiting_verdict(batch_id: str) -> verdict_pb2.Verdict:
    """The answer about a batch that has no verdict yet: PENDING."""
    return verdict_pb2.Verdict(batch_id=batch_id, status=verdict_pb2.VERDICT_STATUS_PENDING)


def shorten(verdict: verdict_pb2.Verdict, room: int) -> int:
    """Leave out the server's rows where the verdict has more than ``room`` bytes, and the mutations' outcomes where
    that is not enough. Gives the verdict's size then."""
    if verdict.ByteSize() > room:
        for mutation in verdict.mutations:
            mutation.ClearField("server_row")
    if verdict.ByteSize() > room:
        verdict.ClearField("mutations")
    return verdict.ByteSize()
