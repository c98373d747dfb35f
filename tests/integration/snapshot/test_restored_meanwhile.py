"""Promise 9 inside a call: the server is restored after a call was let in, or between the parts of a pull or of a
group, and nobody is handed rows of two histories, whatever the client does about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.pulled import Pulled, rows
from tests.integration.snapshot.test_compare import Comparison

from anabranch.store.session.engine import connect
from anabranch.testkit.base_writer import BaseWriter
from anabranch.testkit.ingest_rig import FailedCallError, failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.waiting import until

ADMITTING = """select count(*) from pg_stat_activity
               where wait_event_type = 'Lock' and query like '%q(database_id, node_id)%'
               and datname = current_database()"""


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_PULL_SESSIONS": "1",
        "ANABRANCH_COMPARE_SESSIONS": "1",
        "ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024),
        "ANABRANCH_BASE_PROOF_WAIT_MS": "60000",
    }


def restored(place: Any, lost: int) -> None:
    """The server is an earlier one that has gone on: where it had a group it has another one now."""
    changed = place.conn.execute(
        """update anabranch.groups set chain = sha256(chain)::bytea
           where position >= %s and database_id = (select id from anabranch.databases where name = %s)""",
        (lost, place.name),
    )
    assert changed.rowcount


def epoch(place: Any) -> str:
    (found,) = place.conn.execute("select epoch from anabranch.databases where name = %s", (place.name,)).fetchone()
    return str(found)


def reason(call: Any) -> str:
    """Why a stream of responses ends, of which none comes."""
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    return str(failed(caught.value).reason)


@contextmanager
def held_at_its_node(place: Any) -> Iterator[Callable[..., None]]:
    """A call that comes is let in as far as its position goes, and waits for its node to be looked up. What is given
    waits for that, with a call of a thread under way."""
    with connect(place.rig.url, application_name="test") as other:
        other.execute(b"lock table anabranch.nodes in access exclusive mode")
        admitting = "the call is not let in"
        yield lambda call=None: until(
            lambda: place.conn.execute(ADMITTING).fetchone() == (1,), 10, admitting, beside=call
        )


@contextmanager
def turn_taken(place: Any, writer: LogWriter, call: str = "pull") -> Iterator[None]:
    """Another call of the kind has the only turn."""
    writer.insert("item", rows(200, 50_000))
    other = place.make_reader()
    comparison = Comparison(other, "item") if call == "compare" else None
    stream = other.pull() if comparison is None else comparison.call
    next(stream)
    yield
    stream.cancel()
    if comparison is not None:
        comparison.asked.put(None)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["pull", "compare"])
def test_a_call_that_waited_for_its_turn_gives_no_row_of_a_history_that_lost_what_its_node_saw(
    place: Any, writer: LogWriter, reader: Reader, call: str
) -> None:
    seen = writer.insert("item", rows(3))
    reader.seen = reader.get().state.settled
    before = epoch(place)
    with turn_taken(place, writer, call):
        comparison = Comparison(reader, "item") if call == "compare" else None
        stream = reader.pull() if comparison is None else comparison.call
        turns = "anabranch_pulls" if comparison is None else "anabranch_comparisons"
        until(lambda: place.rig.metric(turns, state="waiting") == 1, 10)
        restored(place, seen)
    try:
        assert reason(stream) == "HISTORY_REWOUND"
    finally:
        if comparison is not None:
            comparison.asked.put(None)
    assert epoch(place) != before


@pytest.mark.slow
def test_a_node_whose_position_the_moment_has_is_served_after_it_waited(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    writer.insert("item", rows(3))
    reader.seen = reader.get().state.settled
    with turn_taken(place, writer):
        stream = reader.pull()
        until(lambda: place.rig.metric("anabranch_pulls", state="waiting") == 1, 10)
        restored(place, writer.insert("item", rows(1)))
    assert Pulled().all(stream).done["item"].rows_done == 204


@pytest.mark.slow
def test_a_pull_does_not_go_on_in_a_history_that_lacks_what_it_has_brought(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    """The node has seen nothing yet, as in a first pull, and presents nothing."""
    writer.insert("item", rows(200, 50_000))
    kept = writer.insert("item", rows(1))
    stream = reader.pull()
    first = next(stream)
    stream.cancel()
    assert not first.done
    restored(place, kept)
    assert reason(reader.pull([("item", first.resume)])) == "INVALID_TOKEN"
    assert Pulled().all(reader.pull()).done["item"].rows_done == 201


@pytest.mark.slow
def test_what_a_later_part_has_shown_counts_as_much_as_the_first_one(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    writer.insert("item", rows(200, 50_000))
    stream = reader.pull()
    first = next(stream)
    stream.cancel()
    lost = writer.insert("item", rows(1))
    stream = reader.pull([("item", first.resume)])
    second = next(stream)
    stream.cancel()
    assert second.as_of.server_timestamp_ms == lost
    assert not second.done
    restored(place, lost)
    assert reason(reader.pull([("item", second.resume)])) == "INVALID_TOKEN"
    # The history has what the first part was of.
    assert next(reader.pull([("item", first.resume)])).rows_done > first.rows_done


@pytest.mark.slow
def test_rows_ahead_of_the_log_are_not_said_to_be_in_another_histories_log(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    head = writer.insert("item", rows(3))
    with connect(place.rig.url, application_name="test", autocommit=True) as direct:
        direct.execute(f"insert into {place.schema}.item values ('direct', 'not in the log yet', 1, '')".encode())
    stream = reader.pull()
    chunk = next(stream)
    waiting = next(stream)
    assert (chunk.rows_done, waiting.rows_done, waiting.done) == (4, 4, False)
    with place.conn.transaction():
        restored(place, head)
        place.conn.execute("delete from anabranch.captured where database_id = %s", (writer.database.id,))
    assert reason(stream) == "UNAVAILABLE"
    assert reason(reader.pull([("item", waiting.resume)])) == "INVALID_TOKEN"


def test_a_page_is_of_the_history_that_the_call_was_let_in_for(place: Any, writer: LogWriter, reader: Reader) -> None:
    """The group after which the node asks is in both; that it has seen more is known from a verdict."""
    common = writer.insert("item", rows(1))
    lost = writer.insert("item", rows(1))
    reader.seen = reader.get().state.settled
    again = place.make_reader()
    again.seen = reader.seen
    with ThreadPoolExecutor(1) as calls:
        with held_at_its_node(place) as waits:
            answer = calls.submit(again.get, common)
            waits(answer)
            restored(place, lost)
            writer.insert("item", rows(1))
        with pytest.raises(FailedCallError) as caught:
            answer.result(30)
    assert caught.value.reason == "UNAVAILABLE"
    with pytest.raises(FailedCallError) as caught:
        again.get(common)
    assert caught.value.reason == "HISTORY_REWOUND"


def test_a_subscription_begins_in_the_history_that_it_was_let_in_for(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    common = writer.insert("item", rows(1))
    lost = writer.insert("item", rows(1))
    reader.seen = reader.get().state.settled
    again = place.make_reader()
    again.seen = reader.seen
    with held_at_its_node(place) as waits:
        stream = again.subscribe(common)
        waits()
        restored(place, lost)
        writer.insert("item", rows(1))
    assert reason(stream) == "UNAVAILABLE"


@pytest.mark.slow
def test_a_subscriber_that_catches_up_is_not_led_into_another_history(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    """It reads pages for itself, and each from a place that both histories have."""
    written = [writer.insert("item", rows(10, 90_000)) for _ in range(20)]
    stream = reader.subscribe()
    got = list(next(stream).page.groups)
    restored(place, written[-1])
    with pytest.raises(grpc.RpcError) as caught:
        got.extend(group for response in stream for group in response.page.groups)
    assert failed(caught.value).reason == "UNAVAILABLE"
    assert written[-1] not in {group.position for group in got}


def test_a_group_that_comes_in_parts_is_of_one_history(place: Any, writer: LogWriter, reader: Reader) -> None:
    """The first part of a group is followed by no other group of another history."""
    common = writer.insert("item", rows(1))
    lost = writer.insert("item", rows(200, 1_000))
    part = reader.get(common, max_bytes=16 * 1024)
    assert part.page.groups[-1].incomplete
    assert part.page.reached.server_timestamp_ms == common
    reader.seen = part.page.reached
    restored(place, lost)
    with pytest.raises(FailedCallError) as caught:
        reader.get(common, part.next_page_token, max_bytes=16 * 1024)
    assert caught.value.reason == "INVALID_TOKEN"


def test_a_base_is_no_base_for_a_node_whose_history_was_lost_before_it(
    place: Any, lake: BaseWriter, writer: LogWriter, reader: Reader, from_parquet: Callable[[], float]
) -> None:
    seen = writer.insert("item", rows(3))
    reader.seen = reader.get().state.settled
    writer.insert("item", rows(3))
    lake.publish()
    again = place.make_reader()
    again.seen = reader.seen
    assert Pulled().all(reader.pull()).done["item"].rows_done == 6
    assert from_parquet() == 1
    with held_at_its_node(place) as waits:
        stream = again.pull()
        waits()
        restored(place, seen)
    assert reason(stream) == "HISTORY_REWOUND"
    assert from_parquet() == 1
