"""Schema changes in the log: each comes with its group, to everybody, and pages without one cost what they did."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.integration.snapshot.audience_writer import SECRET, AudienceWriter, viewer
from tests.integration.snapshot.changing import change_of, commit_change
from ulid import ULID

from anabranch.store.log.reader import log_pool, read_stretch
from anabranch.store.log.reader_statements import MOST_CHANGES
from anabranch.store.log.stretch import after
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.v1 import change_pb2, snapshot_pb2
from anabranch.wire.effects import EffectBuilder


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {"ANABRANCH_JWT_HS256_SECRET": SECRET}


def rows(count: int, size: int = 20) -> list[tuple[Any, ...]]:
    return [(str(ULID()), f"title {i}", i, bytes([i % 256]) * size) for i in range(count)]


def inserts(writer: LogWriter, count: int, size: int = 20) -> list[Logged]:
    builder = EffectBuilder(writer.table("item"))
    return [Logged("item", [(row[0], builder.insert(row)) for row in rows(count, size)])]


def told(groups: list[change_pb2.LoggedGroup]) -> list[tuple[int, int, int]]:
    """Each group: its position, the version that it brings (0: none), and how many effects."""
    return [
        (
            group.position,
            snapshot_pb2.SchemaChange.FromString(group.schema_change).version,
            sum(len(batch.effects) for batch in group.batches),
        )
        for group in groups
    ]


@pytest.mark.slow
def test_a_group_begins_with_its_schema_change_also_where_it_has_nothing_else(
    writer: LogWriter, reader: Reader
) -> None:
    first = writer.insert("item", rows(2))
    alone = commit_change(writer, change_of("item"))
    second = writer.insert("item", rows(1))
    mixed = commit_change(writer, change_of("item"), inserts(writer, 3))
    last = commit_change(writer, change_of("item"))
    answer = reader.get()
    expected = [(first, 0, 2), (alone, 2, 0), (second, 0, 1), (mixed, 3, 3), (last, 4, 0)]
    assert told(list(answer.page.groups)) == expected
    assert not any(group.incomplete for group in answer.page.groups)
    assert answer.page.reached == answer.state.settled
    assert answer.page.reached.server_timestamp_ms == last
    for number in range(len(expected)):
        assert told(list(reader.get(expected[number][0]).page.groups)) == expected[number + 1 :]


def test_a_change_that_leaves_rows_as_they_are_and_their_sum_not_brings_the_sum(
    writer: LogWriter, reader: Reader
) -> None:
    writer.insert("item", rows(2))
    commit_change(writer, change_of("item"), [Logged("item")])
    *_, group = reader.get().page.groups
    assert [(one.table, one.count) for one in group.sums] == [("item", 2)]


@pytest.mark.parametrize("max_bytes", [1, 3_000, 20_000, 200_000])
@pytest.mark.parametrize("size", [0, 2_000, 50_000])
def test_pages_that_split_anywhere_lose_no_schema_change(
    writer: LogWriter, reader: Reader, max_bytes: int, size: int
) -> None:
    written = [
        commit_change(writer, change_of("item", size)),
        commit_change(writer, change_of("item", size), inserts(writer, 60, 200)),
        writer.insert("item", rows(20, 200)),
        commit_change(writer, change_of("item", size)),
        commit_change(writer, change_of("item", size)),
        writer.insert("item", rows(1, 10_000)),
        commit_change(writer, change_of("item", size), inserts(writer, 1, 30_000)),
    ]
    pages = list(reader.pages(0, max_bytes))
    whole = whole_groups(pages)
    assert told(whole) == list(zip(written, [2, 3, 0, 4, 5, 0, 6], [0, 60, 20, 0, 0, 1, 1], strict=True))
    assert whole == whole_groups(reader.pages())
    assert all(page.ByteSize() < max(max_bytes, 1024) + size + 2_048 for page in pages)
    reached = [page.reached.server_timestamp_ms for page in pages]
    assert reached == sorted(reached)
    # All that a reader has got of whole groups counts, and so it may end there.
    complete = 0
    for page in pages:
        complete = max([complete, *(group.position for group in page.groups if not group.incomplete)])
        assert page.reached.server_timestamp_ms == complete
        if complete:
            assert page.reached.token


def test_more_changes_than_a_page_has_all_come(writer: LogWriter, reader: Reader) -> None:
    written = [commit_change(writer, change_of("item")) for _ in range(MOST_CHANGES + 10)]
    pages = list(reader.pages())
    assert [position for position, *_ in told(whole_groups(pages))] == written
    assert len(pages) == 2


def test_live_subscribers_get_it(place: Any, writer: LogWriter, reader: Reader) -> None:
    start = writer.insert("item", rows(1))
    streams = [reader.subscribe(start) for _ in range(3)]
    firsts = [next(stream) for stream in streams]
    assert not any(first.page.groups for first in firsts)
    alone = commit_change(writer, change_of("item"))
    last = writer.insert("item", rows(1))
    for stream in streams:
        got = []
        for response in stream:
            got += list(response.page.groups)
            if response.state.settled.server_timestamp_ms >= last:
                break
        assert told(got) == [(alone, 2, 0), (last, 0, 1)]
        stream.cancel()


def test_readers_of_restricted_tables_get_it_whatever_they_see(restricted: Any, jobs: AudienceWriter) -> None:
    first = jobs.put(("1", "a", "one"))
    alone = commit_change(jobs, change_of("job"))
    second = jobs.put(("2", "b", "two"))
    last = commit_change(jobs, change_of("job"))
    seen = {name: viewer(restricted, name, name) for name in ("a", "b", "c")}
    assert told(list(seen["a"].get().page.groups)) == [(first, 0, 1), (alone, 2, 0), (last, 3, 0)]
    assert told(list(seen["b"].get().page.groups)) == [(alone, 2, 0), (second, 0, 1), (last, 3, 0)]
    answer = seen["c"].get()
    assert told(list(answer.page.groups)) == [(alone, 2, 0), (last, 3, 0)]
    assert answer.page.reached.server_timestamp_ms == last
    assert told(whole_groups(seen["c"].pages(0, 1))) == [(alone, 2, 0), (last, 3, 0)]


def test_a_value_that_lost_says_why(writer: LogWriter, reader: Reader) -> None:
    title = b"\x22\x01x"
    position = writer.commit([Logged("item", losers=[("k", "title", title), ("k", "n", title)])])
    writer.conn.execute("update anabranch.conflicts set cause = 1 where position = %s and ordinal = 1", (position,))
    ((group,),) = [page.groups for page in reader.pages()]
    causes = [loser.cause for loser in group.batches[0].losers]
    assert causes == [change_pb2.LOSS_CAUSE_UNSPECIFIED, change_pb2.LOSS_CAUSE_COLUMN_DROPPED]


def test_pages_without_a_change_cost_no_statement_more(
    place: Any, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = commit_change(writer, change_of("item"))
    position = writer.insert("item", rows(3))
    last = commit_change(writer, change_of("item"), inserts(writer, 2))
    counted: list[bytes] = []
    execute = psycopg.AsyncRawCursor.execute

    async def counting(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        counted.append(query)
        return await execute(self, query, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncRawCursor, "execute", counting)

    async def read(start: int, up_to: int) -> int:
        pool = log_pool(place.rig.url, max_size=1, statement_timeout_ms=5_000)
        async with pool, pool.connection() as conn:
            counted.clear()
            await read_stretch(conn, writer.database.id, start, after(start), max_bytes=1 << 20, up_to=up_to)
            return len(counted)

    assert asyncio.run(read(first, position)) == 2
    assert asyncio.run(read(first, last)) == 3
    assert asyncio.run(read(0, last)) == 3
    assert asyncio.run(read(last, last)) == 2
