"""The verb of Pull from Parquet: whole tables of one moment, of a published base; Postgres has no part in it.

A pull waits for its turn like any other, has one chunk ahead, and is cut off like any other, its turn given back, where
its client takes nothing for ``pull_stall_ms``. It holds no transaction, so that nothing else ends it but a file that is
gone or damaged; its client then begins anew, and is served from Postgres.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence

import pyarrow as pa

from anabranch.columnar.base_reader import RowPlace
from anabranch.columnar.chunks import to_ipc
from anabranch.columnar.evidence import EvidenceError
from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.v1 import errors_pb2, position_pb2, snapshot_pb2
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.pages import to_position
from anabranch_snapshot.pulls.bases import Served
from anabranch_snapshot.pulls.pull import Wanted
from anabranch_snapshot.pulls.pull_responses import Response, in_parts, with_ipc
from anabranch_snapshot.pulls.pull_session import PullSession
from anabranch_snapshot.pulls.resume_tokens import BasePlace, PullProgress, to_token
from anabranch_snapshot.pulls.turns import Turns

_Chunk = tuple[pa.RecordBatch, memoryview, RowPlace]


class _Rows:
    """The reader of a session: reads the rows of a base, one table after the other."""

    pid: int | None = None

    def __init__(self, served: Served, batch_bytes: int) -> None:
        self._served = served
        self._batch_bytes = batch_bytes
        self._batches: Generator[tuple[pa.RecordBatch, RowPlace], None, None] | None = None

    def first(self, table: str, after: RowPlace) -> _Chunk | None:
        """The first chunk of a table after a place. Raises EvidenceError."""
        self.close()
        self._batches = self._served.base.reader(table, self._batch_bytes).batches(after)
        return self.following()

    def following(self) -> _Chunk | None:
        """The next chunk; None where there is none. Raises EvidenceError."""
        found = None if self._batches is None else next(self._batches, None)
        return None if found is None else (found[0], to_ipc(found[0]), found[1])

    def close(self) -> None:
        """Close the files."""
        if self._batches is not None:
            self._batches.close()


async def pull_base(
    turns: Turns,
    settings: SnapshotSettings,
    database: Database,
    wanted: Sequence[Wanted],
    served: Served,
    state: position_pb2.ServerState,
    broke: Callable[[EvidenceError], Awaitable[None]],
) -> AsyncGenerator[bytes, None]:
    """Serialized responses: the chunks of ``wanted``, table by table. ``state`` goes into the first response; ``broke``
    is called with the error where a file is not as it was proven.

    Raises:
        CallError: OVERLOADED; UNAVAILABLE where the client was cut off; INVALID_TOKEN where the base is broken: a table
        that was sent in part can't be resumed.
    """
    rows = _Rows(served, settings.pull_batch_bytes)
    session = PullSession(rows, turns, await turns.take())
    first: position_pb2.ServerState | None = state
    try:
        for one in wanted:
            async with contextlib.aclosing(_table(session, rows, database, one, served)) as chunks:
                async for response, ipc in chunks:
                    if first is not None:
                        response.state.CopyFrom(first)
                        first = None
                    data = with_ipc(response, ipc)
                    with session.taken_within(settings.pull_stall_ms, len(data)):
                        yield data
                    del data
    except EvidenceError as error:
        await broke(error)
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN,
            "the files that this pull was served from have changed: pull these tables from their start",
        ) from error
    finally:
        await session.close()


async def _table(
    session: PullSession, rows: _Rows, database: Database, wanted: Wanted, served: Served
) -> AsyncGenerator[Response, None]:
    table, position = wanted.table, served.found.position
    as_of = to_position(database, position, served.chain)
    progress = wanted.progress or PullProgress(None, 0, position, BasePlace(served.found.run_id, RowPlace()))
    start = RowPlace() if progress.base is None else progress.base.place
    rows_done = progress.rows_done
    ahead = session.start(lambda: rows.first(table.name, start))
    while (chunk := await ahead) is not None:
        # The next one is read while the client takes this one.
        ahead = session.start(rows.following)
        batch, ipc, place = chunk
        rows_done += batch.num_rows
        metrics.count("anabranch_pull_rows", batch.num_rows, database=database.name)
        metrics.count("anabranch_pull_bytes", len(ipc), database=database.name)
        progress = PullProgress(None, rows_done, progress.earliest, BasePlace(served.found.run_id, place))
        resume = to_token(database, table, progress)
        whole = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, as_of=as_of, resume=resume)
        for part in in_parts(whole, ipc, as_of):
            yield part
    total = served.base.sum(table.name)
    sum_of = position_pb2.TableSum(table=table.name, count=total.count, hash=total.to_bytes())
    response = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, done=True, as_of=as_of, sum=sum_of)
    yield response, memoryview(b"")
