"""The verb of Pull: whole tables of one moment, a chunk at a time, as fast as the client takes them.

States of a pull:

* *waiting* for its turn: at most ``pull_sessions`` read at once, at most ``pull_waiting`` wait.
* *reading*: it has a session with an open transaction. While the client takes one chunk, the next is read in a
  thread; that one is all that is ever ahead, so that memory doesn't grow with the table.
* *cut off*: the client has taken nothing for ``pull_stall_ms``, or the transaction is ``pull_max_ms`` old. The session
  is ended at once, so that a transaction that nobody waits for holds nothing up; the client hears of it, with a
  reason, when it takes what was sent. It goes on from its resume tokens, in a new transaction.
* *ended*: by the last chunk, by the client's going away, or by an error. The session is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import structlog

from anabranch.columnar.chunks import to_ipc
from anabranch.runtime import metrics
from anabranch.runtime.errors import Failure
from anabranch.schema import Table
from anabranch.store.availability import is_unavailable
from anabranch.store.catalog import Database
from anabranch.store.engine import AsyncPool
from anabranch.store.log_reader import SumRow, Sums, UnknownDatabaseError
from anabranch.store.pull_reader import PullReader, PullSource, PullUnavailableError, end_session, key_of_last
from anabranch.v1 import errors_pb2, position_pb2, snapshot_pb2
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.pages import to_position
from anabranch_snapshot.resume_tokens import Progress, to_token

PART_BYTES = 3_500_000
"""The most of a chunk that one response carries; below the 4 MiB that a gRPC channel takes by default."""
_END_AGAIN_S = 0.5
_ARROW_IPC = bytes((snapshot_pb2.PullResponse.ARROW_IPC_FIELD_NUMBER << 3 | 2,))
_T = TypeVar("_T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A table, and how far it has come already (None: from its start)."""

    table: Table
    progress: Progress | None


