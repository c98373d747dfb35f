"""A peer that is gone without a word: packets are swallowed, and nobody closes anything."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.notes import notes_url

from anabranch import limits
from anabranch.client import RemoteDb, SyncedDb
from anabranch.client.errors import CallFailed
from anabranch.client.events import State
from anabranch.store.catalog.status import read_status
from anabranch.store.session.engine import connect
from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import Echo, echo_service
from anabranch.testkit.exposition import shown
from anabranch.testkit.gate import Gate
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("silence"), pytest.mark.timeout(300)]

SLACK_S = 8.0
DEVICE_NOTICES_S = (limits.DEVICE_PING_AFTER_MS + limits.PING_ANSWER_MS) / 1000 + SLACK_S
SERVER_NOTICES_S = (limits.SERVER_PING_AFTER_MS + limits.PING_ANSWER_MS) / 1000 + SLACK_S
DRAINED_S = 60.0


def open_streams(echo: Echo) -> float:
    return shown(echo.metrics_address, "anabranch_open_streams")


def follow_in_silence(address: str, key: str, began: threading.Event, streams: list[Any]) -> tuple[str, float]:
    """Follow a stream on which nothing comes; how it ends, and when."""
    remote = RemoteDb(address, token=key)
    try:
        stream = remote.subscribe(change_pb2.SubscribeRequest(db_name="shop", after=behaviour.PAUSES))
        streams.append(stream)
        next(stream)
        began.set()
        with pytest.raises(CallFailed) as caught:
            next(stream)
        return caught.value.code, time.monotonic()
    finally:
        remote.close()


def test_both_sides_notice_a_peer_that_is_gone_without_a_word(migrated_url: str, tmp_path: Path) -> None:
    """The device's stream ends, and so does what the server keeps for it; another one, through which packets still
    come, stands meanwhile."""
    began, began_too = threading.Event(), threading.Event()
    streams: list[Any] = []
    with (
        echo_service(migrated_url, tmp_path) as echo,
        Gate(echo.address) as gate,
        ThreadPoolExecutor(2) as threads,
        ExitStack() as block,
    ):
        # The threads end with their streams, whatever becomes of the test.
        block.callback(lambda: [stream.cancel() for stream in streams])
        echo.wait_ready()
        key = echo.new_key("alice")
        silent = threads.submit(follow_in_silence, gate.address, key, began, streams)
        other = threads.submit(follow_in_silence, echo.address, key, began_too, streams)
        assert began.wait(10)
        assert began_too.wait(10)
        assert open_streams(echo) == 2
        gate.silence()
        silent_s = time.monotonic()
        code, ended_s = silent.result(DEVICE_NOTICES_S)
        assert code == "UNAVAILABLE"
        assert ended_s - silent_s > limits.PING_ANSWER_MS / 1000 / 2, "it was not the silence that ended it"
        while open_streams(echo) != 1:
            assert time.monotonic() - silent_s < SERVER_NOTICES_S, "the server still believes in it"
            time.sleep(0.2)
        assert not other.done(), "a stream that is merely idle stands"
        echo.child.stop(15)
        assert other.result(20)[0] == "UNAVAILABLE"


@pytest.mark.parametrize("hole_s", [40, pytest.param(120, marks=pytest.mark.long)], ids="{}s".format)
def test_an_upload_into_a_black_hole_drains_after_it(databases: TestDatabases, tmp_path: Path, hole_s: int) -> None:
    """V04: the stall shows on the device and on the server, and a minute after it all is there, once."""
    url = notes_url(databases)
    told: list[tuple[float, State]] = []
    with ExitStack() as block:
        stack = block.enter_context(Stack(url, folder=tmp_path))
        gates = {name: block.enter_context(Gate(address)) for name, address in stack.addresses.items()}
        ways = {name: gate.address for name, gate in gates.items()}
        remote = remote_of(ways, stack.new_key("walker", database="notes"))
        device = SyncedDb(tmp_path / "device.db", remote, "notes", "walker")
        block.callback(device.close)
        device.on_state(lambda state: told.append((time.monotonic(), state)))
        device.start()
        made = 0

        def write(count: int) -> None:
            nonlocal made
            for _ in range(count):
                made += 1
                device.table("note").insert({"id": f"note-{made}", "body": "x" * 2_000})

        # The hole opens while batches are on their way.
        write(300)
        until(lambda: device.status().unsent < 300)
        for gate in gates.values():
            gate.silence()
        silent_s = time.monotonic()
        write(200)
        until(lambda: any(state.kind == "offline" for _, state in told), DEVICE_NOTICES_S)
        assert device.status().unsent > 0
        time.sleep(max(0.0, silent_s + hole_s - time.monotonic()))
        unsent = device.status().unsent
        assert unsent >= 200, "nothing comes through"
        with connect(url, application_name="test", autocommit=True) as conn:
            now_ms, (database,) = read_status(conn)
        assert now_ms - database.nodes[0].last_seen_ms >= (hole_s - SLACK_S) * 1000, "the server says since when"
        for gate in gates.values():
            gate.open()
        until(lambda: device.status().unsent == 0, DRAINED_S)
        until(lambda: device.status().queued == 0)
        # The log may show the batches before the sending half has its own answer.
        until(lambda: [state.kind for _, state in told if state.kind in ("offline", "online")][-1] == "online")
        assert device.dead_letters() == []
        assert device.execute("select count(*) from note").fetchone() == (made,)
    with psycopg.connect(url) as conn:
        assert conn.execute("select count(*) from public.note").fetchone() == (made,)
        assert conn.execute("select count(*), count(distinct batch_id) from anabranch.log").fetchone() == (made, made)
    databases.release(url)
