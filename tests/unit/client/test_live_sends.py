"""Small writes over one open stream, against a server over a socket that answers as the test says."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from anabranch.client import CallFailed, SyncedDb
from anabranch.client.queue import live
from anabranch.client.remote import RemoteDb
from anabranch.runtime.errors import CallError, to_status
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.waiting import until
from anabranch.v1 import errors_pb2, ingest_pb2

Response = ingest_pb2.SendStreamResponse


class Wired(MemoryRemote):
    """A server in memory whose Send and SendStream are called over a socket. ``seen`` counts calls, streams, messages;
    ``tokens`` are the credentials that streams came with. ``on_message`` is called with the number of a message on its
    stream, from 0, before it is decided, and its context: it may end the stream. ``judges``: whether a message is
    answered with a token. ``ends_after``: the messages after which a stream is ended."""

    on_message: Callable[[int, grpc.ServicerContext], None]

    def serve(self, streams: bool = True) -> grpc.Server:
        self.seen: Counter[str] = Counter()
        self.tokens: list[str] = []
        self.on_message = lambda number, context: None
        self.judges, self.ends_after = True, 0
        handlers: dict[str, Any] = {
            "Send": grpc.unary_unary_rpc_method_handler(
                self._on_send, ingest_pb2.SendRequest.FromString, ingest_pb2.SendResponse.SerializeToString
            )
        }
        if streams:
            handlers["SendStream"] = grpc.stream_stream_rpc_method_handler(
                self._on_stream, ingest_pb2.SendStreamRequest.FromString, Response.SerializeToString
            )
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("anabranch.v1.IngestService", handlers),))
        self._addresses["ingest"] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        return server

    def _on_send(self, request: ingest_pb2.SendRequest, context: grpc.ServicerContext) -> ingest_pb2.SendResponse:
        self.seen["calls"] += bool(request.envelopes)
        return super().send(request)

    def _on_stream(
        self, requests: Iterator[ingest_pb2.SendStreamRequest], context: grpc.ServicerContext
    ) -> Iterator[Response]:
        self.seen["streams"] += 1
        self.seen["open"] += 1
        context.add_callback(lambda: self.seen.subtract(["open"]))
        self.tokens.append(str(dict(context.invocation_metadata()).get("authorization", "")))
        for number, request in enumerate(requests):
            self.seen["messages"] += 1
            self.on_message(number, context)
            answer = super().send(ingest_pb2.SendRequest.FromString(request.SerializeToString()))
            if number == 0:
                yield Response(node_token=answer.node_token, state=answer.state)
            elif self.judges:
                assert request.node_token == answer.node_token
            token = answer.node_token if number and self.judges else b""
            yield Response(verdicts=answer.verdicts, node_token=token, state=answer.state)
            if number + 1 == self.ends_after:
                return

    def send(self, request: ingest_pb2.SendRequest, timeout_s: float = 0) -> ingest_pb2.SendResponse:
        return RemoteDb.send(self, request, timeout_s or 10.0)

    def send_stream(self, requests: Iterator[ingest_pb2.SendStreamRequest], timeout_s: float) -> Any:
        return RemoteDb.send_stream(self, requests, timeout_s)


@pytest.fixture
def wired(remote: MemoryRemote) -> Wired:
    return Wired(remote.server, list(remote.tables.values()), remote.now_ms)


@pytest.fixture
def served(wired: Wired) -> Iterator[Wired]:
    server = wired.serve()
    yield wired
    server.stop(None).wait()


@pytest.fixture
def device(tmp_path: Path, served: Wired) -> Iterator[SyncedDb]:
    made = SyncedDb(tmp_path / "device.db", served, "d", "device")
    made.start(background=False)
    yield made
    made.close()


def write(device: SyncedDb, number: int) -> None:
    device.table("todo").update({"id": "k0", "n": number})


def send(device: SyncedDb, number: int) -> None:
    """One write that is sent and has its verdict."""
    write(device, number)
    assert device.flush(10.0)
    assert device.status().unsent == 0


def counts(served: Wired) -> tuple[int, int, int]:
    return served.seen["calls"], served.seen["streams"], served.seen["messages"]


def shown(served: Wired) -> Any:
    return served.server.live()["todo", "k0"]["n"]


def unanswered(device: SyncedDb) -> int:
    (count,) = device._file.reader().execute("SELECT count(*) FROM _db_unanswered").fetchone()
    return int(count)


def abort(reason: errors_pb2.Reason.ValueType) -> Callable[[grpc.ServicerContext], None]:
    return lambda context: context.abort_with_status(to_status(CallError(reason, "as the test says")))


def test_the_first_write_is_a_call_and_those_that_follow_are_messages_in_their_order(
    device: SyncedDb, served: Wired
) -> None:
    for number in range(10):
        send(device, number)
        assert shown(served) == number
    assert counts(served) == (1, 1, 9)
    assert len(served.server.verdicts) == 10
    assert unanswered(device) == 0


def test_after_a_silence_of_the_device_a_write_is_a_call(device: SyncedDb, served: Wired) -> None:
    send(device, 0)
    device._sender._live._answered_s -= live._LIVE_S
    send(device, 1)
    assert counts(served) == (2, 0, 0)


def test_a_large_batch_is_a_call_and_leaves_the_stream_open(device: SyncedDb, served: Wired) -> None:
    send(device, 0)
    send(device, 1)
    device.table("todo").update({"id": "k1", "title": "x" * live._SMALL_BYTES})
    assert device.flush(10.0)
    send(device, 3)
    assert counts(served) == (2, 1, 2)


def test_an_idle_stream_is_closed_and_another_one_opened_by_the_next_write(
    device: SyncedDb, served: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_IDLE_S", 0.1)
    send(device, 0)
    send(device, 1)
    until(lambda: served.seen["open"] == 0)
    send(device, 2)
    assert counts(served) == (1, 2, 2)


def test_a_stream_that_the_server_ends_while_it_is_idle_is_no_failure(device: SyncedDb, served: Wired) -> None:
    served.ends_after = 2
    send(device, 0)
    for number in range(1, 7):
        send(device, number)
        until(lambda: served.seen["open"] == 0 or served.seen["messages"] % 2 == 1)
    assert len(served.server.verdicts) == 7
    assert shown(served) == 6


def test_a_stream_that_breaks_under_a_message_fails_as_a_call_does_and_a_call_follows(
    device: SyncedDb, served: Wired
) -> None:
    send(device, 0)
    send(device, 1)
    served.on_message = lambda number, context: context.abort(grpc.StatusCode.UNAVAILABLE, "the network broke")
    write(device, 2)
    with pytest.raises(CallFailed) as caught:
        device.flush(10.0)
    assert (caught.value.code, caught.value.again) == ("UNAVAILABLE", True), "as of a call"
    assert device.flush(10.0)
    assert counts(served) == (2, 1, 2)
    assert len(served.server.verdicts) == 3


def test_a_server_without_streams_gets_calls_and_is_asked_for_one_seldom(
    tmp_path: Path, wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = wired.serve(streams=False)
    opened: list[float] = []
    send_stream = wired.send_stream

    def noted(*given: Any) -> Any:
        opened.append(time.monotonic())
        return send_stream(*given)

    monkeypatch.setattr(wired, "send_stream", noted)
    device = SyncedDb(tmp_path / "device.db", wired, "d", "device")
    device.start(background=False)
    for number in range(8):
        send(device, number)
    assert (wired.seen["calls"], len(opened)) == (8, 1)
    sends = device._sender._live
    assert live._AVOID_S * 0.4 < sends._avoid_until_s - time.monotonic() <= live._AVOID_S
    # When that time is over it is tried once more.
    sends._avoid_until_s = 0.0
    send(device, 8)
    send(device, 9)
    assert (wired.seen["calls"], len(opened)) == (10, 2)
    assert live._AVOID_S * 0.4 < sends._avoid_until_s - time.monotonic() <= live._AVOID_S
    device.close()
    server.stop(None).wait()


def test_devices_come_back_to_streams_at_different_times() -> None:
    times = []
    for _ in range(50):
        sends = live.LiveSends(RemoteDb("localhost:1"))
        sends._suspect = True
        sends.called()
        times.append(sends._avoid_until_s - sends._answered_s)
    assert max(times) - min(times) > live._AVOID_S / 4


@pytest.mark.parametrize("from_message", [0, 1, 3])
def test_a_message_without_an_answer_is_sent_by_a_call_and_streams_are_avoided(
    device: SyncedDb, served: Wired, monkeypatch: pytest.MonkeyPatch, from_message: int
) -> None:
    """As behind a proxy that holds back what streams say, from its first word or later."""
    monkeypatch.setattr(live, "_ANSWER_S", 0.3)
    over = threading.Event()
    served.on_message = lambda number, context: None if number < from_message else abandon(context, over)
    for number in range(6):
        began = time.monotonic()
        send(device, number)
        assert time.monotonic() - began < 5.0
    assert counts(served) == (6 - from_message, 1, from_message + 1)
    assert len(served.server.verdicts) == 6
    assert device._sender._live._avoid_until_s > time.monotonic()
    assert over.wait(10), "the stream was left"


def abandon(context: grpc.ServicerContext, over: threading.Event) -> None:
    """Say nothing for as long as the stream stands."""
    context.add_callback(over.set)
    over.wait(10)
    context.abort(grpc.StatusCode.CANCELLED, "it was left")


@pytest.mark.parametrize(
    "end",
    [
        abort(errors_pb2.REASON_OVERLOADED),
        lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "no streams here"),
        lambda context: context.abort(grpc.StatusCode.INTERNAL, "RST_STREAM"),
        lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "no way"),
    ],
    ids=["too many are open", "a gateway refuses", "a gateway breaks", "no way"],
)
def test_a_stream_that_fails_before_it_has_answered_is_replaced_by_a_call_at_once(
    device: SyncedDb, served: Wired, end: Callable[[grpc.ServicerContext], None]
) -> None:
    served.on_message = lambda number, context: end(context)
    for number in range(4):
        send(device, number)
    assert counts(served) == (4, 1, 1)
    assert device._sender._live._avoid_until_s > time.monotonic()


def test_a_judgement_on_a_stream_is_the_calls_own(device: SyncedDb, served: Wired) -> None:
    send(device, 0)
    judge = abort(errors_pb2.REASON_UNKNOWN_DATABASE)
    for first in (0, 1):
        served.on_message = lambda number, context, first=first: judge(context) if number == first else None  # type: ignore[misc]
        write(device, 1)
        if first:
            device.flush(10.0)
            write(device, 2)
        with pytest.raises(CallFailed) as caught:
            device.flush(10.0)
        assert (caught.value.reason, caught.value.again) == ("UNKNOWN_DATABASE", False)
        served.on_message = lambda number, context: None
        assert device.flush(10.0)
        assert device._sender._live._avoid_until_s == 0.0


def test_a_quota_refuses_a_message_as_it_does_a_call_and_it_is_taken_later(device: SyncedDb, served: Wired) -> None:
    send(device, 0)
    send(device, 1)
    refuse = abort(errors_pb2.REASON_OVERLOADED)
    served.on_message = lambda number, context: refuse(context)
    write(device, 2)
    with pytest.raises(CallFailed) as caught:
        device.flush(10.0)
    assert (caught.value.reason, caught.value.again) == ("OVERLOADED", True)
    served.on_message = lambda number, context: None
    for number in range(3, 6):
        send(device, number)
    assert shown(served) == 5


def test_a_node_that_is_told_of_a_copy_gets_another_id_and_goes_on(device: SyncedDb, served: Wired) -> None:
    send(device, 0)
    send(device, 1)
    before = device.status().node_id
    forked = abort(errors_pb2.REASON_NODE_FORKED)
    served.on_message = lambda number, context: forked(context) if number == 1 else None
    send(device, 2)
    assert device.status().node_id != before
    assert device.status().dead == 0


def test_another_token_opens_another_stream(tmp_path: Path, served: Wired) -> None:
    given = ["one"]
    served._token = lambda: given[-1]
    device = SyncedDb(tmp_path / "renewed.db", served, "d", "device")
    device.start(background=False)
    for number in range(3):
        send(device, number)
    given.append("two")
    send(device, 3)
    send(device, 4)
    assert served.tokens == ["Bearer one", "Bearer two"]
    # One that ends while a message is under way is renewed, and the app notices nothing.
    expired = abort(errors_pb2.REASON_CREDENTIALS_EXPIRED)

    def end(number: int, context: grpc.ServicerContext) -> None:
        given.append("three")
        served.on_message = lambda number, context: None
        expired(context)

    served.on_message = end
    send(device, 5)
    send(device, 6)
    assert served.tokens[-1] == "Bearer three"
    assert len(served.server.verdicts) == 7
    device.close()


def test_a_server_that_judges_no_message_is_told_in_calls(device: SyncedDb, served: Wired) -> None:
    """It does not compare the position that a message presents: what it answers proves nothing of its history."""
    served.judges = False
    send(device, 0)
    send(device, 1)
    before = device._file.current().greatest_ms
    send(device, 2)
    assert device._file.current().greatest_ms == before
    send(device, 3)
    send(device, 4)
    assert counts(served) == (3, 1, 2)
    assert device._file.current().greatest_ms == served.server.head


def test_closing_ends_the_stream_and_its_threads(device: SyncedDb, served: Wired) -> None:
    send(device, 0)
    send(device, 1)
    assert [one for one in threading.enumerate() if one.name == "anabranch-live"]
    device.close()
    until(lambda: served.seen["open"] == 0)
    until(lambda: not [one for one in threading.enumerate() if one.name == "anabranch-live"])


def test_a_network_that_changes_ends_the_wait_for_a_message(device: SyncedDb, served: Wired) -> None:
    send(device, 0)
    send(device, 1)
    over = threading.Event()
    served.on_message = lambda number, context: abandon(context, over)
    write(device, 2)
    with ThreadPoolExecutor(1) as threads:
        flushing = threads.submit(device.flush, 20.0)
        until(lambda: served.seen["messages"] == 2)
        device._sender.hang_up()
        error = flushing.exception(4.0)
    assert isinstance(error, CallFailed)
    assert error.code == "CANCELLED"
    served.on_message = lambda number, context: None
    assert device.flush(10.0)
    assert shown(served) == 2


def test_a_wait_that_is_interrupted_leaves_no_answer_for_the_next_message(
    device: SyncedDb, served: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(device, 0)
    send(device, 1)
    take = live._Stream.take

    def interrupted(stream: Any, until_s: float) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(live._Stream, "take", interrupted)
    write(device, 2)
    with pytest.raises(KeyboardInterrupt):
        device.flush(10.0)
    monkeypatch.setattr(live._Stream, "take", take)
    for number in range(3, 6):
        send(device, number)
    assert shown(served) == 5
    assert len(served.server.verdicts) == 6
