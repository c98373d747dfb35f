"""Checks the fields of a call and puts its batches in order."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch import limits
from anabranch.runtime.credentials.claims import Claims
from anabranch.runtime.credentials.principal import Principal
from anabranch.runtime.errors import CallError
from anabranch.store.inbox.append import Arrival
from anabranch.store.inbox.heads import DatabaseHead
from anabranch.store.nodes.tokens import Call, Mode
from anabranch.v1 import errors_pb2, ingest_pb2
from anabranch.wire.envelopes import Received
from anabranch.wire.ulids import is_ulid
from anabranch_ingest import answers
from anabranch_ingest.audiences import ClaimedSets, claimed

TOKEN_BYTES = 16


@dataclass(slots=True, eq=False)
class Opening:
    """The caller and its database. ``unanswered``: batch ids of calls whose answer was lost.
    ``acknowledged`` as in ``store.nodes.tokens.Call``; ``claimed``: what ``claims`` give by the database's rules."""

    database: DatabaseHead
    principal: str
    node_id: str
    node_name: str
    token: bytes
    unanswered: frozenset[str]
    acknowledged: int
    traceparent: str
    claims: Claims
    claimed: ClaimedSets

    def follow_rules(self, database: DatabaseHead) -> None:
        """Judge the claims anew where the database has other rules by now."""
        rules = database.audience_rules
        if rules is not self.claimed.rules and rules != self.claimed.rules:
            self.claimed = claimed(rules, self.claims, self.principal)

    def call(self, batch_ids: Sequence[str], *, rotates: bool) -> Call:
        """The call for the look at its token. Without a new batch (``rotates`` false) a current token stays as it is,
        so that the answer may get lost."""
        new_token = secrets.token_bytes(TOKEN_BYTES) if rotates or not self.token else self.token
        return Call(
            database_id=self.database.id,
            node_id=self.node_id,
            name=self.node_name,
            principal=self.principal,
            epoch=self.database.epoch,
            token=self.token,
            new_token=new_token,
            mode=Mode.ROTATE if rotates else Mode.KEEP,
            batch_ids=batch_ids,
            acknowledged=self.acknowledged,
        )

    def extension(self, token: bytes, batch_ids: Sequence[str]) -> Call:
        """The call by which further batches of a stream with this token are added to it."""
        return Call(
            database_id=self.database.id,
            node_id=self.node_id,
            name=self.node_name,
            principal=self.principal,
            epoch=self.database.epoch,
            token=token,
            new_token=token,
            mode=Mode.EXTEND,
            batch_ids=batch_ids,
            acknowledged=self.acknowledged,
        )


def open_call(
    request: ingest_pb2.SendRequest | ingest_pb2.SendStreamRequest,
    database: DatabaseHead,
    principal: Principal,
    position: int,
    traceparent: str,
) -> Opening:
    """Check the fields of a call. ``position``: the settled one; no node can have acknowledged more.

    Raises:
        CallError: INVALID_REQUEST, naming the field; LIMIT_EXCEEDED.
    """
    node = request.node_state.node
    if not is_ulid(node.id):
        raise invalid("node_state.node.id is not a ULID in its canonical form")
    if len(request.node_token) not in (0, TOKEN_BYTES):
        raise invalid("node_token is not one that this service gives")
    if len(request.unanswered_batch_ids) > limits.MAX_UNANSWERED_IDS:
        raise invalid(f"unanswered_batch_ids has more than {limits.MAX_UNANSWERED_IDS} entries")
    if request.node_state.acknowledged < 0:
        raise invalid("node_state.acknowledged is negative")
    return Opening(
        database=database,
        principal=principal.subject,
        node_id=node.id,
        node_name=node.name,
        token=request.node_token,
        unanswered=frozenset(request.unanswered_batch_ids),
        # A node that has read nothing yet needs nothing of the log: it begins with a pull. The node's row says whether
        # it has begun.
        acknowledged=min(request.node_state.acknowledged, position) or -position,
        traceparent=traceparent,
        claims=principal.claims,
        claimed=claimed(database.audience_rules, principal.claims, principal.subject),
    )


def check_size(request: ingest_pb2.SendRequest | ingest_pb2.SendStreamRequest) -> int:
    """Check the number of envelopes of a request, and its bytes, and give these.

    Raises:
        CallError: MESSAGE_TOO_LARGE.
    """
    if len(request.envelopes) > limits.MAX_REQUEST_ENVELOPES:
        raise CallError(
            errors_pb2.REASON_MESSAGE_TOO_LARGE,
            f"{len(request.envelopes)} envelopes; a request has at most {limits.MAX_REQUEST_ENVELOPES}",
        )
    size = request.ByteSize()
    if size > limits.MAX_REQUEST_BYTES:
        raise CallError(
            errors_pb2.REASON_MESSAGE_TOO_LARGE,
            f"{size} bytes; a request has at most {limits.MAX_REQUEST_BYTES}: send more of them, or large "
            "batches in parts over SendStream",
        )
    return size


def invalid(message: str) -> CallError:
    """A request that can't be served as it is."""
    return CallError(errors_pb2.REASON_INVALID_REQUEST, message)


@dataclass(slots=True, eq=False)
class SortedRequest:
    """The batches of a request: what to append, each id once; and for each envelope in its place either its verdict,
    where it needs no look into the database, or the id whose verdict it gets."""

    arrivals: list[Arrival]
    places: list[bytes | str]

    @property
    def batch_ids(self) -> list[str]:
        """The ids of what is to be appended."""
        return [arrival.batch_id for arrival in self.arrivals]


def sort_batches(opening: Opening, received: Sequence[Received]) -> SortedRequest:
    """Put the batches of one request in order. An id that comes twice: with the same bytes it gets one verdict, other
    bytes are a reuse."""
    arrivals: list[Arrival] = []
    places: list[bytes | str] = []
    first: dict[str, bytes] = {}
    database_id, node_id = opening.database.id, opening.node_id
    principal, traceparent = opening.principal, opening.traceparent
    read_audiences, write_audiences = opening.claimed.read, opening.claimed.write
    for one in received:
        batch_id = one.batch_id
        refusal = one.refusal
        if not batch_id:
            assert refusal is not None
            places.append(answers.unreadable(one, refusal))
            continue
        if batch_id in first:
            places.append(batch_id if first[batch_id] == one.payload_sha256 else answers.reused(batch_id))
            continue
        first[batch_id] = one.payload_sha256
        places.append(batch_id)
        arrival = Arrival(
            database_id,
            batch_id,
            node_id,
            principal,
            one.basis,
            one.prev,
            one.payload,
            one.payload_sha256,
            traceparent,
            read_audiences=read_audiences,
            write_audiences=write_audiences,
            claims=opening.claimed.claims,
        )
        if refusal is not None:
            arrival.refusal, arrival.refusal_message = refusal
        arrivals.append(arrival)
    return SortedRequest(arrivals, places)
