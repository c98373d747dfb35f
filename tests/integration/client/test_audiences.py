"""Devices of a database with restricted tables, on real services."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from tests.integration.client.test_agreement import run_verify

from anabranch.client import SyncedDb
from anabranch.testkit.waiting import until

MEMBER = "id text primary key, user_id text not null, room_id text not null"
MESSAGE = "id text primary key, room_id text not null, body text"
AUDIENCES = {"member": "'room:' || room_id", "message": "'room:' || room_id"}
RULES = {"memberships": ["select 'room:' || room_id from member where user_id = :principal"]}
FILL = (
    "insert into member values ('a', 'alice', 'r1'), ('b', 'bob', 'r2')",
    "insert into message select 'm' || i, 'r' || i % 3, 'body ' || i from generate_series(1, 3000) i",
)


@pytest.fixture
def here(place: Any) -> Any:
    return place({"member": MEMBER, "message": MESSAGE}, setup=FILL, audiences=AUDIENCES, rules=RULES)


def rooms(device: SyncedDb) -> dict[str, int]:
    """How many messages of each room the device has."""
    return dict(device.execute("SELECT room_id, count(*) FROM message GROUP BY room_id ORDER BY room_id").fetchall())


@pytest.mark.slow
def test_a_grant_and_a_revocation_reach_a_device_that_follows_the_log(here: Any) -> None:
    alice, bob = here.device("a", subject="alice"), here.device("b", subject="bob")
    alice.start()
    bob.start()
    until(lambda: (rooms(alice), rooms(bob)) == ({"r1": 1000}, {"r2": 1000}), 20)
    here.sql("insert into member values ('a2', 'alice', 'r2')")
    until(lambda: rooms(alice) == {"r1": 1000, "r2": 1000}, 20, lambda: str(rooms(alice)))
    alice.table("message").update({"id": "m2", "body": "from alice"})
    until(lambda: bob.execute("SELECT body FROM message WHERE id = 'm2'").fetchall() == [("from alice",)], 20)
    here.sql("begin; delete from member where id = 'a2'; update message set body = 'secret' where id = 'm2'; commit")
    until(lambda: rooms(alice) == {"r1": 1000}, 20, lambda: str(rooms(alice)))
    assert alice.verify() == bob.verify() == ()
    refused = alice.dead_letters()
    assert refused == []
    assert rooms(bob) == {"r2": 1000}


@pytest.mark.slow
def test_a_file_is_compared_by_what_its_device_may_see(here: Any) -> None:
    alice = here.device("a", subject="alice")
    alice.start(background=False)
    alice.read()
    file = here.folder / "a.db"
    code, told = run_verify(here, "--device", str(file))
    assert code == 0, told
    with closing(sqlite3.connect(file)) as conn, conn:
        # Foreign writes are refused by triggers, which stand in the way of damage, too.
        for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            conn.execute(f'DROP TRIGGER "{name}"')
        conn.execute("DELETE FROM message WHERE id = 'm1'")
        conn.execute("UPDATE message SET body = 'flipped' WHERE id = 'm4'")
    code, told = run_verify(here, "--device", str(file))
    assert code == 1
    assert "m1" in told
    assert "'flipped' on the device, 'body 4' on the server" in told
