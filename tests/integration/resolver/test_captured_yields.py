"""Direct writers go first: they are never the victim of a deadlock with a group, and never wait for one that waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from anabranch.store.session.engine import Session
from anabranch.store.session.errors import PostgresError
from anabranch.testkit.oracle import read_server, replay
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.captured import limits
from anabranch_conflict_resolver.group import attempt, next_try, statements

UNIQUE = "create table todo (id text primary key, title text unique, done boolean)"


def test_in_a_deadlock_the_group_gives_way(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig: ResolverRig = make_rig(UNIQUE)
    rig.sql("insert into app.todo values ('r', 'r', false)")
    rig.drain()
    node = rig.node("a")
    node.see()
    made = node.send(
        node.make(
            ("update", "todo", [{"id": "r", "done": True}]),
            ("insert", "todo", [{"id": "new", "title": "wanted"}]),
        )
    )
    writer = rig.session()
    writer.execute("insert into app.todo values ('other', 'wanted', false)")
    send, waits, failed = statements._send, threading.Event(), []

    def write_the_row() -> None:
        waits.set()
        try:
            # The group holds this row, and is about to wait for the writer's title.
            writer.execute("update app.todo set done = false where id = 'r'")
            writer.commit()
        except PostgresError as error:
            failed.append(error)

    thread = threading.Thread(target=write_the_row)

    def then_somebody_waits(*arguments: Any) -> Any:
        if not waits.is_set():
            thread.start()
            waits.wait(10)
            rig.until_waiting()
        return send(*arguments)

    monkeypatch.setattr(statements, "_send", then_somebody_waits)
    assert rig.commit is not None
    rig.commit(rig.database.id, 100, 0)
    thread.join(10)
    assert not failed
    assert rig.outcome(made) == "PENDING"
    monkeypatch.undo()
    for _ in range(50):
        rig.drain()
        if rig.outcome(made) != "PENDING":
            break
    assert rig.outcome(made) == "CONSTRAINT"
    writer.close()


def test_a_session_that_claims_gives_up_before_anybody_looks_for_a_deadlock(migrated_url: str) -> None:
    from anabranch.store.inbox.claim import open_session, session_options

    options = session_options(statement_timeout_ms=10_000, lock_timeout_ms=60_000, idle_timeout_ms=5_000)
    with open_session(migrated_url, options) as session:
        row = session.execute(
            "select current_setting('lock_timeout')::interval < current_setting('deadlock_timeout')::interval"
        ).fetchone()
        assert row == (True,)


def test_prepared_transactions_come_when_they_are_committed(rig: ResolverRig) -> None:
    [(most,)] = rig.sql("select current_setting('max_prepared_transactions')::int")
    if not most:
        pytest.skip("the server allows no prepared transactions")
    for name, row in (("kept", "a"), ("dropped", "b")):
        session = rig.session()
        session.execute(f"insert into app.todo values ('{row}', 'milk', false)".encode())
        session.execute(f"prepare transaction 'anabranch test {name}'".encode())
        session.commit()
        session.close()
    rig.sql("insert into app.todo values ('c', 'milk', false)")
    rig.drain()
    assert rig.sql("select key from anabranch.log") == [("c",)]
    rig.sql("rollback prepared 'anabranch test dropped'")
    rig.sql("commit prepared 'anabranch test kept'")
    rig.drain()
    assert rig.sql("select key from anabranch.log order by position") == [("c",), ("a",)]


@pytest.mark.slow
def test_a_long_transaction_has_its_whole_time_again_after_each_piece(migrated_url: str) -> None:
    from anabranch.store.inbox.claim import open_session, renew, session_options

    options = session_options(statement_timeout_ms=200, lock_timeout_ms=100, idle_timeout_ms=5_000)
    with open_session(migrated_url, options) as session:
        [(limit,)] = session.execute("select current_setting('transaction_timeout', true)").fetchall()
        if limit is None:
            pytest.skip("this Postgres has no transaction_timeout")
        session.rollback()
        for _ in range(8):
            session.execute("select pg_sleep(0.15)")
            renew(session)
        session.commit()
        with pytest.raises(PostgresError):
            _sleep(session, 8)


def _sleep(session: Session, times: int) -> None:
    for _ in range(times):
        session.execute("select pg_sleep(0.15)")


def test_a_table_that_somebody_locks_holds_up_only_its_own_batches(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id text primary key); create table u (id text primary key)", U)
    nodes = [rig.node("a"), rig.node("b")]
    rig.sql("insert into app.t values ('by sql')")
    rig.drain()
    rig.sql("insert into app.t values ('by sql, too')")
    with rig.session() as somebody:
        somebody.execute("lock table app.t in access exclusive mode")
        held, other = nodes[0].insert("t", {"id": "1"}), nodes[1].insert("u", {"id": "1"})
        assert rig.commit is not None
        rig.commit(rig.database.id, 100, 0)
        assert rig.outcome(other) == ["APPLIED"]
        assert rig.outcome(held) == "PENDING"
    rig.until_decided(held)
    assert rig.outcome(held) == ["APPLIED"]


@pytest.mark.parametrize("most_rows", [5_000, 3], ids=["beside batches", "a backlog"])
def test_a_resolver_that_just_began_drains_a_table_that_somebody_locks(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    monkeypatch.setattr(limits, "MOST_ROWS", most_rows)
    rig: ResolverRig = make_rig("create table t (id text primary key); create table u (id text primary key)", U)
    for key in "abcd":
        rig.sql("insert into app.t values (%s)", [key])
    with rig.session() as somebody:
        somebody.execute("lock table app.t in access exclusive mode")
        other = rig.node("b").insert("u", {"id": "1"})
        assert rig.commit is not None
        while rig.commit(rig.database.id, 100, 0):
            pass
        assert rig.outcome(other) == ["APPLIED"]
        assert rig.sql("select key from anabranch.log order by key") == [(key,) for key in "1abcd"]
    rig.check()


U = {"t": None, "u": None}


HOT = """
create table counter (id text primary key, n bigint);
create table item (id text primary key);
create function tally() returns trigger language plpgsql as
    $$ begin update app.counter set n = n + 1 where id = 'c'; return null; end $$;
