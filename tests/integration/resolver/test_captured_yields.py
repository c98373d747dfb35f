"""Direct writers go first: they are never the victim of a deadlock with a group, and never wait for one that waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from anabranch.store.engine import Session
from anabranch.store.errors import PostgresError
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver import carry_out

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
    send, waits, failed = carry_out._send, threading.Event(), []

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
            _until_waiting(rig)
        return send(*arguments)

    monkeypatch.setattr(carry_out, "_send", then_somebody_waits)
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


def _until_waiting(rig: ResolverRig) -> None:
    """Returns when a session of this database waits for a lock."""
    for _ in range(2_000):
        if rig.sql("select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"):
            return
        rig.sql("select pg_sleep(0.005)")
    raise AssertionError("nobody waits")


def test_a_session_that_claims_gives_up_before_anybody_looks_for_a_deadlock(migrated_url: str) -> None:
    from anabranch.store.claim import open_session, session_options

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


def test_a_long_transaction_has_its_whole_time_again_after_each_piece(migrated_url: str) -> None:
    from anabranch.store.claim import open_session, renew, session_options

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
