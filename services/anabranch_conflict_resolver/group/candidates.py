"""Sorts the batches that were taken: the rules decide the candidates; the others are refused, or wait for one before
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from anabranch.limits import BATCH_EXPIRY_MS
from anabranch.store.inbox import neighbours, parking, take
from anabranch.store.inbox.parking import Parking
from anabranch.store.inbox.take import Taken
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.carried import cast_values
from anabranch_conflict_resolver.batch.decode import Decoded, Refusal
from anabranch_conflict_resolver.batch.results import Candidate, Rejection, Result, Waiting
from anabranch_conflict_resolver.blame.evidence import FAILURES_AT_MOST, given_up
from anabranch_conflict_resolver.group.context import Context

_DAY_MS = 86_400_000


@dataclass(slots=True)
class Sorted:
    """``results`` of those that need no rules, and the ``candidates``, both in the order of the ids. ``held``: those
    that wait, and their nodes."""

    results: list[Result] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)


def sort_out(context: Context, taken: Sequence[Taken], read: Callable[[Taken], Decoded]) -> Sorted:
    """Refuse batches that need no rules, hold those that wait for their ``prev``, and ``read`` the rest. ``taken`` is
    in the order of ids. Values for columns that were retyped since are cast.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    policy = context.synced.database.policy
    oldest_ms = context.now_ms - policy.retention_days * _DAY_MS
    done = _patient(context, taken)
    made = Sorted()
    unread = {one.batch_id: _refusal_unread(one) for one in taken}
    known = {one.batch_id: read(one) for one in taken if unread[one.batch_id] is None}
    uncast = [decoded for decoded in known.values() if decoded.uncast]
    if uncast:
        cast_values(context.conn, uncast)
    for one in taken:
        until_ms = one.arrived_ms + policy.park_ms
        may_wait = context.now_ms < until_ms
        decoded, refusal = known.get(one.batch_id), unread[one.batch_id]
        if decoded is not None:
            refusal = _refusal(decoded, oldest_ms)
        if refusal is not None:
            made.results.append(
                Rejection(
                    one, refusal.reason, refusal.message, refusal.mutation, refusal.table, sqlstate=refusal.sqlstate
                )
            )
        elif may_wait and not one.prev_decided and one.prev not in done and (one.prev or "") < one.batch_id:
            made.results.append(Waiting(one, Parking(one.batch_id, until_ms, one.prev), one.prev or ""))
            made.held[one.batch_id] = one.node_id
            continue
        else:
            assert decoded is not None
            may_await_row = context.now_ms < one.arrived_ms + BATCH_EXPIRY_MS
            made.candidates.append(Candidate(one, decoded, context.position, may_wait, may_await_row))
        done.add(one.batch_id)
    made.candidates = _placed(context, made.candidates)
    return made


def _placed(context: Context, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, with those that come after a later one of their nodes was accepted in their place before it."""
    takens = [one.taken for one in candidates]
    late = [(one.batch_id, one.node_id) for one in takens if one.last_accepted and one.last_accepted > one.batch_id]
    if not late:
        return candidates
    places = neighbours.places(context.conn, context.synced.database.id, late)
    return [replace(one, place=places.get(one.taken.batch_id, context.position)) for one in candidates]


def _patient(context: Context, taken: Sequence[Taken]) -> set[str]:
    """Batches before these of their nodes that no batch waits for any longer: they have waited for a row for the park
    time, and go on for days if need be."""
    named = {t.prev for t in taken if t.prev and not t.prev_decided} - {t.batch_id for t in taken}
    if not named:
        return set()
    return parking.awaiting_rows(context.conn, context.synced.database.id, named)


def _refusal_unread(taken: Taken) -> Refusal | None:
    """Return the refusal of a batch that is refused whatever its content, or None."""
    if taken.refusal:
        return Refusal(taken.refusal, taken.refusal_message or "")
    if taken.attempts >= FAILURES_AT_MOST:
        # Not read any more: the reading may be what fails.
        return given_up(taken.failure or take.PROGRAM)
    return None


def _refusal(decoded: Decoded, oldest_ms: int) -> Refusal | None:
    if decoded.time_ms and decoded.time_ms < oldest_ms:
        text = "made longer ago than verdicts are kept: it could not be distinguished from a repeat"
        return Refusal(errors_pb2.REASON_EXPIRED, text)
    return decoded.refusal
