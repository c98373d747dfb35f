"""A device's calls over real channels are taken down as they come, with the claims that each call carries."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import jwt
import pytest

from anabranch.client import CallFailed
from anabranch.testkit.attack.history import History
from anabranch.testkit.attack.leaks import all_leaks
from anabranch.testkit.attack.marks import Marks
from anabranch.testkit.attack.wiretap import TappedRemote, Wiretap
from anabranch.v1 import (
    change_pb2,
    change_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    position_pb2,
    snapshot_pb2,
    snapshot_pb2_grpc,
    verdict_pb2,
)

MARKS = Marks()
T1, T2 = frozenset({"team:t1"}), frozenset({"team:t2"})
MINE, SECRET = MARKS.new(T1), MARKS.new(T2)


def state(position: int) -> position_pb2.ServerState:
    return position_pb2.ServerState(settled=position_pb2.Position(server_timestamp_ms=position))


def page(mark: str) -> change_pb2.Page:
    batch = change_pb2.LoggedBatch(id="b", effects=[mark.encode()])
    return change_pb2.Page(groups=[change_pb2.LoggedGroup(position=10, batches=[batch])])


class Careless(
    change_pb2_grpc.ChangeServiceServicer,
    snapshot_pb2_grpc.SnapshotServiceServicer,
    ingest_pb2_grpc.IngestServiceServicer,
):
    """Services that give everybody ``mark``; calls of tables that are none fail with it."""

    mark = MINE

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.after < 0:
            context.set_trailing_metadata((("told-bin", self.mark.encode()),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not {self.mark}")
        return change_pb2.GetResponse(page=page(self.mark), state=state(10))

    def Subscribe(self, request: Any, context: Any) -> Any:  # noqa: N802
        yield change_pb2.SubscribeResponse(page=page(self.mark), state=state(10))
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    def Pull(self, request: Any, context: Any) -> Any:  # noqa: N802
        yield snapshot_pb2.PullResponse(table="job", arrow_ipc=self.mark.encode(), state=state(10))

    def SendStream(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        for _ in request_iterator:
            verdict = verdict_pb2.Verdict(batch_id="b", message=self.mark)
            yield ingest_pb2.SendStreamResponse(verdicts=[verdict], state=state(10))

    def Send(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    FindCommon = Describe = Send

    def Compare(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


@pytest.fixture
def address() -> Iterator[str]:
    server, service = grpc.server(ThreadPoolExecutor(4)), Careless()
    change_pb2_grpc.add_ChangeServiceServicer_to_server(service, server)
    snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(service, server)
    ingest_pb2_grpc.add_IngestServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def past() -> History:
    history = History(frozenset({"job"}))
    history.put((5, 0), "job", "1", [MINE], T1)
    history.put((5, 1), "job", "2", [SECRET], T2)
    return history


def token(subject: str, *teams: str) -> str:
    return jwt.encode({"sub": subject, "teams": teams}, secrets.token_bytes(32), "HS256")


def tap() -> Wiretap:
    return Wiretap(lambda claims: {f"team:{team}" for team in claims.get("teams", ())})


def use(remote: TappedRemote) -> None:
    """Make a call of each kind."""
    remote.get(change_pb2.GetRequest(db_name="d"))
    with pytest.raises(CallFailed):
        list(remote.subscribe(change_pb2.SubscribeRequest(db_name="d")))
    list(remote.pull(snapshot_pb2.PullRequest(db_name="d")))
    list(remote.send_stream(iter([ingest_pb2.SendStreamRequest(db_name="d")]), 10.0))
    with pytest.raises(CallFailed):
        remote.get(change_pb2.GetRequest(db_name="d", after=-1))


class Passing(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """An interceptor as tests have them in front of a device's channels."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details, request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details, request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(details, requests)


@pytest.mark.parametrize("interceptors", [[], [Passing()]], ids=["bare", "intercepted"])
def test_every_kind_of_call_is_taken_down(
    address: str, past: History, monkeypatch: pytest.MonkeyPatch, interceptors: list[Any]
) -> None:
    heard = tap()
    remote = TappedRemote(heard, address=address, token=token("alice", "t1"), interceptors=interceptors)
    use(remote)
    assert all_leaks(past, heard.calls()) == []
    monkeypatch.setattr(Careless, "mark", SECRET)
    use(remote)
    remote.close()
    found = {(leak.kind, leak.method.rpartition("/")[2]) for leak in all_leaks(past, heard.calls())}
    assert found == {("value", method) for method in ("Get", "Subscribe", "Pull", "SendStream")}
    assert {(caller.principal, caller.claimed) for caller, _ in heard.calls()} == {("alice", T1)}


def test_the_words_and_the_metadata_of_a_failure_are_taken_down(
    address: str, past: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "mark", SECRET)
    heard = tap()
    remote = TappedRemote(heard, address=address, token=token("alice", "t1"))
    with pytest.raises(CallFailed):
        remote.get(change_pb2.GetRequest(db_name="d", after=-1))
    remote.close()
    assert [leak.kind for leak in all_leaks(past, heard.calls())] == ["value"]


def test_each_call_belongs_to_the_token_that_it_carried(
    address: str, past: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Careless, "mark", SECRET)
    tokens = [token("carol", "t2"), token("carol", "t1")]
    heard = tap()
    remote = TappedRemote(heard, address=address, token=lambda: tokens[0])
    remote.get(change_pb2.GetRequest(db_name="d"))
    assert all_leaks(past, heard.calls()) == []
    tokens.pop(0)
    remote.get(change_pb2.GetRequest(db_name="d"))
    remote.close()
    assert [leak.kind for leak in all_leaks(past, heard.calls())] == ["value"]
