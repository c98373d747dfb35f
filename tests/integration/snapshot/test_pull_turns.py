"""A client that pulls slowly, or long, delays others no longer than a moment: turns by principal, a least rate, and
comparisons apart."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.pulled import Pulled, rows
from tests.integration.snapshot.test_compare import Comparison

from anabranch.testkit.ingest_rig import failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import load, until
from anabranch.v1 import snapshot_pb2

SESSIONS = 4
WINDOW_MS = 500
TURN_MS = 1_500
LEAST = 4 * 1024 * 1024


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    """Nobody is told to be slow for as long as a test lasts."""
    return {"ANABRANCH_PULL_LEAST_WINDOW_MS": "600000", "ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024)}


@contextmanager
def rig_of(place: Any, tmp_path: Any, **settings: int) -> Iterator[SnapshotRig]:
    environment = {f"ANABRANCH_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {"ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024), **environment}
    with SnapshotRig(place.rig.url, tmp_path, environment=environment) as one:
        yield one


def reading(rig: SnapshotRig) -> float:
    return rig.metric("anabranch_pulls", state="reading")


@pytest.mark.slow
def test_one_principal_that_pulls_slowly_leaves_a_turn_to_others(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(400, 50_000))
    slow = place.make_reader()
    streams = [slow.pull(timeout_s=None) for _ in range(SESSIONS)]
    until(lambda: place.rig.metric("anabranch_pulls", state="waiting") == 1, 10)
    assert Pulled().all(reader.pull(timeout_s=10.0)).done["item"].rows_done == 400
    for stream in streams:
        stream.cancel()
    until(lambda: reading(place.rig) == 0, 10)


@pytest.mark.slow
def test_comparisons_wait_for_no_pull(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(400, 50_000))
    readers = [place.make_reader() for _ in range(SESSIONS)]
    streams = [one.pull(timeout_s=None) for one in readers]
    until(lambda: reading(place.rig) == SESSIONS, 10)
    comparison = Comparison(reader, "item")
    opening, *_ = comparison.answer()
    assert opening.sum.count == 400
    comparison.asked.put(None)
    assert list(comparison.call) == []
    for stream in streams:
        stream.cancel()


@pytest.mark.slow
def test_one_principal_can_not_fill_the_queue(place: Any, writer: LogWriter, tmp_path: Any) -> None:
    writer.insert("item", rows(400, 50_000))
    with rig_of(place, tmp_path, pull_sessions=1, pull_waiting=4, pull_waiting_per_principal=2) as rig:
        many, other = rig.reader(place.name), rig.reader(place.name)
        streams = [many.pull(timeout_s=None) for _ in range(3)]
        until(lambda: rig.metric("anabranch_pulls", state="waiting") == 2, 10)
        with pytest.raises(grpc.RpcError) as caught:
            next(many.pull())
        assert failed(caught.value).reason == "OVERLOADED"
        waits = other.pull()
        until(lambda: rig.metric("anabranch_pulls", state="waiting") == 3, 10)
        # It has come last, and its principal is next.
        for stream in streams[:1]:
            stream.cancel()
        until(lambda: rig.metric("anabranch_pulls", state="waiting") == 2, 10)
        streams[1].cancel()
        assert Pulled().all(waits).done["item"].rows_done == 400
        for one in (many, other):
            one.close()


@pytest.mark.slow
def test_slow_pulls_of_many_principals_give_their_turns_back_and_go_on_later(
    place: Any, writer: LogWriter, tmp_path: Any
) -> None:
    made = sorted(rows(400, 50_000))
    writer.insert("item", made)
    with rig_of(place, tmp_path, pull_least_window_ms=WINDOW_MS, pull_least_bytes_per_s=LEAST) as rig:
        slow = [rig.reader(place.name) for _ in range(SESSIONS)]
        streams = [one.pull(timeout_s=None) for one in slow]
        pulled = [Pulled() for _ in slow]
        for one, stream in zip(pulled, streams, strict=True):
            one.take(next(stream))
        until(lambda: reading(rig) == SESSIONS, 10)
        quick = rig.reader(place.name)
        began = time.monotonic()
        assert Pulled().all(quick.pull(timeout_s=20.0 * load())).done["item"].rows_done == 400
        assert time.monotonic() - began < 10 * load()
        ended = 0
        for one, stream, reader in zip(pulled, streams, slow, strict=True):
            reason = ""
            try:
                one.all(stream)
            except grpc.RpcError as error:
                reason = failed(error).reason
                one.all(reader.pull([("item", one.responses[-1].resume)]))
            ended += bool(reason)
            assert reason in ("", "UNAVAILABLE")
            assert [row[:3] for row in one.rows["item"]] == [row[:3] for row in made]
        assert ended >= 1
        for reader in (*slow, quick):
            reader.close()


@pytest.mark.slow
def test_a_slow_pull_goes_on_while_nobody_waits(place: Any, writer: LogWriter, tmp_path: Any) -> None:
    made = sorted(rows(400, 50_000))
    writer.insert("item", made)
    with rig_of(place, tmp_path, pull_least_window_ms=WINDOW_MS, pull_least_bytes_per_s=LEAST) as rig:
        reader = rig.reader(place.name)
        pulled, stream = Pulled(), reader.pull(timeout_s=None)
        pulled.take(next(stream))
        time.sleep(4 * WINDOW_MS / 1000 + 2)
        pulled.all(stream)
        assert [row[:3] for row in pulled.rows["item"]] == [row[:3] for row in made]
        reader.close()


@pytest.mark.slow
def test_a_long_pull_gives_its_turn_to_a_principal_that_has_none(place: Any, writer: LogWriter, tmp_path: Any) -> None:
    """However fast it is: its client reads all the time."""
    made = sorted(rows(400, 50_000))
    writer.insert("item", made)
    with rig_of(place, tmp_path, pull_sessions=1, pull_turn_ms=TURN_MS) as rig:
        endless, other = rig.reader(place.name), rig.reader(place.name)
        stop, reasons = threading.Event(), set()

        def pull_again_and_again() -> None:
            resume = b""
            while not stop.is_set():
                try:
                    for response in endless.pull([("item", resume)], timeout_s=None):
                        # Slow enough to take long, and not too slow by the rate that is set.
                        if stop.wait(0.02):
                            return
                        resume = response.resume
                except grpc.RpcError as error:
                    reasons.add(failed(error).reason)

        thread = threading.Thread(target=pull_again_and_again)
        thread.start()
        try:
            until(lambda: reading(rig) == 1, 10)
            began = time.monotonic()
            pulled = Pulled()
            while "item" not in pulled.done:
                resume = pulled.responses[-1].resume if pulled.responses else b""
                reason = ""
                try:
                    pulled.all(other.pull([("item", resume)], timeout_s=20.0 * load()))
                except grpc.RpcError as error:
                    reason = failed(error).reason
                # On a busy machine its own turn is over before it is done.
                assert reason in ("", "UNAVAILABLE")
                assert time.monotonic() - began < (TURN_MS / 1000 + 8) * load()
            assert [row[:3] for row in pulled.rows["item"]] == [row[:3] for row in made]
        finally:
            stop.set()
            thread.join()
        assert reasons == {"UNAVAILABLE"}
        for one in (endless, other):
            one.close()


@pytest.mark.slow
def test_a_comparison_whose_answers_nobody_takes_gives_its_turn_back(
    place: Any, writer: LogWriter, tmp_path: Any
) -> None:
    writer.insert("item", rows(400, 50_000))
    with rig_of(place, tmp_path, compare_sessions=1, pull_stall_ms=1_500) as rig:
        silent, other = rig.reader(place.name), rig.reader(place.name)
        stalled = Comparison(silent, "item")
        list(stalled.answer())
        stalled.ask(read=[snapshot_pb2.KeyRange(bits=8, prefix=number) for number in range(256)])
        comparison = Comparison(other, "item")
        opening, *_ = comparison.answer()
        assert opening.sum.count == 400
        for asking in (stalled, comparison):
            asking.asked.put(None)
        for one in (silent, other):
            one.close()


@pytest.mark.slow
def test_a_stalled_pull_is_dropped_with_all_that_it_holds(place: Any, writer: LogWriter, tmp_path: Any) -> None:
    writer.insert("item", rows(400, 50_000))
    with rig_of(place, tmp_path, pull_stall_ms=1_000) as rig:
        reader = rig.reader(place.name)
        stream = reader.pull(timeout_s=None)
        next(stream)
        until(lambda: rig.metric("anabranch_open_streams") == 0, 15, "the call is not dropped")
        with pytest.raises(grpc.RpcError):
            list(stream)
        reader.close()
