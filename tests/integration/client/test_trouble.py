"""A device's calls fail, answers are lost, history is cut, or somebody else logs in."""

from __future__ import annotations

import time
from typing import Any

import pytest

from anabranch.client import CallFailed, RemoteDb, State, WrongPrincipal
from anabranch.testkit.network import Network
from anabranch.testkit.remote import remote_of
from anabranch.testkit.waiting import until
from anabranch.v1 import ingest_pb2, snapshot_pb2

TODO = {"todo": "id text primary key, title text"}


@pytest.mark.parametrize(("size", "before"), [(20_000, 0), (1, 2)], ids=["of a call", "of a message"])
def test_a_lost_answer_changes_nothing(place: Any, size: int, before: int) -> None:
    """Small writes are messages once a call and the message that opens the stream were answered."""
    here, network = place(TODO), Network()
    a = here.device("a", remote=here.remote(interceptors=[network]))
    a.start(background=False)
    a.table("todo").insert({"id": "x", "title": "one"})
    assert a.flush()
    node = a.status().node_id
    titles = [f"{i}".rjust(size) for i in range(3 * (before + 1))]
    for i, title in enumerate(titles):
        a.table("todo").update({"id": "x", "title": title})
        if i % (before + 1) < before:
            assert a.flush()
            continue
        assert network.streams_open == bool(before)
        network.lose_answers(1)
        with pytest.raises(CallFailed):
            a.flush()
    assert network.answers_lost == 3
    assert a.sync()
    assert a.status().node_id == node
    assert here.sql("select title from todo") == [(titles[-1],)]
    assert batches(here) == 1 + len(titles)


def test_a_network_that_is_cut_takes_no_message(place: Any) -> None:
    here, network = place(TODO), Network()
    a = here.device("a", remote=here.remote(interceptors=[network]))
    a.start(background=False)
    for i in range(3):
        a.table("todo").insert({"id": f"{i}", "title": "sent"})
        assert a.flush()
    assert network.streams_open == 1
    network.cut()
    a.table("todo").insert({"id": "x", "title": "kept"})
    with pytest.raises(CallFailed):
        a.flush()
    assert batches(here) == 3
    network.restore()
    assert a.flush()
    assert batches(here) == 4


def batches(here: Any) -> int:
    [(found,)] = here.sql(
        f"select count(*) from anabranch.batches b join anabranch.databases d on d.id = b.database_id "
        f"where d.name = '{here.name}'"
    )
    return int(found)


def test_behind_the_floor_a_new_snapshot_is_taken_and_the_queue_kept(place: Any) -> None:
    here = place(TODO)
    a, b = here.device("a"), here.device("b")
    for device in (a, b):
        device.start(background=False)
    a.table("todo").insert([{"id": "x", "title": "one"}, {"id": "gone", "title": "gone"}])
    assert a.sync()
    b.read()
    b.table("todo").insert({"id": "y", "title": "unsent"})
    a.table("todo").delete("gone")
    a.table("todo").insert({"id": "z", "title": "three"})
    assert a.sync()
    here.sql(
        f"update anabranch.databases d set floor_ms = (select max(position) from anabranch.groups g "
        f"where g.database_id = d.id) where name = '{here.name}'"
    )
    here.sql(f"select pg_notify('anabranch_catalog', id::text) from anabranch.databases where name = '{here.name}'")
    until(lambda: (b.read(), b.status().pulls == 2)[1])
    assert b.execute("SELECT id FROM todo ORDER BY id").fetchall() == [("x",), ("y",), ("z",)]
    assert b.status().queued == 1
    assert b.sync()
    a.read()
    assert (
        a.execute("SELECT * FROM todo ORDER BY id").fetchall() == b.execute("SELECT * FROM todo ORDER BY id").fetchall()
    )
    assert (b.status().queued, b.status().disagreeing) == (0, ())


def test_a_revoked_key_is_told_as_what_it_is_and_a_new_one_goes_on(place: Any) -> None:
    here = place(TODO)
    keys = [here.stack.new_key("device", database=here.name)]
    a = here.device("a", remote=remote_of(here.stack.addresses, lambda: keys[-1]))
    states: list[State] = []
    a.on_state(states.append)
    a.start()
    until(lambda: "online" in [s.kind for s in states])
    key_id = keys[0].split("_")[1]
    here.sql(f"update anabranch.api_keys set revoked_ms = 1 where id = '{key_id}'")
    old = remote_of(here.stack.addresses, lambda: keys[0])

    def refused() -> bool:
        try:
            old.send(ingest_pb2.SendRequest(db_name=here.name))
        except CallFailed as error:
            return error.code == "UNAUTHENTICATED"
        return False

    # ingest looks again within a second or so.
    until(refused)
    old.close()
    a.table("todo").insert({"id": "x", "title": "kept"})
    until(lambda: "unauthenticated" in [s.kind for s in states])
    (told,) = [s for s in states if s.kind == "unauthenticated"]
    assert told.detail.startswith("CREDENTIALS_EXPIRED")
    assert "offline" not in [s.kind for s in states]
    assert a.status().unsent == 1
    keys.append(here.stack.new_key("device", database=here.name))
    a.network_up()
    until(lambda: a.status().unsent == 0)
    until(lambda: states[-1].kind == "online")
    assert here.sql("select id from todo") == [("x",)]