class Turns:
    """Who may read, the threads that do, and where their sessions come from. ``sessions`` at once; ``waiting`` more may
    wait."""

    def __init__(self, source: PullSource, pool: AsyncPool, sessions: int, waiting: int) -> None:
        self.source = source
        self._pool = pool
        self._turns = asyncio.Semaphore(sessions)
        self._waiting = 0
        self._reading = 0
        self._most_waiting = waiting
        self._threads = ThreadPoolExecutor(sessions, thread_name_prefix="pull")

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the block.

        Raises:
            Failure: OVERLOADED.
        """
        if self._turns.locked() and self._waiting >= self._most_waiting:
            raise Failure(
                errors_pb2.REASON_OVERLOADED,
                f"{self._waiting} pulls wait for their turn: come again later",
                retry_after_ms="5000",
            )
        self._count(waiting=1)
        try:
            await self._turns.acquire()
        finally:
            self._count(waiting=-1)
        self._count(reading=1)
        try:
            yield
        finally:
            self._count(reading=-1)
            self._turns.release()

    def _count(self, *, waiting: int = 0, reading: int = 0) -> None:
        self._waiting += waiting
        self._reading += reading
        metrics.gauge("anabranch_pulls", self._waiting, state="waiting")
        metrics.gauge("anabranch_pulls", self._reading, state="reading")

    def run(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Do blocking work in one of the threads."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def end_session(self, pid: int) -> None:
        """End the session of a reader, if Postgres is to be had."""
        try:
            async with self._pool.connection() as conn:
                await end_session(conn, pid)
        except Exception as error:
            if not is_unavailable(error):
                raise
            _log.warning("a pull's session can't be ended now", error=type(error).__name__, detail=str(error))

    def close(self) -> None:
        """End the threads, and the session that is kept."""
        self._threads.shutdown(wait=False)
        self.source.close()


class Session:
    """One pull's reader, at most one call of it under way at a time, and its end from outside."""

    def __init__(self, reader: PullReader, turns: Turns) -> None:
        self._reader = reader
        self._turns = turns
        self._under_way: asyncio.Future[object] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.cut_off: Failure | None = None

    def start(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Have the reader do something; nothing else is under way. Raises the Failure with which it was cut off.

        Who waits for it may be cancelled; the thread goes on all the same, and the reader must not be closed under it.
        """
        if self.cut_off is not None:
            raise self.cut_off
        future = self._turns.run(work)
        self._under_way = future  # type: ignore[assignment]
        return asyncio.shield(future)

    def cut(self, message: str) -> None:
        """End it because of its client."""
        if self._ending is None:
            _log.warning("pull cut off", detail=message)
            self.cut_off = Failure(errors_pb2.REASON_UNAVAILABLE, message)
            self._ending = asyncio.create_task(self._end())

    async def close(self) -> None:
        """End it; waits for the end."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        while self._under_way is not None and not self._under_way.done():
            # What it does ends by its own timeouts, should this not be possible now.
            if self._reader.pid is not None:
                await self._turns.end_session(self._reader.pid)
            await asyncio.wait({self._under_way}, timeout=_END_AGAIN_S)
        if self._under_way is not None and not self._under_way.cancelled():
            # Whoever started it may be gone; what it came to is of no use any more.
            self._under_way.exception()
        await self._turns.run(self._reader.close)


async def pull(
    turns: Turns,
    settings: SnapshotSettings,
    database: Database,
    wanted: Sequence[Wanted],
    began: Callable[[Sums], position_pb2.ServerState],
) -> AsyncIterator[bytes]:
    """Serialized responses: the chunks of ``wanted``, table by table. ``began`` is told of the moment, checks it, and
    gives the state that goes into the first response.

    Raises:
        Failure: what ``began`` raises; OVERLOADED, UNKNOWN_DATABASE, UNAVAILABLE.
        adbc_driver_manager.Error: what Postgres refused.
    """
    reader = PullReader(turns.source, database.id, database.schema_name)
    loop = asyncio.get_running_loop()
    async with turns.turn():
        session = Session(reader, turns)
        oldest = loop.call_later(
            settings.pull_max_ms / 1000, session.cut, "the pull took too long for one transaction: resume it"
        )
        try:
            moment = await session.start(lambda: reader.begin([one.table for one in wanted]))
            state: position_pb2.ServerState | None = began(moment)
            as_of = to_position(database, moment.head, moment.chain)
            sums = {row.table: row for row in moment.rows}
            for one in wanted:
                async for response, ipc in _table(session, reader, database, one, as_of, sums):
                    if state is not None:
                        response.state.CopyFrom(state)
                        state = None
                    stalled = loop.call_later(
                        settings.pull_stall_ms / 1000,
                        session.cut,
                        f"nothing was taken for {settings.pull_stall_ms} ms: resume the pull",
                    )
                    try:
                        yield _with_ipc(response, ipc)
                    finally:
                        stalled.cancel()
                    if session.cut_off is not None:
                        raise session.cut_off
        except UnknownDatabaseError:
            raise Failure(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {database.name!r}") from None
        except Exception as error:
            if session.cut_off is not None and error is not session.cut_off:
                raise session.cut_off from error
            if isinstance(error, PullUnavailableError):
                _log.warning("pull without its database", detail=str(error))
                raise Failure(errors_pb2.REASON_UNAVAILABLE, "the tables can't be read now: resume the pull") from error
            raise
        finally:
            oldest.cancel()
            await session.close()


async def _table(
    session: Session,
    reader: PullReader,
    database: Database,
    wanted: Wanted,
    as_of: position_pb2.Position,
    sums: Mapping[str, SumRow],
) -> AsyncIterator[tuple[snapshot_pb2.PullResponse, memoryview]]:
    table, progress = wanted.table, wanted.progress or Progress(None, 0, as_of.server_timestamp_ms)
    key, rows_done = progress.key, progress.rows_done

    def first() -> tuple[pa.RecordBatch, memoryview] | None:
        reader.open_table(table, key)
        return following()

    def following() -> tuple[pa.RecordBatch, memoryview] | None:
        batch = reader.next_batch()
        return None if batch is None else (batch, to_ipc(batch))

    ahead = session.start(first)
    while (chunk := await ahead) is not None:
        # The next one is read while the client takes this one.
        ahead = session.start(following)
        batch, ipc = chunk
        if not batch.num_rows:
            continue
        rows_done += batch.num_rows
        metrics.count("anabranch_pull_rows", batch.num_rows, database=database.name)
        progress = Progress(tuple(key_of_last(table, batch)), rows_done, progress.earliest)
        last = range(0, len(ipc), PART_BYTES)[-1]
        for start in range(0, last, PART_BYTES):
            part = snapshot_pb2.PullResponse(table=table.name, arrow_ipc_incomplete=True, as_of=as_of)
            yield part, ipc[start : start + PART_BYTES]
        resume = to_token(database, table, progress)
        yield snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, as_of=as_of, resume=resume), ipc[last:]
    row = sums.get(table.name)
    total = None if row is None else position_pb2.TableSum(table=row.table, count=row.count, hash=row.hash)
    response = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, done=True, as_of=as_of, sum=total)
    yield response, memoryview(b"")


def _with_ipc(response: snapshot_pb2.PullResponse, ipc: memoryview) -> bytes:
    """The response with its field arrow_ipc, which so is copied once and not three times."""
    if not ipc:
        return response.SerializeToString()
    return b"".join((response.SerializeToString(), _ARROW_IPC, _varint(len(ipc)), ipc))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
