"""A device at work on real services: its small writes travel on one stream, which servers end in every way they can."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.notes import notes_url

from anabranch import limits
from anabranch.client import CallFailed, State, SyncedDb
from anabranch.client.remote import RemoteDb
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import revoke_key
from anabranch.testkit.gate import Gate
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until
from anabranch.v1 import ingest_pb2

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live-sends")]
NOTICED_S = (limits.DEVICE_PING_AFTER_MS + limits.PING_ANSWER_MS) / 1000 + 8.0


class Counted(RemoteDb):
    """Counts calls of Send that carry batches, and streams."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.made: Counter[str] = Counter()

    def _begin(self, name: str, service: str, method: Any, request: Any, timeout_s: float) -> Any:
        self.made[name] += name != "send" or bool(request.envelopes)
        return super()._begin(name, service, method, request, timeout_s)


@pytest.fixture
def stack(databases: TestDatabases, tmp_path: Path) -> Iterator[Stack]:
    url = notes_url(databases)
    with Stack(url, folder=tmp_path) as running:
        yield running
    databases.release(url)


class Desk:
    """A device that writes one note after the other, and waits for the verdict of each, or does not."""

    def __init__(self, stack: Stack, folder: Path, ingest: str = "") -> None:
        self.stack = stack
        self.key = stack.new_key("writer", database="notes")
        ways = stack.addresses
        self.remote = Counted(
            ingest=ingest or ways["ingest"],
            snapshot=ways["snapshot"],
            resolver=ways["conflict-resolver"],
            token=self.key,
        )
        self.device = SyncedDb(folder / "desk.db", self.remote, "notes", "desk")
        self.told: list[State] = []
        self.device.on_state(self.told.append)
        self.device.start()
        self.made = 0

    def write(self, times: int = 1, *, wait: bool = True) -> None:
        for _ in range(times):
            self.made += 1
            self.device.table("note").insert({"id": f"note-{self.made}", "body": "small"})
            if wait:
                until(lambda: self.device.status().unsent == 0)

    def check(self) -> None:
        """Everything is there, once, in the order in which it was written."""
        until(lambda: self.device.status().unsent == 0, 60)
        until(lambda: self.device.status().queued == 0, 60)
        assert self.device.dead_letters() == []
        rows = self.sql("select batch_id, key from anabranch.log order by position, batch_id")
        assert len(rows) == len({batch for batch, _ in rows}) == self.made
        assert self.sql("select count(*) from public.note") == [(self.made,)]
        assert [batch for batch, _ in rows] == sorted(batch for batch, _ in rows)

    def sql(self, query: str) -> list[Any]:
        with connect(self.stack.database_url, application_name="test", autocommit=True) as conn:
            return conn.execute(query.encode()).fetchall()

    def kinds(self) -> list[str]:
        return [state.kind for state in self.told if state.kind in ("online", "offline", "error", "unauthenticated")]


@pytest.fixture
def desk(stack: Stack, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(stack, tmp_path)
    yield made
    made.device.close()


def test_writes_share_one_stream_and_come_in_their_order(desk: Desk) -> None:
    desk.write(30)
    desk.check()
    assert (desk.remote.made["send"], desk.remote.made["send_stream"]) == (1, 1)
    assert desk.kinds() == ["online"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["killed", "drained"])
def test_an_ingest_that_goes_under_messages_loses_and_doubles_nothing(desk: Desk, way: str) -> None:
    stop = threading.Event()

    def write_on() -> None:
        while not stop.is_set():
            desk.write(wait=False)
            time.sleep(0.01)

    writer = threading.Thread(target=write_on)
    desk.write(3)
    writer.start()
    try:
        for _ in range(2):
            before = desk.made
            (desk.stack.kill if way == "killed" else desk.stack.terminate)("ingest")
            desk.stack.start("ingest")
            until(lambda before=before: desk.made > before + 20 and desk.device.status().unsent == 0, 60)  # type: ignore[misc]
    finally:
        stop.set()
        writer.join()
    desk.check()
    assert desk.remote.made["send_stream"] >= 2


def test_a_revoked_key_stops_the_messages_and_keeps_the_queue(desk: Desk) -> None:
    desk.write(5)
    revoke_key(desk.stack.database_url, desk.key)
    until(lambda: "unauthenticated" in desk.kinds())
    # That was snapshot; ingest hears of it within the same second.
    until(lambda: is_refused(desk))
    desk.write(3, wait=False)
    with pytest.raises(CallFailed):
        desk.device.flush(10)
    assert desk.device.status().unsent == 3
    assert desk.sql("select count(*) from public.note") == [(5,)]


def is_refused(desk: Desk) -> bool:
    """Whether ingest judges the device's key to be none."""
    try:
        desk.remote.send(ingest_pb2.SendRequest(db_name="notes"), 5.0)
    except CallFailed as error:
        return error.code == "UNAUTHENTICATED"
    return False


@pytest.mark.timeout(180)
def test_a_server_that_falls_silent_under_a_message_is_noticed_as_soon_as_under_a_call(
    stack: Stack, tmp_path: Path
) -> None:
    with Gate(stack.addresses["ingest"]) as gate:
        desk = Desk(stack, tmp_path, ingest=gate.address)
        try:
            desk.write(5)
            gate.silence()
            began = time.monotonic()
            desk.write(1, wait=False)
            until(lambda: "offline" in desk.kinds(), NOTICED_S)
            assert time.monotonic() - began < NOTICED_S
            gate.open()
            desk.check()
            until(lambda: desk.kinds()[-1] == "online", 60)
        finally:
            desk.device.close()
