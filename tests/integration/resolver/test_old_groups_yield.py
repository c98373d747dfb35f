"""A group that has held locks for long does not wait, because somebody may be about to look for a deadlock with it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from anabranch.store.inbox.claim import open_session, session_options
from anabranch.store.session.errors import PostgresError
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import rules, waves

UNIQUE = "create table todo (id text primary key, title text unique, done boolean)"


@pytest.mark.slow
def test_a_writer_that_has_waited_for_long_is_not_the_victim(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """He has waited for the group's row nearly as long as it takes until he looks for a deadlock, when the group comes
    to what he has written. Were it to wait, he would find one, and end."""
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
    [(deadlock_s,)] = rig.sql("select setting::int / 1000.0 from pg_settings where name = 'deadlock_timeout'")
    decide, failed = rules.decide, list[PostgresError]()

    def write_the_row() -> None:
        try:
            writer.execute("update app.todo set done = false where id = 'r'")
            writer.commit()
        except PostgresError as error:
            failed.append(error)

    thread = threading.Thread(target=write_the_row)

    def decide_slowly(*arguments: Any) -> Any:
        if not thread.ident:
            thread.start()
            rig.until_waiting()
            rig.sql("select pg_sleep(%s)", [float(deadlock_s) - 0.1])
        return decide(*arguments)

    monkeypatch.setattr(waves, "decide", decide_slowly)
    assert rig.commit is not None
    rig.commit(rig.database.id, 100, 0)
    thread.join(10)
    assert not failed
    assert rig.outcome(made) == "PENDING"
    monkeypatch.undo()
    rig.until_decided(made)
    assert rig.outcome(made) == "CONSTRAINT"
    writer.close()


def test_an_old_group_waits_for_a_row_of_ours_that_an_append_holds(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append that holds it waits for no row of the application; a group that took long would else be lost at its
    end."""
    rig: ResolverRig = make_rig(UNIQUE)
    node = rig.node("a")
    made = node.insert("todo", {"id": "r", "title": "r", "done": False})
    append = rig.session()
    append.execute("select 1 from anabranch.nodes where node_id = %s for update", [node.id])
    [(deadlock_s,)] = rig.sql("select setting::int / 1000.0 from pg_settings where name = 'deadlock_timeout'")
    decide = rules.decide

    def decide_slowly(*arguments: Any) -> Any:
        rig.sql("select pg_sleep(%s)", [float(deadlock_s) / 3])
        return decide(*arguments)

    def end_the_append() -> None:
        with rig.session() as other:
            rig.until_waiting()
            other.execute("select pg_sleep(0.05)")
        append.commit()

    monkeypatch.setattr(waves, "decide", decide_slowly)
    thread = threading.Thread(target=end_the_append)
    thread.start()
    assert rig.group() == 1
    thread.join(10)
    assert rig.outcome(made) == ["APPLIED"]
    append.close()


def test_a_young_group_waits_for_a_quarter_of_what_a_deadlock_takes_to_be_found(migrated_url: str) -> None:
    options = session_options(statement_timeout_ms=10_000, lock_timeout_ms=60_000, idle_timeout_ms=5_000)
    with open_session(migrated_url, options) as session:
        row = session.execute(
            "select current_setting('lock_timeout')::interval <= current_setting('deadlock_timeout')::interval / 4"
        ).fetchone()
        assert row == (True,)
