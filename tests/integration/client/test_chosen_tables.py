"""Devices that have chosen some of the tables, against the real services."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from anabranch.client import NotChosen, State, SyncedDb
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit import waiting
from anabranch.testkit.remote import remote_of

until = partial(waiting.until, timeout_s=20.0)

TABLES = {
    "flight": "id bigint primary key, delay integer",
    "note": "id text primary key, flight bigint references flight, body text",
    "log": "id bigint primary key, body text",
}


def tables_of(device: SyncedDb) -> set[str]:
    rows = device.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows if not name.startswith(("_db_", "sqlite_"))}


def rows(device: SyncedDb, table: str) -> list[tuple[Any, ...]]:
    return device.execute(f'SELECT * FROM "{table}" ORDER BY 1').fetchall()


@pytest.fixture
def here(place: Any) -> Any:
    made = place(TABLES)
    made.sql("insert into flight select g, 0 from generate_series(1, 50) g")
    made.sql("insert into note select g::text, g, 'note ' || g from generate_series(1, 50) g")
    made.sql("insert into log select g, 'log ' || g from generate_series(1, 50) g")
    return made


@pytest.mark.slow
def test_a_chosen_table_whose_references_are_not_is_kept_in_step(here: Any) -> None:
    whole, some = here.device("whole"), here.device("some", tables=["note"])
    for device in (whole, some):
        device.start(background=False)
        device.read()
    assert tables_of(some) == {"note"}
    assert rows(some, "note") == rows(whole, "note")
    with whole.batch():
        whole.table("flight").insert({"id": 99, "delay": 1})
        whole.table("note").insert({"id": "of 99", "flight": 99, "body": "its row is not on the other device"})
        whole.table("log").update({"id": 1, "body": "changed"})
    whole.table("flight").update({"id": 1, "delay": 7})
    assert whole.sync()
    # A row refers to one that this device has not, which is the server's matter alone.
    some.table("note").insert({"id": "mine", "flight": 99, "body": "mine"})
    some.table("note").insert({"id": "of none", "flight": 12345, "body": "refused"})
    with pytest.raises(NotChosen, match="this device has chosen: note"):
        some.table("flight").update({"id": 1, "delay": 9})
    assert some.sync()
    (letter,) = some.dead_letters()
    assert (letter.reason, letter.table) == ("CONSTRAINT", "note")
    assert whole.sync()
    assert rows(some, "note") == rows(whole, "note")
    some.read()
    assert some.status().cursor >= whole.status().cursor
    assert some.verify() == whole.verify() == ()
    assert some.table_sums() == {"note": whole.table_sums()["note"]}
    assert some.repair("note").agrees


@pytest.mark.slow
def test_a_background_pulls_what_is_chosen_at_once_and_follows_it(here: Any) -> None:
    key = here.stack.new_key("device", database=here.name)
    whole = here.device("whole")
    some, other = (here.device("some", remote=remote_of(here.stack.addresses, key), tables=["flight"]) for _ in "12")
    states: list[State] = []
    some.on_state(states.append)
    for device in (whole, some, other):
        device.start()
    until(lambda: any(s.kind == "online" for s in states))
    some.choose_tables(["note", "log"])
    assert tables_of(some) == set()
    until(lambda: some.status().awaited == ())
    assert tables_of(some) == {"note", "log"}
    whole.table("note").update({"id": "1", "body": "followed"})
    whole.table("flight").update({"id": 1, "delay": 5})
    until(lambda: some.execute("SELECT body FROM note WHERE id = '1'").fetchone() == ("followed",))
    some.table("log").update({"id": 1, "body": "mine"})
    until(lambda: whole.execute("SELECT body FROM log WHERE id = 1").fetchone() == ("mine",))
    assert [s.detail for s in states if s.kind == "given_up"] == ["flight"]
    assert not [s for s in states if s.kind in ("offline", "error", "sums_disagree", "set_aside")]
    # A follower's choice is heeded by the process that syncs.
    other.choose_tables(["flight", "log"])
    assert tables_of(other) == {"log"}
    until(lambda: tables_of(some) == {"flight", "log"} and some.status().awaited == ())
    until(lambda: some.execute("SELECT delay FROM flight WHERE id = 1").fetchone() == (5,))
    assert some.status().disagreeing == ()


@pytest.mark.slow
def test_a_table_that_is_registered_later_comes_where_it_is_chosen(here: Any) -> None:
    here.sql("create table later (id text primary key, body text)")
    here.sql("insert into later values ('a', 'there before')")
    waits, ignores, all_of_them = (
        here.device("waits", tables=["flight", "later"]),
        here.device("ignores", tables=["flight"]),
        here.device("all"),
    )
    states: list[State] = []
    waits.on_state(states.append)
    for device in (waits, ignores, all_of_them):
        device.start(background=False)
    assert [s.table for s in states if s.kind == "not_synced"] == ["later"]
    assert waits.status().awaited == ("later",)
    with connect(here.stack.database_url, application_name="test", autocommit=True) as conn:
        registration.add_table(conn, here.name, "later")
    here.sql("insert into later values ('b', 'added')")

    def came() -> bool:
        for device in (waits, ignores, all_of_them):
            device.read()
        return "later" in tables_of(waits) and len(rows(waits, "later")) == 2

    until(came)
    assert tables_of(waits) == {"flight", "later"}
    assert tables_of(ignores) == {"flight"}
    assert tables_of(all_of_them) == {"flight", "note", "log", "later"}
    assert waits.table_sums()["later"] == all_of_them.table_sums()["later"]
    for device in (waits, ignores, all_of_them):
        assert device.status().disagreeing == ()


@pytest.mark.slow
def test_a_device_whose_only_table_is_not_there_yet_follows_the_log(here: Any) -> None:
    nothing = here.device("nothing", tables=["later"])
    nothing.start(background=False)
    assert nothing.status().pulls == 1
    here.sql("update flight set delay = 3 where id = 1")

    def read() -> bool:
        whole.read()
        nothing.read()
        return bool(whole.execute("SELECT delay FROM flight WHERE id = 1").fetchone() == (3,))

    whole = here.device("whole")
    whole.start(background=False)
    until(read)
    assert nothing.status().cursor >= whole.status().cursor
    nothing.choose_tables(["flight", "later"])
    nothing.read()
    assert rows(nothing, "flight") == rows(whole, "flight")
    assert nothing.verify() == ()
