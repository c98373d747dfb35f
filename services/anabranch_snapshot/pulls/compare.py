"""The verb of Compare: one table at one moment, by key ranges, for a node that looks for the rows in which it differs.

States of a comparison:

* *waiting* for its turn, as a pull does, in a queue of its own: it costs what the pull of its table costs.
* *summing*: it has a session with an open transaction, and a thread reads every row for the sums of the finest ranges
  (2**16 of them, whatever the table's size). The first response was sent before, so that the node comes to the moment's
  position meanwhile.
* *asked*: it answers one request after the other, ``MOST_REQUESTS`` at most. Sums come from memory; rows by another
  read of the table, of which a few chunks are in memory. Of a restricted table there are but the rows that the caller
  sees; their sum comes with the first sums.
* *cut off*: the client has taken or asked nothing for ``pull_stall_ms``, the transaction is ``pull_max_ms`` old, or
  somebody waits to alter the table.
* *ended*: by the client's closing its side, by its going away, or by an error. The session is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

from anabranch.ranges import FAN_OUT, FINEST_BITS, WHOLE, KeyRange, RangeSum, RangeSums
from anabranch.runtime.errors import CallError
from anabranch.store.capture.rows import UndecodableError
from anabranch.store.capture.undrained import UndrainedError
from anabranch.store.catalog.databases import Database, UnknownDatabaseError
from anabranch.store.catalog.sums import sum_to_bytes
from anabranch.store.cells.binary_cells import Row
from anabranch.store.log.moment import MomentReader
from anabranch.store.log.reader import Sums
from anabranch.v1 import errors_pb2, position_pb2, snapshot_pb2, value_pb2
from anabranch.values import Table
from anabranch.values.messages import column_writer
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.pages import to_position, to_sum
from anabranch_snapshot.pulls.altered import altered
from anabranch_snapshot.pulls.pull_session import PullSession
from anabranch_snapshot.pulls.turns import Turns
from anabranch_snapshot.viewers import Viewer, Viewers

MOST_REQUESTS = 8
"""After the first one. A node needs two: one to split, one to read."""
PART_BYTES = 1_000_000
"""How many bytes of rows one response carries at most."""


async def compare(
    turns: Turns,
    settings: SnapshotSettings,
    database: Database,
    table: Table,
    viewers: Viewers,
    viewer: Viewer | None,
    requests: AsyncIterator[snapshot_pb2.CompareRequest],
    past: Sequence[int],
    began: Callable[[Sums, Mapping[int, bytes]], Awaitable[position_pb2.ServerState]],
) -> AsyncGenerator[snapshot_pb2.CompareResponse, None]:
    """The responses. ``viewer`` is the caller, where there are restricted tables; its principal must have been learned.
    ``requests`` are those after the first one; ``began`` is called with the moment and the chains
    that its history has at the positions ``past``; it checks both, and gives the state that goes into the first
    response.

    Raises:
        CallError: as ``began``; OVERLOADED, UNKNOWN_DATABASE, UNAVAILABLE, TABLE_CHANGED, INVALID_REQUEST.
        psycopg.Error: Postgres refused a statement.
    """
    reader = MomentReader(settings.postgres_url.get_secret_value(), turns.source.options, database, table)
    loop = asyncio.get_running_loop()
    session = PullSession(reader, turns, await turns.take())
    oldest = loop.call_later(
        settings.pull_max_ms / 1000, session.cut, "the comparison took too long for one transaction: begin anew"
    )
    try:
        principal = viewer.principal if viewer is not None and viewer.has_memberships else None
        moment = await session.start(lambda: reader.begin(past, principal))
        if reader.unreadable:
            raise altered([table.sql_name])
        state = await began(moment, reader.chains)
        if viewer is not None:
            reader.seen = viewers.now(viewer, reader.memberships)
        sum_ = next((to_sum(row) for row in moment.open_rows if row.table == table.name), None)
        as_of = to_position(database, moment.head, moment.chain)
        first = snapshot_pb2.CompareResponse(as_of=as_of, sum=sum_, state=state)
        answers = _answers(session, reader, settings.pull_stall_ms, table, first, requests)
        async with contextlib.aclosing(answers):
            async for response in answers:
                with session.taken_within(settings.pull_stall_ms, response.ByteSize()):
                    yield response
    except UnknownDatabaseError:
        raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {database.name!r}") from None
    except UndrainedError as error:
        raise CallError(errors_pb2.REASON_UNAVAILABLE, f"{error}: compare later", retry_after_ms="1000") from None
    except UndecodableError as error:
        raise CallError(errors_pb2.REASON_TABLE_CHANGED, str(error)) from None
    except Exception as error:
        if session.cut_off is not None and error is not session.cut_off:
            raise session.cut_off from error
        raise
    finally:
        oldest.cancel()
        await session.close()


async def _answers(
    session: PullSession,
    reader: MomentReader,
    stall_ms: int,
    table: Table,
    first: snapshot_pb2.CompareResponse,
    requests: AsyncIterator[snapshot_pb2.CompareRequest],
) -> AsyncGenerator[snapshot_pb2.CompareResponse, None]:
    yield first
    sums = await session.start(reader.range_sums)
    response = snapshot_pb2.CompareResponse(sums=_parts(sums, [WHOLE]), done=True)
    if not first.HasField("sum"):
        # Rows of a restricted table that the caller sees are summed up nowhere else.
        seen = sums.of(WHOLE)
        total = position_pb2.TableSum(table=table.name, count=seen.rows, hash=sum_to_bytes(seen.hash))
        response.sum.CopyFrom(total)
    yield response
    async with contextlib.aclosing(_in_time(session, stall_ms, requests)) as asked:
        async for request in asked:
            split, read = _ranges(request.split, FINEST_BITS - 1), _ranges(request.read, FINEST_BITS)
            for one in split:
                yield snapshot_pb2.CompareResponse(sums=_parts(sums, [one]))
            if read:
                async with contextlib.aclosing(_rows(session, reader, table, read)) as rows:
                    async for response in rows:
                        yield response
            yield snapshot_pb2.CompareResponse(done=True)


async def _in_time(
    session: PullSession, stall_ms: int, requests: AsyncIterator[snapshot_pb2.CompareRequest]
) -> AsyncGenerator[snapshot_pb2.CompareRequest, None]:
    """The requests; the comparison is cut off where one is waited for too long.

    Raises:
        CallError: the comparison was cut off; INVALID_REQUEST, where there are too many.
    """
    count = 0
    while True:
        silence = f"nothing was asked for {stall_ms / 1000:g} s: begin the comparison anew"
        with session.taken_within(stall_ms, silence=silence):
            request = await anext(requests, None)
        if request is None:
            return
        count += 1
        if count > MOST_REQUESTS:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, f"more than {MOST_REQUESTS} requests: begin anew")
        yield request


def _ranges(wanted: Sequence[snapshot_pb2.KeyRange], most_bits: int) -> list[KeyRange]:
    """Raises CallError: INVALID_REQUEST."""
    ranges = [KeyRange(one.bits, one.prefix) for one in wanted]
    for one in ranges:
        if not one.is_valid or one.bits > most_bits:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, f"there is no key range of {one.bits} bits {one.prefix}")
    if len(set(ranges)) != len(ranges) or len(ranges) > FAN_OUT * FAN_OUT:
        raise CallError(errors_pb2.REASON_INVALID_REQUEST, "a request names a key range twice")
    return ranges


def _parts(sums: RangeSums, ranges: Sequence[KeyRange]) -> Iterator[snapshot_pb2.RangeSum]:
    for one in ranges:
        for part, found in sums.parts(one).items():
            yield _to_message(part, found)


def _to_message(one: KeyRange, found: RangeSum) -> snapshot_pb2.RangeSum:
    return snapshot_pb2.RangeSum(
        range=snapshot_pb2.KeyRange(bits=one.bits, prefix=one.prefix), count=found.rows, hash=sum_to_bytes(found.hash)
    )


async def _rows(
    session: PullSession, reader: MomentReader, table: Table, ranges: Sequence[KeyRange]
) -> AsyncGenerator[snapshot_pb2.CompareResponse, None]:
    writers = [column_writer(column) for column in table.columns]
    found = reader.rows_in(ranges)

    def following() -> list[Row] | None:
        return next(found, None)

    waiting: list[bytes] = []
    size = 0
    while (rows := await session.start(following)) is not None:
        for row in rows:
            values = [write(cell) for write, cell in zip(writers, row, strict=True)]
            waiting.append(value_pb2.Row(values=values).SerializeToString())
            size += len(waiting[-1])
            while size > PART_BYTES:
                # The last one may be larger than any message.
                cut = len(waiting[-1]) - max(0, size - PART_BYTES)
                head, rest = waiting[-1][:cut], waiting[-1][cut:]
                yield snapshot_pb2.CompareResponse(rows=[*waiting[:-1], head], row_incomplete=True)
                waiting, size = [rest], len(rest)
    if waiting:
        yield snapshot_pb2.CompareResponse(rows=waiting)
