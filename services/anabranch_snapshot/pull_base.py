"""The verb of Pull from Parquet: whole tables of one moment, of a published base; Postgres has no part in it.

A pull waits for its turn like any other, and has one chunk ahead. It holds no transaction, so that nothing ends it but
its client, or a file that is gone or damaged; its client then begins anew, and is served from Postgres.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import pyarrow as pa

from anabranch.columnar.base_reader import Place
from anabranch.columnar.chunks import to_ipc
from anabranch.columnar.evidence import EvidenceError
from anabranch.runtime import metrics
from anabranch.runtime.errors import Failure
from anabranch.store.catalog import Database
from anabranch.v1 import errors_pb2, position_pb2, snapshot_pb2
from anabranch_snapshot.bases import Served
from anabranch_snapshot.pages import to_position
from anabranch_snapshot.pull import Wanted
from anabranch_snapshot.pull_responses import Response, in_parts, with_ipc
from anabranch_snapshot.pull_session import Turns
from anabranch_snapshot.resume_tokens import BasePlace, Progress, to_token

_Chunk = tuple[pa.RecordBatch, memoryview, Place]


async def pull_base(
    turns: Turns,
    batch_bytes: int,
    database: Database,
    wanted: Sequence[Wanted],
    served: Served,
    state: position_pb2.ServerState,
    broke: Callable[[EvidenceError], None],
) -> AsyncGenerator[bytes, None]:
    """Serialized responses: the chunks of ``wanted``, table by table. ``state`` goes into the first response; ``broke``
    is told of a file that is not what was proven.

    Raises:
        Failure: OVERLOADED; INVALID_TOKEN where the base is broken: what was sent of a table can't be gone on from.
    """
    async with turns.turn():
        first: position_pb2.ServerState | None = state
        try:
            for one in wanted:
                async for response, ipc in _table(turns, batch_bytes, database, one, served):
                    if first is not None:
                        response.state.CopyFrom(first)
                        first = None
                    yield with_ipc(response, ipc)
        except EvidenceError as error:
            broke(error)
            raise Failure(
                errors_pb2.REASON_INVALID_TOKEN,
                "the files that this pull was served from have changed: pull these tables from their start",
            ) from error


async def _table(
    turns: Turns, batch_bytes: int, database: Database, wanted: Wanted, served: Served
) -> AsyncIterator[Response]:
    table, position = wanted.table, served.found.position
    as_of = to_position(database, position, served.chain)
    progress = wanted.progress or Progress(None, 0, position)
    start = Place() if progress.base is None else progress.base.place
    rows_done = progress.rows_done
    batches = served.base.reader(table.name, batch_bytes).batches(start)

    def following() -> _Chunk | None:
        found = next(batches, None)
        return None if found is None else (found[0], to_ipc(found[0]), found[1])

    ahead = turns.run(following)
    try:
        while (chunk := await asyncio.shield(ahead)) is not None:
            # The next one is read while the client takes this one.
            ahead = turns.run(following)
            batch, ipc, place = chunk
            rows_done += batch.num_rows
            metrics.count("anabranch_pull_rows", batch.num_rows, database=database.name)
            metrics.count("anabranch_pull_bytes", len(ipc), database=database.name)
            progress = Progress(None, rows_done, progress.earliest, BasePlace(served.found.run_id, place))
            resume = to_token(database, table, progress)
            whole = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, as_of=as_of, resume=resume)
            for part in in_parts(whole, ipc, as_of):
                yield part
    finally:
        # The thread has the files; what it comes to is of no use any more.
        await asyncio.wait({ahead})
        if not ahead.cancelled():
            ahead.exception()
        batches.close()
    total = served.base.sum(table.name)
    sum_of = position_pb2.TableSum(table=table.name, count=total.count, hash=total.to_bytes())
    response = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, done=True, as_of=as_of, sum=sum_of)
    yield response, memoryview(b"")
