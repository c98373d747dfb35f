"""A small group is committed in the send that brings its records, unless Postgres finds there what it does not know
of."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.integration.resolver import commits
from tests.integration.resolver.altering import JOBS, alter, settle, versions

from anabranch.store.group.last_look import LastLook
from anabranch.store.session import at_once
from anabranch.store.session.at_once import together
from anabranch.store.session.channels import GROUPS_CHANNEL
from anabranch.store.session.direct import DirectConnection
from anabranch.store.session.engine import connect, connect_as
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import commit, records
from anabranch_conflict_resolver.loop.seal_keys import SealKeys

CAUSES = """
create function app.cause() returns trigger language plpgsql as
    $$ begin update app.todo set done = true where id = 'other'; return null; end $$;
create trigger cause after update of title on app.todo for each row when (new.id <> 'other')
    execute function app.cause()
"""
END_CLAIMING = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and application_name = 'anabranch-conflict-resolver'
"""


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool | None]]:
    """Whether each group was to be committed with its records, and whether it had caused what stood between."""
    looks: list[tuple[bool, bool | None]] = []
    found = LastLook.found

    def noted(look: LastLook) -> bool | None:
        looks.append((look.commits, found(look)))
        return looks[-1][1]

    monkeypatch.setattr(LastLook, "found", noted)
    return looks