create trigger tally after insert on item for each row execute function tally();
insert into counter values ('c', 0);
"""


def test_a_batch_that_changes_what_others_change_all_the_time_waits_and_is_not_blamed(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trigger counts in a row that somebody holds whenever the group would lock it."""
    rig: ResolverRig = make_rig(HOT, {"counter": None, "item": None})
    made = rig.node("a").insert("item", {"id": "i"})
    load, writer = attempt._load, rig.session()
    loads: list[int] = []

    def while_somebody_writes(*arguments: Any) -> Any:
        writer.execute("update app.counter set n = n + 10")
        view = load(*arguments)
        writer.commit()
        loads.append(1)
        return view

    monkeypatch.setattr(attempt, "_load", while_somebody_writes)
    rig.sql("insert into app.item values ('by sql')")
    assert rig.commit is not None
    rig.commit(rig.database.id, 100, 0)
    assert len(loads) > next_try.OVERTAKEN_AT_MOST
    assert rig.outcome(made) == "PENDING"
    monkeypatch.undo()
    writer.close()
    rig.until_decided(made)
    assert rig.outcome(made) == ["APPLIED"]
    assert rig.rows("counter", "n") == [(10 * len(loads) + 2,)]


def test_a_row_that_came_and_went_before_a_batch_inserts_it_stands_before_it_in_the_log(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig: ResolverRig = make_rig()
    made = rig.node("a").insert("todo", {"id": "x", "title": "device"})
    rig.sql("insert into app.todo values ('other', 'drained by the group', false)")
    load = attempt._load
    loads: list[int] = []

    def and_then_somebody_writes(*arguments: Any) -> Any:
        view = load(*arguments)
        if not loads:
            rig.sql("insert into app.todo values ('x', 'sql', false)")
            rig.sql("delete from app.todo where id = 'x'")
        loads.append(1)
        return view

    monkeypatch.setattr(attempt, "_load", and_then_somebody_writes)
    rig.drain()
    server = read_server(rig.conn, rig.database)
    assert replay(server, {}) == server.rows
    assert rig.outcome(made) == "ROW_DELETED"
