"""``ConflictResolverService``: decode, call, encode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import grpc

from anabranch import limits
from anabranch.clock import Clock
from anabranch.runtime.credentials.principal import require_database
from anabranch.runtime.errors import CallError
from anabranch.store.audiences import principals
from anabranch.store.audiences.rules import claims_text
from anabranch.store.audiences.viewing import is_scoped
from anabranch.store.catalog.databases import Database, UnknownDatabaseError, aload_database
from anabranch.store.catalog.former_tables import aall_former
from anabranch.store.inbox.explain import DatabaseState, find_verdicts, read_state
from anabranch.store.log.conflicts import apage, listed_tables
from anabranch.store.session.engine import AsyncPool, AsyncSession
from anabranch.store.session.steps import arun
from anabranch.v1 import errors_pb2, position_pb2, resolver_pb2, resolver_pb2_grpc, verdict_pb2
from anabranch_conflict_resolver.batch.verdicts import shorten, waiting_verdict
from anabranch_conflict_resolver.conflicts import MAX_PAGE_BYTES, answer, read_request
from anabranch_conflict_resolver.explain_turns import Turns
from anabranch_conflict_resolver.question import Question

Context = grpc.aio.ServicerContext[Any, Any]
Explain = Callable[[Question, int, int], resolver_pb2.ExplainResponse]
"""Takes the question, this process's clock in milliseconds, and by how much it is off; blocks."""
SERVICE = "anabranch.v1.ConflictResolverService"
MAX_IDS = 1_000
MAX_ANSWER_BYTES = 3_000_000
"""The most bytes of verdicts in one answer, which so stays below the 4 MiB that a gRPC channel takes by default."""
_ID_CHARACTERS = 26


