"""The verb of Pull from Postgres: whole tables of one moment, a chunk at a time, as fast as the client takes them.

States of a pull:

* *waiting* for its turn: at most ``pull_sessions`` read at once, at most ``pull_waiting`` wait.
* *reading*: it has a session with an open transaction. While the client takes one chunk, the next is read in a
  thread; that one is all that is ever ahead, so that memory doesn't grow with the table.
* *waiting for the drain*: where rows that it has read were written directly and are not in the log yet, a table ends
  when they are.
* *cut off*: the client has taken nothing for ``pull_stall_ms``, or the transaction is ``pull_max_ms`` old. The session
  and the turn end at once, so that a pull without a reader delays no other; the client gets the failure, with a
  reason, when it takes what was sent. It goes on from its resume tokens, in a new transaction.
  So it is, too, where somebody waits to alter one of its tables, or to truncate it (``yielding``).
* *ended*: by the last chunk, by the client's going away, or by an error. The session is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import structlog

from anabranch.columnar.chunks import to_ipc
from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database, UnknownDatabaseError
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.pull_reader import Only, PullReader, PullUnavailableError, TableAlteredError, key_of_last
from anabranch.store.log.reader import LoggedSum, Sums
from anabranch.v1 import change_pb2, errors_pb2, position_pb2, snapshot_pb2
from anabranch.values import Table
from anabranch.wire.audiences import digest
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.pages import to_position, to_sum
from anabranch_snapshot.pulls.altered import altered
from anabranch_snapshot.pulls.pull_responses import Response, in_parts, with_ipc
from anabranch_snapshot.pulls.pull_session import PullSession
from anabranch_snapshot.pulls.resume_tokens import PullProgress, to_token
from anabranch_snapshot.pulls.turns import Turns
from anabranch_snapshot.viewers import Viewer, Viewers

_log = structlog.get_logger()
_Chunk = tuple[pa.RecordBatch, memoryview]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A table, and how far it has come already (None: from its start). Of a restricted table: only rows of
    ``audiences``, as far as the caller sees them; all that it sees where there are none."""

    table: Table
    progress: PullProgress | None
    audiences: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Sight:
    """The view that a pull has of restricted tables: ``audiences`` are all that the viewer sees at the moment."""

    viewers: Viewers
    viewer: Viewer
    audiences: frozenset[str]

    def of(self, wanted: Wanted) -> frozenset[str]:
        """The audiences whose rows are sent of a table."""
        return self.audiences & wanted.audiences if wanted.audiences else self.audiences

    async def still_at(self, position: int) -> frozenset[str]:
        """The audiences that the viewer sees at a later position as well: of those that came since, no rows were read,
        and those that went are no longer seen there."""
        then = await self.viewers.memberships(self.viewer, position)
        return self.audiences & self.viewer.audiences(then.audiences)


async def pull(
    turns: Turns,
    settings: SnapshotSettings,
    database: Database,
    wanted: Sequence[Wanted],
    viewers: Viewers,
    viewer: Viewer | None,
    past: Sequence[int],
    began: Callable[[Sums, Mapping[int, bytes]], Awaitable[position_pb2.ServerState]],
) -> AsyncGenerator[bytes, None]:
    """Serialized responses: the chunks of ``wanted``, table by table. ``viewer`` is the caller, where there are
    restricted tables; its principal must have been learned. ``began`` is called with the moment and the chains
    that its history has at the positions ``past``; it checks both, and gives the state that goes into the first
    response.

    Raises:
        CallError: as ``began``; OVERLOADED, UNKNOWN_DATABASE, UNAVAILABLE; INVALID_TOKEN where the audiences of a
        restricted table are no longer those of its earlier parts.
        adbc_driver_manager.Error: Postgres refused a statement.
    """
    reader = PullReader(turns.source, database.id, database.schema_name)
    loop = asyncio.get_running_loop()
    session = PullSession(reader, turns, await turns.take())
    oldest = loop.call_later(
        settings.pull_max_ms / 1000, session.cut, "the pull took too long for one transaction: resume it"
    )
    try:
        principal = viewer.principal if viewer is not None and viewer.has_memberships else None
        queries = database.audience_rules.read.memberships if principal is not None else ()
        moment = await session.start(lambda: reader.begin([one.table for one in wanted], past, principal, queries))
        if reader.unreadable:
            raise altered(reader.unreadable)
        state: position_pb2.ServerState | None = await began(moment, reader.chains)
        sight = None if viewer is None else _Sight(viewers, viewer, viewers.now(viewer, reader.memberships))
        shown = SeenGroup(moment.head, moment.chain)
        sums = {row.table: row for row in moment.open_rows}
        for one in wanted:
            async with contextlib.aclosing(_table(session, reader, turns, database, one, sight, shown, sums)) as chunks:
                async for response, ipc in chunks:
                    if state is not None:
                        response.state.CopyFrom(state)
                        state = None
                    data = with_ipc(response, ipc)
                    with session.taken_within(settings.pull_stall_ms, len(data)):
                        yield data
                    del data
    except UnknownDatabaseError:
        raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {database.name!r}") from None
    except Exception as error:
        if (told := _told(session, error)) is not None:
            raise told from error
        raise
    finally:
        oldest.cancel()
        await session.close()


