"""The next page of the log is asked for while one is applied: in the order of the log, never more than one, and never
used where the file is no longer what was reckoned with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from anabranch.client import CallFailed, SyncedDb
from anabranch.client.call_ahead import CallAhead
from anabranch.client.errors import WrongPrincipal
from anabranch.client.queue import settle
from anabranch.client.reading import sums
from anabranch.client.reading.ahead import Ahead
from anabranch.client.remote import RemoteDb
from anabranch.merge import MutationType
from anabranch.runtime.errors import CallError, to_status
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.v1 import change_pb2, errors_pb2

GROUPS = 4


class Told:
    """Calls, answers and applied pages in their order: "ask 2", "apply", "answer 2", "cancel 2". Calls are numbered as
    they are made."""

    def __init__(self, device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[str] = []
        self.requests: list[change_pb2.GetRequest] = []
        self.fails: dict[int, CallFailed] = {}
        """The failures of calls by their number."""
        self.before_apply: Callable[[int], None] = lambda page: None
        """Called before each page is applied, with the number of pages before it."""
        self._get = remote.get
        self._pages = 0
        monkeypatch.setattr(remote, "get", self._now)
        monkeypatch.setattr(remote, "get_ahead", self._ahead)
        monkeypatch.setattr(device._reader._paging, "_reached", self._reached)

    def _now(self, request: change_pb2.GetRequest) -> change_pb2.GetResponse:
        self.requests.append(request)
        number = len(self.requests)
        self.all.append(f"ask {number}")
        if number in self.fails:
            raise self.fails[number]
        return self._get(request)

    def _ahead(self, request: change_pb2.GetRequest) -> CallAhead[change_pb2.GetResponse]:
        number = len(self.requests) + 1
        try:
            response = self._now(request)
        except CallFailed as error:
            return CallAhead.failed(error)

        def answer() -> change_pb2.GetResponse:
            self.all.append(f"answer {number}")
            return response

        return CallAhead(answer, lambda: self.all.append(f"cancel {number}"))

    def _reached(self, point: str) -> None:
        if point == "before_apply":
            self.before_apply(self._pages)
            self.all.append("apply")
            self._pages += 1


@pytest.fixture
def told(device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch) -> Told:
    """A device that has a page for each of some groups to read."""
    # The remote splits an effect, so that a group has two parts.
    remote.page_parts = 2
    change(remote)
    return Told(device, remote, monkeypatch)


def change(remote: MemoryRemote) -> None:
    for n in range(GROUPS):
        assert remote.write([("todo", MutationType.UPDATE, f"k{n}", {"title": f"changed at {remote.server.head}"})])


def agrees(device: SyncedDb, remote: MemoryRemote) -> None:
    """The device shows the server's rows, and its sums are the server's."""
    shown = {key: (title, n) for key, title, n in device.execute("SELECT id, title, n FROM todo")}
    assert shown == {key: (row["title"], row["n"]) for (_, key), row in remote.server.live().items()}
    assert not sums.disagreements(device._file.reader())
    assert device.status().cursor == remote.server.head


def test_the_next_page_is_asked_for_before_one_is_applied_and_never_more(
    device: SyncedDb, remote: MemoryRemote, told: Told
) -> None:
    device.read()
    assert told.all == [
        *("ask 1", "ask 2", "apply"),
        *("answer 2", "ask 3", "apply"),
        *("answer 3", "ask 4", "apply"),
        *("answer 4", "apply"),
    ]
    agrees(device, remote)


def test_a_call_ahead_acknowledges_the_cursor_and_presents_what_the_page_at_hand_reaches(
    device: SyncedDb, remote: MemoryRemote, told: Told
) -> None:
    """The log may not be cut behind more than the file has, and a server that was restored must not go unnoticed."""
    device.read()
    states = [request.node_state for request in told.requests]
    cursors = [state.acknowledged for state in states]
    presented = [state.greatest_seen.server_timestamp_ms for state in states]
    positions = [logged.position for logged in remote.server.log]
    assert cursors[1:] == [cursors[0], *positions[: GROUPS - 2]]
    assert presented[1:] == positions[: GROUPS - 1]


def test_a_call_ahead_that_fails_fails_when_its_turn_comes(device: SyncedDb, remote: MemoryRemote, told: Told) -> None:
    told.fails[3] = CallFailed("UNAVAILABLE", "", "the network is gone", again=True)
    with pytest.raises(CallFailed, match="the network is gone"):
        device.read()
    # The pages before it are in the file.
    assert told.all.count("apply") == 2
    assert device.status().cursor == remote.server.log[1].position
    told.fails.clear()
    device.read()
    agrees(device, remote)


def test_a_page_token_that_has_expired_when_its_turn_comes_is_no_failure(
    device: SyncedDb, remote: MemoryRemote, told: Told
) -> None:
    told.fails[3] = CallFailed("INVALID_ARGUMENT", "INVALID_TOKEN", "the page token has expired", again=False)
    device.read()
    assert told.requests[3].page_token == b"", "the log is read anew from the cursor"
    agrees(device, remote)


def test_a_rewind_that_a_call_ahead_finds_is_recovered_from(device: SyncedDb, remote: MemoryRemote, told: Told) -> None:
    told.fails[2] = CallFailed("OUT_OF_RANGE", "HISTORY_REWOUND", "the server was restored", again=False)
    pulls = device._file.current().pulls
    device.read()
    assert device._file.current().pulls == pulls + 1
    agrees(device, remote)


def test_another_principals_token_for_a_call_ahead_ends_the_reading(
    device: SyncedDb, remote: MemoryRemote, told: Told
) -> None:
    told.fails[2] = WrongPrincipal("the file belongs to another")
    with pytest.raises(WrongPrincipal):
        device.read()
    assert told.all == ["ask 1", "ask 2", "apply"]


def test_a_pull_while_a_page_is_applied_cancels_the_call_ahead(
    device: SyncedDb, remote: MemoryRemote, told: Told
) -> None:
    def aside(page: int) -> None:
        if page == 1:
            # As where SQLite refuses a row: the table is pulled again once the page is applied.
            with device._file.transaction() as tx:
                settle.set_aside(tx, "todo", "for this test")

    told.before_apply = aside
    pulls = device._file.current().pulls
    device.read()
    assert device._file.current().pulls == pulls + 1
    assert "cancel 3" in told.all
    assert "answer 3" not in told.all
    agrees(device, remote)


def test_nothing_is_asked_for_ahead_of_a_page_that_changes_tables(
    device: SyncedDb, remote: MemoryRemote, told: Told
) -> None:
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    remote.alter(lambda ddl: ddl.update("todo", "k4", title="after"))
    device.read()
    # The fifth page has the change.
    assert told.all[told.all.index("answer 5") :] == ["answer 5", "apply", "ask 6", "apply"]
    assert device.execute("SELECT subject FROM todo WHERE id = 'k4'").fetchone() == ("after",)


@pytest.mark.parametrize(
    ("page", "asked"),
    [
        (change_pb2.Page(), True),
        (change_pb2.Page(audiences=change_pb2.Audiences(values=["team:a"])), False),
        (
            change_pb2.Page(
                groups=[change_pb2.LoggedGroup(audience_change=change_pb2.AudienceChange(lost=["team:a"]))]
            ),
            False,
        ),
        (change_pb2.Page(groups=[change_pb2.LoggedGroup(schema_change=b"change")]), False),
    ],
)
def test_nothing_is_asked_for_ahead_of_a_page_that_changes_what_is_presented(
    device: SyncedDb, told: Told, page: change_pb2.Page, asked: bool
) -> None:
    reader = device._reader
    pages = Ahead(reader._remote, reader._report.of)
    pages.ahead(device._file.current(), page, b"0 2")
    pages.drop()
    assert told.all == (["ask 1", "cancel 1"] if asked else [])


def test_an_error_while_a_page_is_applied_ends_the_call_ahead(
    device: SyncedDb, remote: MemoryRemote, told: Told
) -> None:
    def fails(page: int) -> None:
        raise RuntimeError("as a disk would")

    told.before_apply = fails
    with pytest.raises(RuntimeError, match="as a disk would"):
        device.read()
    assert told.all == ["ask 1", "ask 2", "cancel 2"]
    told.before_apply = lambda page: None
    device.read()
    agrees(device, remote)


@pytest.mark.parametrize("field", ["pulls", "tables_version", "node_id", "held_digest", "greatest_epoch"])
def test_a_page_for_another_state_of_the_file_is_not_used(
    device: SyncedDb, remote: MemoryRemote, told: Told, field: str
) -> None:
    def changes(page: int) -> None:
        if page == 0:
            with device._file.transaction() as tx:
                now = getattr(tx.state, field)
                other = now + {int: 1, str: "x", bytes: b"x"}[type(now)]
                tx.conn.execute(f"UPDATE _db_state SET {field} = ?", (other,))

    told.before_apply = changes
    device.read()
    assert "cancel 2" in told.all
    assert "answer 2" not in told.all


class Serving:
    """A server of gRPC whose Get has two pages. ``second`` is what becomes of the second one's call."""

    def __init__(self) -> None:
        self.second: Callable[[grpc.ServicerContext], None] = lambda context: None
        self.asked = threading.Event()
        self.tokens: list[str] = []
        self.timeouts: list[float] = []

    def get(self, request: change_pb2.GetRequest, context: grpc.ServicerContext) -> change_pb2.GetResponse:
        self.tokens += [str(value) for name, value in context.invocation_metadata() if name == "authorization"]
        self.timeouts.append(context.time_remaining())
        self.asked.set()
        self.second(context)
        return change_pb2.GetResponse(next_page_token=b"there")


