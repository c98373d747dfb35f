"""Row-level security: devices get every row, so that a table that hides rows from people is synced only by whoever says
so; and it is told where it came later."""

from __future__ import annotations

import pytest

from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift, fingerprint, stopped_tables
from anabranch.store.catalog.gather import add_tables, restart_captures
from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.catalog.set_policy import set_table_policy
from anabranch.store.log.reader import Sums
from anabranch.store.session.engine import Session
from anabranch_snapshot.describe import describe

SEEN = {"every_device_sees_every_row": True}
SECURED = "alter table app.t enable row level security"


@pytest.fixture
def secured(conn: Session) -> Session:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id text primary key, owner text)")
    conn.execute(SECURED)
    return conn


@pytest.mark.parametrize(
    "more",
    [
        "select 1",
        "create policy own on app.t using (owner = current_user)",
        "create policy all_of_it on app.t using (true)",
    ],
    ids=["no policy, so that others see nothing", "a policy", "a policy that shows all"],
)
def test_row_security_that_binds_others_is_refused(secured: Session, more: str) -> None:
    secured.execute(more.encode())
    with pytest.raises(RegistrationError) as caught:
        add_table(secured, "d", "t")
    assert caught.value.reasons == [TableRefusal.ROW_SECURITY_OF_OTHERS]
    with pytest.raises(RegistrationError) as caught:
        add_tables(secured, "d", ["t"], now_ms=1)
    assert caught.value.reasons == [TableRefusal.ROW_SECURITY_OF_OTHERS]


def test_who_says_that_every_device_sees_every_row_may_sync_it_and_that_is_kept(secured: Session) -> None:
    add_tables(secured, "d", ["t"], SEEN, now_ms=1)
    assert load_database(secured, "d").table_policies["t"].every_device_sees_every_row
    assert drift(secured, load_database(secured, "d")) == []
    restart_captures(secured, "d", ["t"], now_ms=2)
    assert load_database(secured, "d").table_policies["t"].every_device_sees_every_row


def test_row_security_that_binds_ourselves_is_refused_whatever_is_said(secured: Session) -> None:
    secured.execute("alter table app.t force row level security")
    with pytest.raises(RegistrationError) as caught:
        add_table(secured, "d", "t", SEEN)
    assert caught.value.reasons == [TableRefusal.ROW_SECURITY]


def test_row_security_that_comes_later_is_told_and_stops_nothing(conn: Session) -> None:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id text primary key, owner text)")
    add_table(conn, "d", "t")
    before = fingerprint(conn, "d")
    assert drift(conn, load_database(conn, "d")) == []
    conn.execute(SECURED)
    assert fingerprint(conn, "d") != before, "services look again"
    differences = drift(conn, load_database(conn, "d"))
    [one] = differences
    assert "row-level security" in one.text
    assert not stopped_tables(differences)
    # Capture can be turned on again: its rows are on devices already.
    restart_captures(conn, "d", ["t"], now_ms=2)
    set_table_policy(conn, "d", "t", SEEN, ())
    assert drift(conn, load_database(conn, "d")) == []


def test_devices_are_told_that_they_see_every_row(secured: Session) -> None:
    secured.execute("create table app.plain (id text primary key)")
    add_table(secured, "d", "t", SEEN)
    add_table(secured, "d", "plain")
    told = describe(load_database(secured, "d"), Sums(0, b"", "", 0, 0, ()), {})
    assert {one.name: one.every_device_sees_every_row for one in told.tables} == {"t": True, "plain": False}