def _told(session: PullSession, error: Exception) -> Exception | None:
    """The error that the client gets in the place of one; None where it gets that one."""
    if session.cut_off is not None:
        return None if error is session.cut_off else session.cut_off
    if isinstance(error, TableAlteredError):
        return CallError(errors_pb2.REASON_UNAVAILABLE, "the tables have just been altered: call again")
    if isinstance(error, PullUnavailableError):
        _log.warning("pull without its database", detail=error)
        return CallError(errors_pb2.REASON_UNAVAILABLE, "the tables can't be read now: resume the pull")
    return None


async def _table(
    session: PullSession,
    reader: PullReader,
    turns: Turns,
    database: Database,
    wanted: Wanted,
    sight: _Sight | None,
    shown: SeenGroup,
    sums: Mapping[str, LoggedSum],
) -> AsyncGenerator[Response, None]:
    as_of = to_position(database, *shown)
    table, only, seen = wanted.table, None, b""
    if (audience := database.restricted.get(table.name)) is not None:
        assert sight is not None
        only = Only(audience, sight.of(wanted), sight.viewer.acting)
        seen = digest(only.audiences)
    before = wanted.progress or PullProgress(None, 0, shown.position, shown, seen)
    require_same(table, before, seen)
    key, rows_done = before.key, before.rows_done
    progress = replace(before, last=shown)

    ahead = session.start(lambda: _first(reader, table, key, only))
    while (chunk := await ahead) is not None:
        # The next one is read while the client takes this one.
        ahead = session.start(lambda: _following(reader))
        batch, ipc = chunk
        if not batch.num_rows:
            continue
        rows_done += batch.num_rows
        metrics.count("anabranch_pull_rows", batch.num_rows, database=database.name)
        metrics.count("anabranch_pull_bytes", len(ipc), database=database.name)
        progress = PullProgress(tuple(key_of_last(table, batch)), rows_done, progress.earliest, shown, seen)
        resume = to_token(database, table, progress)
        whole = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, as_of=as_of, resume=resume)
        for part in in_parts(whole, ipc, as_of):
            yield part
    if await turns.altered(table, database.changed_positions.get(table.name, 0)):
        # Its types were: its lock keeps the rest.
        raise altered([table.sql_name])
    done = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, done=True, as_of=as_of)
    newest = reader.undrained.get(table.id)
    if newest is not None:
        # The rows are of the moment, and some are ahead of its position: a reader is exact only once the log has them.
        # So this part ends there, and the last one, which has no rows, is of a position that does.
        resume = to_token(database, table, progress)
        here = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, as_of=as_of, resume=resume)
        yield here, memoryview(b"")
        drained = await turns.drained(database.id, table.id, newest, shown)
        done.as_of.CopyFrom(to_position(database, *drained))
        if sight is not None and only is not None:
            done.audiences.CopyFrom(to_message(await sight.still_at(drained.position)))
            done.without_sums = True
    elif sight is not None and only is not None:
        sent = only.audiences
        done.sums.extend(map(to_sum, await session.start(lambda: reader.audience_sums(table, sent))))
        done.audiences.CopyFrom(to_message(sight.audiences))
    elif (row := sums.get(table.name)) is not None:
        done.sum.CopyFrom(to_sum(row))
    yield done, memoryview(b"")


def _first(reader: PullReader, table: Table, key: Sequence[str] | None, only: Only | None) -> _Chunk | None:
    reader.open_table(table, key, only)
    return _following(reader)


def _following(reader: PullReader) -> _Chunk | None:
    batch = reader.next_batch()
    return None if batch is None else (batch, to_ipc(batch))


def require_same(table: Table, before: PullProgress, seen: bytes) -> None:
    """Check that a pull of a table goes on with the audiences that it began with. Raises CallError INVALID_TOKEN."""
    if before.seen != seen:
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN,
            f"other rows of {table.sql_name!r} are seen than when this pull began: pull that table from its start",
        )


def to_message(audiences: frozenset[str]) -> change_pb2.Audiences:
    """Audiences as a response says them."""
    return change_pb2.Audiences(values=sorted(audiences))
