"""The verb of Pull from Parquet: whole tables of one moment, of a published base; Postgres's tables have no part in it.
Of a restricted table the rows are picked that the caller sees there (``seen_rows``); nobody has summed these up.

A pull waits for its turn like any other, has one chunk ahead, and is cut off like any other, its turn given back, where
its client takes nothing for ``pull_stall_ms``. It holds no transaction, so that nothing else ends it but a file that is
gone or damaged; its client then begins anew, and is served from Postgres. One of restricted tables also ends with the
session in which expressions are evaluated, and after ``pull_max_ms``; its client goes on from its resume tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from anabranch.columnar.base_reader import RowPlace
from anabranch.columnar.evidence import EvidenceError
from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.v1 import errors_pb2, position_pb2, snapshot_pb2
from anabranch.wire.audiences import digest
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.pages import to_position
from anabranch_snapshot.pulls.base_rows import BaseRows
from anabranch_snapshot.pulls.bases import Served
from anabranch_snapshot.pulls.pull import Wanted, require_same, to_message
from anabranch_snapshot.pulls.pull_responses import Response, in_parts, with_ipc
from anabranch_snapshot.pulls.pull_session import PullSession
from anabranch_snapshot.pulls.resume_tokens import BasePlace, PullProgress, to_token
from anabranch_snapshot.pulls.turns import Turns


async def pull_base(
    turns: Turns,
    settings: SnapshotSettings,
    database: Database,
    wanted: Sequence[Wanted],
    served: Served,
    seen: frozenset[str],
    state: position_pb2.ServerState,
    require_still: Callable[[], Awaitable[None]],
    broke: Callable[[EvidenceError], Awaitable[None]],
) -> AsyncGenerator[bytes, None]:
    """Serialized responses: the chunks of ``wanted``, table by table. ``seen``: the audiences that the caller sees at
    the base's position; ``require_still`` checks them once more when it is the pull's turn; ``state`` goes into the
    first response; ``broke`` is called with the error where a file is not as it was proven.

    Raises:
        CallError: OVERLOADED; UNAVAILABLE where the client was cut off, or where the caller no longer sees what it saw
        when it called; INVALID_TOKEN where the base is broken, a table
        that was sent in part can't be resumed; and where the audiences of a restricted table are no longer those of its
        earlier parts.
        psycopg.Error: an audience expression can't be evaluated.
    """
    rows = BaseRows(database, served, seen, turns.source)
    session = PullSession(rows, turns, await turns.take())
    first: position_pb2.ServerState | None = state
    oldest: asyncio.TimerHandle | None = None
    try:
        if any(one.table.name in database.restricted for one in wanted):
            await require_still()
            # Audiences may be lost meanwhile: no later rows are sent than from the tables.
            text = "the pull took too long for one view of restricted tables: resume it"
            oldest = asyncio.get_running_loop().call_later(settings.pull_max_ms / 1000, session.cut, text)
        for one in wanted:
            async with contextlib.aclosing(_table(session, rows, database, one, served, seen)) as chunks:
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
    except Exception as error:
        if session.cut_off is not None and error is not session.cut_off:
            raise session.cut_off from error
        raise
    finally:
        if oldest is not None:
            oldest.cancel()
        await session.close()


async def _table(
    session: PullSession, rows: BaseRows, database: Database, wanted: Wanted, served: Served, seen: frozenset[str]
) -> AsyncGenerator[Response, None]:
    table, position, run_id = wanted.table, served.found.position, served.found.run_id
    restricted = table.name in database.restricted
    of_seen = digest(seen) if restricted else b""
    as_of = to_position(database, position, served.chain)
    progress = wanted.progress or PullProgress(None, 0, position, BasePlace(run_id, RowPlace()), of_seen)
    require_same(table, progress, of_seen)
    start = RowPlace() if progress.base is None else progress.base.place
    rows_done = progress.rows_done
    ahead = session.start(lambda: rows.first(table, start))
    while (chunk := await ahead) is not None:
        # The next one is read while the client takes this one.
        ahead = session.start(rows.following)
        batch, ipc, place = chunk
        if not batch.num_rows:
            continue
        rows_done += batch.num_rows
        metrics.count("anabranch_pull_rows", batch.num_rows, database=database.name)
        metrics.count("anabranch_pull_bytes", len(ipc), database=database.name)
        progress = PullProgress(None, rows_done, progress.earliest, BasePlace(run_id, place), of_seen)
        resume = to_token(database, table, progress)
        whole = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, as_of=as_of, resume=resume)
        for part in in_parts(whole, ipc, as_of):
            yield part
    response = snapshot_pb2.PullResponse(table=table.name, rows_done=rows_done, done=True, as_of=as_of)
    if restricted:
        response.audiences.CopyFrom(to_message(seen))
        response.without_sums = True
    else:
        total = served.base.sum(table.name)
        response.sum.CopyFrom(position_pb2.TableSum(table=table.name, count=total.count, hash=total.to_bytes()))
    yield response, memoryview(b"")