@pytest.fixture
def serving() -> Iterator[tuple[Serving, str]]:
    made = Serving()
    handler = grpc.unary_unary_rpc_method_handler(
        made.get, change_pb2.GetRequest.FromString, change_pb2.GetResponse.SerializeToString
    )
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("anabranch.v1.ChangeService", {"Get": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield made, f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_a_call_ahead_is_under_way_before_it_is_waited_for(serving: tuple[Serving, str]) -> None:
    served, address = serving
    remote = RemoteDb(address)
    asked = remote.get_ahead(change_pb2.GetRequest())
    assert served.asked.wait(20)
    assert asked.answer().next_page_token == b"there"
    assert 0 < served.timeouts[0] <= 120
    remote.close()


def hangs(context: grpc.ServicerContext) -> None:
    ended = threading.Event()
    context.add_callback(ended.set)
    assert ended.wait(60)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_call_ahead_that_hangs_ends_at_once(serving: tuple[Serving, str], how: str) -> None:
    served, address = serving
    served.second = hangs
    remote = RemoteDb(address)
    asked = remote.get_ahead(change_pb2.GetRequest())
    assert served.asked.wait(20)
    found: list[CallFailed] = []

    def wait() -> None:
        try:
            asked.answer()
        except CallFailed as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    asked.cancel() if how == "cancel" else remote.close()
    waiting.join(20)
    assert [(error.code, error.again) for error in found] == [("CANCELLED", True)]
    remote.close()


def test_a_call_ahead_goes_on_with_another_token_where_its_own_has_expired(serving: tuple[Serving, str]) -> None:
    served, address = serving
    given = iter(["the first", "the next"])
    refused: list[bool] = []

    def once(context: grpc.ServicerContext) -> None:
        if not refused:
            refused.append(True)
            status = to_status(CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the credentials have expired"))
            context.set_trailing_metadata(tuple(status.trailing_metadata))
            context.abort(status.code, status.details)

    served.second = once
    remote = RemoteDb(address, token=lambda: next(given))
    assert remote.get_ahead(change_pb2.GetRequest()).answer().next_page_token == b"there"
    assert served.tokens == ["Bearer the first", "Bearer the next"]
    remote.close()


def test_the_app_closes_the_device_while_a_call_ahead_hangs(tmp_path: Path, serving: tuple[Serving, str]) -> None:
    """``close`` of an app ends a reading of another thread, and leaves no thread behind."""
    served, address = serving
    remote = RemoteDb(address)
    file = SyncedDb(tmp_path / "device.db", remote, "d", "device")
    current = file._file.current()
    pages = Ahead(remote, lambda state: state.reader_state)
    response, _ = pages.page(current, b"")
    served.second, served.asked = hangs, threading.Event()
    pages.ahead(current, response.page, response.next_page_token)
    assert served.asked.wait(20)
    failed: list[Any] = []

    def read() -> None:
        try:
            pages.page(current, response.next_page_token)
        except CallFailed as error:
            failed.append(error.again)

    reading = threading.Thread(target=read)
    reading.start()
    file.close()
    reading.join(20)
    assert failed == [True]
