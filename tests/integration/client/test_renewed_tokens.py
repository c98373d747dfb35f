"""Tokens that end while a device is at work: it goes on with the next one, and loses and doubles nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from anabranch.client import CallFailed, RemoteDb, State, SyncedDb, TokenFailed, WrongPrincipal
from anabranch.client.queue import send_stream, sender
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("renewed-tokens")]
SECRET = "a secret that is long enough for HS256"
TROUBLE = {"unauthenticated", "offline", "error", "wrong_principal"}


class Issuer:
    """An app's function for tokens, which keeps one until it has ended, as a sensible app does."""

    def __init__(self, name: str, life_s: float) -> None:
        self.name = name
        self.life_s = life_s
        self.subject = "alice"
        self.issued: list[str] = []
        self.asked = 0
        self.fails: Exception | None = None
        self.stale = False
        """Whether it goes on giving what it has."""
        self._until = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.asked += 1
            if self.fails is not None:
                raise self.fails
            if time.time() >= self._until and not (self.stale and self.issued):
                self._until = time.time() + self.life_s
                claims = {"sub": self.subject, "exp": self._until, "anabranch_database": self.name}
                self.issued.append(jwt.encode(claims, SECRET, "HS256"))
            return self.issued[-1]

    def login(self, subject: str) -> None:
        """Give another person's tokens from now on."""
        with self._lock:
            self.subject, self._until = subject, 0.0


class Calls(RemoteDb):
    """Counts streams that were opened."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.opened: Counter[str] = Counter()

    def _stream(self, name: str, *arguments: Any) -> Any:
        self.opened[name] += 1
        return super()._stream(name, *arguments)


@pytest.fixture(scope="module")
def stack(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = databases.fresh()
    environment = {"ANABRANCH_JWT_HS256_SECRET": SECRET, "ANABRANCH_JWT_LEEWAY_MS": "0"}
    with Stack(url, folder=tmp_path_factory.mktemp("stack"), environment=environment) as running:
        yield running
    databases.release(url)


@pytest.fixture
def here(place: Any) -> Any:
    return place({"todo": "id text primary key, title text"})


def connected(here: Any, issuer: Issuer) -> tuple[SyncedDb, Calls, list[State]]:
    """A device with the app's tokens, the same file each time; its remote, and the states that it told of."""
    addresses = here.stack.addresses
    remote = Calls(
        ingest=addresses["ingest"],
        snapshot=addresses["snapshot"],
        resolver=addresses["conflict-resolver"],
        token=issuer,
    )
    made = here.device("a", remote=remote)
    states: list[State] = []
    made.on_state(states.append)
    return made, remote, states


def kinds(states: list[State]) -> set[str]:
    return {state.kind for state in states} & TROUBLE


def test_a_device_follows_and_sends_across_the_ends_of_its_tokens(here: Any) -> None:
    issuer = Issuer(here.name, 1.2)
    device, remote, states = connected(here, issuer)
    inserted: Counter[str] = Counter()
    device.on_change(lambda change: inserted.update([str(change.key[0])]) if change.type == "insert" else None)
    device.start()
    number = 0

    def write_on() -> bool:
        nonlocal number
        here.sql(f"insert into todo values ('s{number}', 'by SQL')")
        device.table("todo").insert({"id": f"d{number}", "title": "by the device"})
        number += 1
        return remote.opened["subscribe"] >= 4 and len(issuer.issued) >= 4

    until(write_on, why="the stream was not opened again with the tokens that followed")
    assert device.flush()
    rows = [row for (row,) in here.sql('select id from todo order by id collate "C"')]
    assert len(rows) == 2 * number
    until(lambda: [row for (row,) in device.execute("SELECT id FROM todo ORDER BY id").fetchall()] == rows)
    until(lambda: device.status().queued == 0)
    dead = device.status().dead
    device.close()
    assert set(inserted.values()) == {1}
    assert len(inserted) == 2 * number
    assert kinds(states) == set(), "the app has nothing to notice"
    assert dead == 0, "a batch that was decided twice would be refused"