def test_another_principal_is_told_so_and_nothing_of_the_queue_leaks(place: Any) -> None:
    here = place(TODO)
    alice = here.device("d", subject="alice")
    alice.start(background=False)
    alice.table("todo").insert({"id": "x", "title": "sent"})
    assert alice.sync()
    alice.table("todo").insert({"id": "secret", "title": "alice's"})
    alice.close()
    bob = here.device("d", subject="bob")
    states: list[State] = []
    bob.on_state(states.append)
    with pytest.raises(WrongPrincipal, match="belongs to another principal"):
        bob.start()
    with pytest.raises(WrongPrincipal):
        bob.execute("SELECT id FROM todo")
    assert states == []
    assert here.sql("select id from todo") == [("x",)]
    bob.clear()
    bob.start()
    assert bob.execute("SELECT id FROM todo").fetchall() == [("x",)]
    bob.table("todo").insert({"id": "bob", "title": "bob's"})
    until(lambda: bob.status().queued == 0)
    assert here.sql("select id from todo order by id") == [("bob",), ("x",)]


@pytest.mark.slow
def test_services_that_die_are_waited_for_and_told_of(place: Any) -> None:
    here = place(TODO)
    a = here.device("a")
    states: list[str] = []
    a.on_state(lambda state: states.append(state.kind))
    a.start()
    until(lambda: "online" in states)
    here.stack.kill("ingest")
    here.stack.kill("snapshot")
    a.table("todo").insert({"id": "x", "title": "offline"})
    until(lambda: "offline" in states)
    here.stack.restart("ingest")
    here.stack.restart("snapshot")
    a.network_up()
    until(lambda: a.status().queued == 0)
    until(lambda: "online" in states[states.index("offline") :])
    assert here.sql("select title from todo") == [("offline",)]


def test_a_token_that_is_no_longer_good_is_asked_for_again(place: Any) -> None:
    here = place(TODO)
    keys = ["not-a-key", here.stack.new_key("device", database=here.name)]
    given: list[str] = []

    def token() -> str:
        given.append(keys[0] if len(given) in (4, 5) else keys[1])
        return given[-1]

    a = here.device("a", remote=here.remote())
    a._remote._token = token
    a.start(background=False)
    a.table("todo").insert({"id": "x", "title": "kept"})
    failures = 0
    for _ in range(4):
        try:
            done = a.sync()
        except CallFailed as error:
            assert error.reason == "UNAUTHENTICATED"  # noqa: PT017
            failures += 1
        else:
            assert done
    assert failures >= 1
    assert here.sql("select title from todo") == [("kept",)]


def test_an_unsent_batch_expires_by_the_servers_clock(place: Any) -> None:
    here = place(TODO)
    day_ms = 24 * 3600 * 1000
    offset = [0]
    a = here.device("a", now_ms=lambda: time.time_ns() // 1_000_000 + offset[0])
    a.start(background=False)
    a.table("todo").insert({"id": "old", "title": "old"})
    try:
        offset[0] = 8 * day_ms
        here.stack.set_clock_offset(8 * day_ms)
        a.table("todo").insert({"id": "new", "title": "new"})
        assert a.sync()
        assert [d.reason for d in a.dead_letters()] == ["EXPIRED"]
        assert here.sql("select id from todo") == [("new",)]
        assert a.execute("SELECT id FROM todo").fetchall() == [("new",)]
    finally:
        here.stack.set_clock_offset(0)


def test_plaintext_goes_to_loopback_only() -> None:
    with pytest.raises(ValueError, match="no address for resolver"):
        RemoteDb(ingest="a:1", snapshot="b:2")
    remote = RemoteDb("127.0.0.1:1")
    with pytest.raises(CallFailed) as failed:
        remote.describe(snapshot_pb2.DescribeRequest())
    assert (failed.value.code, failed.value.again) == ("UNAVAILABLE", True)
    remote.close()