class ResolverServicer(resolver_pb2_grpc.ConflictResolverServiceServicer):
    """Answers about verdicts and conflicts."""

    def __init__(self, pool: AsyncPool, clock: Clock, explain: Explain) -> None:
        self._pool = pool
        self._clock = clock
        self._explain = explain
        self._turns = Turns()
        self._databases: dict[int, Database] = {}

    async def GetVerdict(  # noqa: N802 - the contract's name
        self, request: resolver_pb2.GetVerdictRequest, context: Context
    ) -> resolver_pb2.GetVerdictResponse:
        """``ConflictResolverService.GetVerdict``."""
        principal = require_database(request.db_name)
        ids = list(dict.fromkeys(request.batch_ids))
        if len(ids) > MAX_IDS:
            raise _invalid(f"batch_ids has {len(ids)} ids; the most is {MAX_IDS}")
        if any(len(batch_id) != _ID_CHARACTERS or "\0" in batch_id for batch_id in ids):
            raise _invalid(f"batch_ids: an id has {_ID_CHARACTERS} characters")
        async with self._pool.connection() as conn:
            state = _found(request.db_name, await read_state(conn, request.db_name))
            found = await find_verdicts(conn, state.id, principal.subject, ids)
        verdicts = []
        room = MAX_ANSWER_BYTES
        for batch_id in ids:
            if batch_id in found:
                raw = found[batch_id]
                verdict = verdict_pb2.Verdict.FromString(raw) if raw else waiting_verdict(batch_id)
                room -= shorten(verdict, room)
                verdicts.append(verdict)
        return resolver_pb2.GetVerdictResponse(verdicts=verdicts, state=self._server_state(state))

    async def Explain(  # noqa: N802 - the contract's name
        self, request: resolver_pb2.ExplainRequest, context: Context
    ) -> resolver_pb2.ExplainResponse:
        """``ConflictResolverService.Explain``."""
        principal = require_database(request.db_name)
        envelope, node_id = request.envelope, request.node_state.node.id
        if envelope.payload_incomplete:
            raise _invalid("payload_incomplete is for SendStream")
        if not envelope.payload:
            raise _invalid("envelope.payload is empty")
        if len(envelope.payload) > limits.MAX_EXPLAIN_BYTES:
            raise CallError(
                errors_pb2.REASON_LIMIT_EXCEEDED,
                f"a payload of {len(envelope.payload)} bytes; a dry run takes {limits.MAX_EXPLAIN_BYTES}",
                max_bytes=str(limits.MAX_EXPLAIN_BYTES),
            )
        if len(node_id) != _ID_CHARACTERS or "\0" in node_id or "\0" in envelope.prev:
            raise _invalid("node_state.node.id is no ULID")
        async with self._pool.connection() as conn:
            state = _found(request.db_name, await read_state(conn, request.db_name))
            rules = (await self._database(conn, state)).audience_rules
        read = sorted(rules.read.claimed(principal.claims))
        write = None if rules.write is None else sorted(rules.write.claimed(principal.claims))
        claims = claims_text(principal.subject, principal.claims) if rules.rls_role else None
        question = Question(state.id, principal.subject, node_id, envelope, read, write, claims)
        now_ms = self._clock.now_ms()
        work = partial(self._explain, question, now_ms, now_ms - Clock().now_ms())
        answer = await self._turns.run(principal.subject, work)
        answer.state.CopyFrom(self._server_state(state))
        return answer

    async def ListConflicts(  # noqa: N802 - the contract's name
        self, request: resolver_pb2.ListConflictsRequest, context: Context
    ) -> resolver_pb2.ListConflictsResponse:
        """``ConflictResolverService.ListConflicts``."""
        principal = require_database(request.db_name)
        async with self._pool.connection() as conn:
            state = _found(request.db_name, await read_state(conn, request.db_name))
            database = await self._database(conn, state)
            tables = listed_tables(database, await aall_former(conn, database.id))
            wanted, place, items = read_request(database, tables, request)
            if is_scoped(database) and principal.role != "admin":
                claimed = database.audience_rules.read.claimed(principal.claims)
                wanted = replace(
                    wanted,
                    principal=principal.subject,
                    audiences=sorted(claimed | await _memberships(conn, database, principal.subject)),
                    claimed=sorted(claimed),
                    restricted=[table.id for table in tables if table.name in database.restricted],
                )
            listed = await apage(conn, wanted, place, items=items, max_bytes=MAX_PAGE_BYTES)
        response = answer(database, tables, request, listed)
        response.state.CopyFrom(self._server_state(state))
        return response

    def close(self) -> None:
        """Wait for the end of the dry run under way. Blocks."""
        self._turns.close()

    async def _database(self, conn: AsyncSession, state: DatabaseState) -> Database:
        """The database with its tables, read anew where its schema version or epoch has moved."""
        kept = self._databases.get(state.id)
        if kept is None or (kept.schema_version, kept.epoch) != (state.schema_version, state.epoch):
            try:
                kept = await aload_database(conn, state.name)
            except UnknownDatabaseError as error:
                raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, str(error)) from error
            self._databases[state.id] = kept
        return kept

    def _server_state(self, state: DatabaseState) -> position_pb2.ServerState:
        settled = position_pb2.Position(epoch=state.epoch, server_timestamp_ms=state.position, token=state.token)
        return position_pb2.ServerState(
            settled=settled,
            floor=state.floor_ms,
            schema_version=state.schema_version,
            server_time_ms=self._clock.now_ms(),
        )


async def _memberships(conn: AsyncSession, database: Database, principal: str) -> frozenset[str]:
    """The audiences that membership queries give a principal for reading at the head."""
    known = await arun(conn, principals.current(database.id, [principal]))
    if principal not in known:
        known = await arun(conn, principals.evaluate(database, [principal]))
    return known[principal].read


def _found(name: str, state: DatabaseState | None) -> DatabaseState:
    if state is None:
        raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}")
    return state


def _invalid(message: str) -> CallError:
    return CallError(errors_pb2.REASON_INVALID_REQUEST, message)


def register(server: grpc.aio.Server, servicer: ResolverServicer) -> None:
    """Add the service."""
    resolver_pb2_grpc.add_ConflictResolverServiceServicer_to_server(servicer, server)
