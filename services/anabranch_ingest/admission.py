"""The careful look at calls that do not carry their node's current token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.runtime.errors import CallError
from anabranch.store.inbox.session import Session
from anabranch.store.nodes import tokens
from anabranch.store.nodes.tokens import Call
from anabranch.v1 import errors_pb2
from anabranch_ingest.queueing import Submission
from anabranch_ingest.tokens import TokenRuling, judge

_REFUSED = {
    TokenRuling.WRONG_PRINCIPAL: (
        errors_pb2.REASON_WRONG_PRINCIPAL,
        "the node belongs to another principal: clear the device's file, or log in as its owner",
    ),
    TokenRuling.FORKED: (
        errors_pb2.REASON_NODE_FORKED,
        "the node's token is not the current one: the device was copied or restored. "
        "Take a new node id; the queue is kept",
    ),
}


@dataclass(frozen=True, slots=True)
class Admission:
    """The calls that are let in, those refused and why, and those to try again, because the node's row was locked."""

    admitted: list[Submission]
    refused: list[tuple[Submission, CallError]]
    busy: list[Submission]


async def look(session: Session, unadmitted: Sequence[Submission], now_ms: int) -> Admission:
    """Decide about calls, with their nodes' rows locked, and give the new tokens. In the caller's transaction:
    nothing of it holds before that is committed.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    of = {s.call.number: s for s in unadmitted if s.call is not None}
    calls = sorted((s.call for s in of.values() if s.call), key=lambda call: (call.database_id, call.node_id))
    made = await tokens.create(session, calls, now_ms)
    rows = await tokens.lock(session, [call for call in calls if call.number not in made])
    rotated: list[Call] = []
    admission = Admission([of[number] for number in made], [], [])
    for call in calls:
        if call.number in made:
            continue
        row = rows.get(call.number)
        if row is None:
            # Held, or removed a moment ago: then it is made when it comes again.
            admission.busy.append(of[call.number])
            continue
        ruling = judge(call, of[call.number].unanswered, row)
        if ruling in _REFUSED:
            admission.refused.append((of[call.number], CallError(*_REFUSED[ruling])))
            continue
        admission.admitted.append(of[call.number])
        if ruling is TokenRuling.IN:
            rotated.append(call)
        elif ruling is TokenRuling.REPEATED:
            call.new_token = row.token
    if rotated:
        await tokens.rotate(session, rotated, now_ms)
    return admission