def test_a_long_flush_goes_on_with_the_next_token(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer(here.name, 1.0)
    device, remote, _ = connected(here, issuer)
    device.start(background=False)
    batches = 600
    for number in range(batches):
        device.table("todo").insert({"id": f"d{number}", "title": "by the device"})
    # A few at a time, and each answer takes its time, as through a poor network. What is left goes on as a stream.
    monkeypatch.setattr(sender, "_CALL_ENVELOPES", 50)
    monkeypatch.setattr(send_stream, "_WINDOW", 100)
    monkeypatch.setattr(send_stream, "_REQUEST_ENVELOPES", 50)
    answer = device._sender._answer

    def slowly(*arguments: Any) -> None:
        time.sleep(0.6)
        answer(*arguments)

    monkeypatch.setattr(device._sender, "_answer", slowly)
    assert device.sync()
    assert remote.opened["send_stream"] >= 2, "no token ended under way"
    assert here.sql("select count(*) from todo") == [(batches,)]
    assert device.status().dead == 0
    device.close()


def test_a_first_pull_goes_on_with_the_next_token_where_it_was(here: Any) -> None:
    rows = 4_000
    here.sql(f"insert into todo select 'r' || n, repeat(md5(n::text), 400) from generate_series(1, {rows}) n")
    issuer = Issuer(here.name, 1.0)
    device, remote, states = connected(here, issuer)
    done: list[int] = []

    def slowly(progress: Any) -> None:
        done.append(progress.rows_done)
        time.sleep(0.15)

    device.start(background=False, progress=slowly)
    assert remote.opened["pull"] >= 2, "no token ended under way"
    assert done == sorted(done), "no part came twice"
    assert device.execute("SELECT count(*) FROM todo").fetchone() == (rows,)
    assert device.status().disagreeing == ()
    assert kinds(states) == set()
    device.close()


@pytest.mark.parametrize("way", ["raises", "stale"])
def test_a_function_without_a_good_token_is_asked_seldom_and_told_of(here: Any, way: str) -> None:
    issuer = Issuer(here.name, 1.0)
    device, _, states = connected(here, issuer)
    device.start()
    until(lambda: "online" in [state.kind for state in states])
    if way == "raises":
        issuer.fails = RuntimeError("the refresh token is used up")
    issuer.stale = True
    device.table("todo").insert({"id": "x", "title": "kept"})
    until(lambda: "unauthenticated" in kinds(states))
    told = next(state.detail for state in states if state.kind == "unauthenticated")
    assert ("RuntimeError: the refresh token is used up" if way == "raises" else "CREDENTIALS_EXPIRED") in told
    asked = issuer.asked
    time.sleep(4)
    assert issuer.asked - asked <= 16, "two halves, each after 0.5 s, 1 s, 2 s, and twice at most"
    assert kinds(states) == {"unauthenticated"}
    issuer.fails, issuer.stale = None, False
    until(lambda: states[-1].kind == "online", 60)
    until(lambda: device.status().queued == 0, 60)
    assert here.sql("select id from todo") == [("x",)]
    device.close()


def test_an_app_that_calls_itself_gets_the_functions_error(here: Any) -> None:
    issuer = Issuer(here.name, 60.0)
    device, _, _ = connected(here, issuer)
    device.start(background=False)
    device.table("todo").insert({"id": "x", "title": "kept"})
    issuer.fails = ConnectionError("no way to the issuer")
    with pytest.raises(TokenFailed, match="no way to the issuer") as caught:
        device.sync()
    assert isinstance(caught.value, CallFailed)
    assert caught.value.code == "UNAVAILABLE"
    issuer.fails = None
    assert device.sync()
    device.close()


def test_the_token_of_another_person_stops_the_sync_and_keeps_the_queue(here: Any) -> None:
    issuer = Issuer(here.name, 1.0)
    device, _, states = connected(here, issuer)
    device.start()
    device.table("todo").insert({"id": "sent", "title": "alice's"})
    until(lambda: device.status().queued == 0)
    issuer.login("bob")
    until(lambda: "wrong_principal" in kinds(states), 20)
    with pytest.raises(WrongPrincipal):
        device.execute("SELECT id FROM todo")
    with pytest.raises(WrongPrincipal):
        device.table("todo").insert({"id": "bob's", "title": "bob's"})
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("anabranch-")], why="it goes on")
    device.close()
    assert here.sql("select id from todo") == [("sent",)]


def test_what_is_queued_when_another_person_logs_in_is_sent_when_its_own_is_back(here: Any) -> None:
    issuer = Issuer(here.name, 1.0)
    device, _, _ = connected(here, issuer)
    device.start(background=False)
    for number in range(5):
        device.table("todo").insert({"id": f"x{number}", "title": "alice's"})
    issuer.login("bob")
    with pytest.raises(WrongPrincipal):
        device.flush()
    with pytest.raises(WrongPrincipal):
        device.read()
    assert (device.status().unsent, device.status().dead) == (5, 0)
    assert here.sql("select id from todo") == []
    device.close()
    issuer.login("alice")
    device, _, _ = connected(here, issuer)
    device.start(background=False)
    assert device.sync()
    assert here.sql("select count(*) from todo") == [(5,)]
    device.close()