@pytest.fixture
def before_records(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Has something done right before the next group's records are written."""

    def prepare(act: Callable[[], Any]) -> None:
        write = records.write
        acts = [act]

        def and_then(*arguments: Any) -> Any:
            if acts:
                acts.pop()()
            return write(*arguments)

        monkeypatch.setattr(records, "write", and_then)

    return prepare


@pytest.fixture
def todo(rig: ResolverRig) -> ResolverRig:
    """The rig with two rows."""
    rig.sql("insert into app.todo values ('1', 'before', false), ('other', 'before', false)")
    rig.drain()
    return rig


def test_nothing_between(todo: ResolverRig, found: list[tuple[bool, bool | None]], migrated_url: str) -> None:
    node = todo.node("a")
    node.see()
    made = node.update("todo", {"id": "1", "title": "after"})
    with connect(migrated_url, application_name="test", autocommit=True) as listener:
        listener.execute(f"listen {GROUPS_CHANNEL}".encode())
        todo.drain()
        [heard] = listener.notifies(timeout=10, stop_after=1)
    assert heard.payload.startswith(f"{todo.database.id}:{todo.head}:{made}")
    assert found == [(True, None)]
    assert todo.outcome(made) == ["APPLIED"]
    todo.check()


def test_what_others_wrote_meanwhile_comes_first(
    todo: ResolverRig, found: list[tuple[bool, bool | None]], before_records: Any
) -> None:
    node = todo.node("a")
    node.see()
    made = node.update("todo", {"id": "1", "title": "after"})
    before_records(lambda: todo.sql("update app.todo set title = 'of others' where id = 'other'"))
    # The rig checks sums only once what came between is in the log, too.
    assert todo.commit is not None
    commits.drain(todo.commit, todo.database.id)
    assert found[0] == (True, False)
    assert found[-1][1] is None
    assert todo.outcome(made) == ["APPLIED"]
    todo.check()


def test_what_the_group_has_caused_belongs_to_its_batch(
    todo: ResolverRig, found: list[tuple[bool, bool | None]], before_records: Any
) -> None:
    node = todo.node("a")
    node.see()
    # The second group is tried without knowing of the trigger.
    node.update("todo", {"id": "1", "title": "one"})
    todo.drain()
    todo.sql(CAUSES)
    made = node.update("todo", {"id": "1", "title": "two"})
    todo.drain()
    assert todo.outcome(made) == ["APPLIED"]
    assert todo.sql("select done from app.todo where id = 'other'") == [(True,)]
    assert (True, True) in found
    assert found[-1][1] is None
    todo.check()


def test_records_that_are_gone_undo_the_group(
    todo: ResolverRig, before_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = todo.node("a")
    node.see()
    node.update("todo", {"id": "1", "title": "after"})
    head = todo.head
    as_one = at_once._as_one

    def one_more(conn: Any, parts: Any, counts: Any = ()) -> Any:
        return as_one(conn, parts, [None if count is None else count + 1 for count in counts])

    monkeypatch.setattr(at_once, "_as_one", one_more)
    assert todo.commit is not None
    with pytest.raises(RuntimeError, match="fewer records"):
        todo.commit(todo.database.id, 1_000, 0)
    monkeypatch.undo()
    assert todo.head == head
    assert todo.sql("select title from app.todo where id = '1'") == [("before",)]
    todo.drain()
    assert todo.sql("select title from app.todo where id = '1'") == [("after",)]
    todo.check()


def test_a_table_altered_meanwhile_comes_first(
    make_rig: Any, found: list[tuple[bool, bool | None]], before_records: Any
) -> None:
    rig: ResolverRig = make_rig(JOBS, {"job": None, "other": None})
    rig.sql("insert into app.job values ('1', 'before', 1, 'red')")
    settle(rig)
    node = rig.node("a")
    node.see()
    made = node.update("job", {"id": "1", "title": "after"})
    before = len(versions(rig))
    before_records(lambda: alter(rig, "alter table other add column more text"))
    settle(rig)
    assert found[0][0]
    assert (True, False) in found
    assert len(versions(rig)) == before + 1
    assert rig.outcome(made) == ["APPLIED"]


def test_a_session_that_is_ended_commits_nothing(todo: ResolverRig, before_records: Any, migrated_url: str) -> None:
    """As a claim is taken from a resolver that is silent."""
    node = todo.node("a")
    node.see()
    made = node.update("todo", {"id": "1", "title": "after"})
    head = todo.head
    before_records(lambda: todo.sql(END_CLAIMING))
    assert todo.commit is not None
    with pytest.raises(psycopg.OperationalError):
        todo.commit(todo.database.id, 1_000, 0)
    assert todo.head == head
    assert todo.sql("select title from app.todo where id = '1'") == [("before",)]
    with closing(commits.session(commits.writes_as(migrated_url, todo.database.id))) as another:
        commits.on(another, SealKeys(migrated_url))(todo.database.id, 1_000, 0)
    assert todo.outcome(made) == ["APPLIED"]
    todo.check()


def test_a_lost_answer_to_commit_is_found_out_by_the_next_group(
    todo: ResolverRig, monkeypatch: pytest.MonkeyPatch, migrated_url: str
) -> None:
    node = todo.node("a")
    node.see()
    made = node.update("todo", {"id": "1", "title": "after"})
    with closing(commits.session(commits.writes_as(migrated_url, todo.database.id))) as conn:

        def lose(*_: Any) -> None:
            conn.pgconn.flush()
            with socket.socket(fileno=os.dup(conn.pgconn.socket)) as held:
                answers = b""
                while b"COMMIT\0" not in answers:
                    assert select.select([held], [], [], 10)[0], "nobody answers"
                    answers += held.recv(65_536)
                held.shutdown(socket.SHUT_RDWR)

        monkeypatch.setattr(commit, "_read_ahead", lose)
        with pytest.raises(psycopg.OperationalError):
            commits.on(conn, SealKeys(migrated_url))(todo.database.id, 1_000, 0)
    monkeypatch.undo()
    once = todo.head
    assert todo.outcome(made) == ["APPLIED"]
    todo.drain()
    assert todo.head == once
    todo.check()


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_condition_that_holds_is_no_error_however_it_is_planned(todo: ResolverRig, mode: str) -> None:
    with connect_as(DirectConnection, todo.url, application_name="test") as conn:
        conn.execute(f"set plan_cache_mode = {mode}".encode())
        for up_to in (None, 7):
            look = LastLook(conn, todo.database.id, up_to, [1], [])
            with look, together(conn, few=True, checked=True) as send:
                at_once.execute(conn, b"select 1", (), named=1)
                send()
                look.send()
            assert look.found() is None


def test_a_commit_that_is_skipped_leaves_nothing(todo: ResolverRig) -> None:
    todo.sql("create table public.kept (id int8 unique deferrable initially deferred)")
    with connect_as(DirectConnection, todo.url, application_name="test") as conn:
        for kept, error in ((0, psycopg.errors.DivisionByZero), (1, psycopg.errors.UniqueViolation)):
            look = LastLook(conn, todo.database.id, None, (), [partial(_keep_twice, conn, kept)])
            with pytest.raises(error), look, conn.pipeline():
                look.send()
            conn.rollback()
            assert conn.execute("select count(*) from public.kept where %s", (True,)).fetchone() == (0,)
            conn.commit()


def test_nothing_is_put_behind_a_commit(todo: ResolverRig) -> None:
    with connect_as(DirectConnection, todo.url, application_name="test") as conn:
        with conn.pipeline():
            conn.commit_behind()
            with pytest.raises(psycopg.ProgrammingError):
                conn.execute("select %s::int", (1,))
        assert conn.execute("select %s::int", (1,)).fetchone() == (1,)


def _keep_twice(conn: DirectConnection, kept: int) -> None:
    conn.execute("insert into public.kept values (1), (1 / %s::int)", (kept,))
