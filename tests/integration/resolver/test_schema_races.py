"""A table is altered while groups run: each batch and each captured change is read by exactly one shape of its table,
nobody is blamed for what a statement of the earlier shape is refused for, and a crash leaves all of a change or
none."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.resolver import commits
from tests.integration.resolver.altering import alter, change, lost, markers, settle, told, versions

from anabranch import faults
from anabranch.store.ddl.enter import enter
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.group import attempt
from anabranch_conflict_resolver.schema import group, rewriting

TABLES = """
create table job (id text primary key, title text, n integer, colour text);
create table other (id text primary key, title text)
"""
NAMES = {"job": None, "other": None}


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, NAMES)
    made.sql("insert into app.job values ('1', 'one', 1, 'red'), ('2', 'two', 2, 'blue')")
    made.sql("insert into app.other values ('1', 'one')")
    settle(made)
    return made


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None], bool], list[int]]:
    """Has something done once, in the next group that has batches: after it has read the head, and before (or, with the
    second argument, after) it has its rows locked. The list that it gives grows each time a group begins with them."""

    def prepare(act: Callable[[], None], behind: bool) -> list[int]:
        load = attempt._load
        loads: list[int] = []

        def and_somebody_acts(*arguments: Any) -> Any:
            loads.append(1)
            if len(loads) == 1 and not behind:
                act()
            view = load(*arguments)
            if len(loads) == 1 and behind:
                act()
            return view

        monkeypatch.setattr(attempt, "_load", and_somebody_acts)
        return loads

    return prepare


MEANWHILE = {
    "added": ("alter table job add column note text default 'x'", ["APPLIED"], "new"),
    "renamed": ("alter table job rename column title to subject", ["APPLIED"], "new"),
    "table renamed": ("alter table job rename to task", ["APPLIED"], "new"),
    "retyped": ("alter table job alter column title type varchar(40)", ["APPLIED"], "new"),
    "retyped into another kind": ("alter table job alter column title type json using to_json(title)", None, ""),
    "dropped": ("alter table job drop column title", ["SUPERSEDED"], ""),
    "key dropped": ("alter table job rename column id to key", ["APPLIED"], "new"),
    "not null": ("alter table job alter column title set not null", ["APPLIED"], "new"),
}


@pytest.mark.parametrize(("statement", "outcome", "stored"), MEANWHILE.values(), ids=MEANWHILE.keys())
def test_a_table_that_is_altered_before_a_group_has_its_rows_locked(
    rig: ResolverRig, meanwhile: Any, statement: str, outcome: Any, stored: str
) -> None:
    a = rig.node("a")
    a.see()
    # The statements of a group are prepared.
    a.update("job", {"id": "2", "title": "second"})
    settle(rig)
    sent = a.update("job", {"id": "1", "title": "new"})
    beside = a.update("other", {"id": "1", "title": "new"})
    loads = meanwhile(lambda: alter(rig, statement), False)
    settle(rig)
    assert len(loads) >= 2
    if outcome is None:
        assert rig.outcome(sent) == "VALUE_NOT_CAST", "it is no JSON"
    else:
        assert rig.outcome(sent) == outcome
    assert rig.outcome(beside) == ["APPLIED"]
    assert len(versions(rig)) == 1
    assert rig.sql("select count(*) from anabranch.batches where status = 2") == [(int(outcome is None),)]
    if stored:
        column = rig.database.tables["job"].by_name["title"].sql_name
        key = rig.database.tables["job"].by_name["id"].sql_name
        assert rig.rows(rig.database.tables["job"].sql_name, key, column)[0] == ("1", stored)


def test_values_of_another_type_than_the_group_took_them_for_are_nobodys_fault(
    rig: ResolverRig, meanwhile: Any
) -> None:
    a = rig.node("a")
    a.see()
    sent = a.insert("job", {"id": "3", "title": "new", "n": 3})
    loads = meanwhile(lambda: alter(rig, "alter table job alter column n type text using 'n is ' || n"), False)
    settle(rig)
    assert len(loads) == 2
    assert rig.outcome(sent) == ["APPLIED"]
    assert rig.sql("select attempts from anabranch.inbox") == []
    assert rig.rows("job", "id", "n")[2] == ("3", "3")


def test_another_table_that_is_altered_behind_the_locks_makes_the_group_run_again(
    rig: ResolverRig, meanwhile: Any
) -> None:
    a = rig.node("a")
    a.see()
    rig.sql("update app.other set title = 'to drain'")
    sent = a.update("job", {"id": "1", "title": "new"})
    loads = meanwhile(lambda: alter(rig, "alter table other add column x text"), True)
    settle(rig)
    assert len(loads) == 2
    assert rig.outcome(sent) == ["APPLIED"]
    [(_, position)] = versions(rig)
    assert [key for table, key, _, _ in told(rig, position) if table == "job"] == ["1"]


def test_a_new_captured_row_of_the_new_shape_is_not_read_by_the_old_one(rig: ResolverRig, meanwhile: Any) -> None:
    a = rig.node("a")
    a.see()
    rig.sql("update app.other set title = 'to drain'")
    sent = a.update("other", {"id": "1", "title": "by a"})
    act = ("alter table job drop column n", "alter table job add column m text", "update job set m = 'M'")
    meanwhile(lambda: alter(rig, *act), False)
    settle(rig)
    assert rig.outcome(sent) == ["OVERWROTE"]
    assert not rig.sql("select from anabranch.synced_tables where torn_ms is not null")


def test_a_table_that_is_altered_once_more_before_the_commit_is_taken_with_both(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def and_again(*arguments: Any, **more: Any) -> Any:
        entered = enter(*arguments, **more)
        if not taken:
            alter(rig, "alter table other add column b text")
        taken.append(1)
        return entered

    monkeypatch.setattr(group, "enter", and_again)
    alter(rig, "alter table job add column a text")
    settle(rig)
    assert len(taken) == 2
    assert [version for version, _ in versions(rig)] == [2]
    assert sorted(table.name for table in change(rig).tables) == ["job", "other"]


ADD_EACH = "alter table job add column u uuid default gen_random_uuid()"


def test_a_second_change_does_not_wait_until_the_values_of_the_first_are_sent(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = threading.Thread(target=alter, args=(rig, "alter table job add column m integer default 5"))
    tell = rewriting.tell_values

    def and_somebody_waits(*arguments: Any, **more: Any) -> None:
        if not second.ident:
            second.start()
            waits = "select count(*) from pg_locks where not granted and relation = 'app.job'::regclass"
            until(lambda: rig.sql(waits) == [(1,)], 20)
        tell(*arguments, **more)

    monkeypatch.setattr(group, "tell_values", and_somebody_waits)
    monkeypatch.setattr(group, "GIVES_WAY_AFTER_S", 0.0)
    alter(rig, ADD_EACH)
    assert rig.commit is not None
    rig.commit(rig.database.id, 1_000, 0)
    assert versions(rig) == []
    second.join(20)
    assert not second.is_alive()
    settle(rig)
    assert len(versions(rig)) == 1
    [table] = change(rig).tables
    assert {"u", "m"} <= {column.name for column in table.columns}


def test_a_group_that_gave_way_again_and_again_goes_on_to_its_end(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def always(conn: Any) -> bool:
        looks.append(1)
        return True

    monkeypatch.setattr(group, "is_in_the_way", always)
    monkeypatch.setattr(group, "GIVES_WAY_AFTER_S", 0.0)
    for number, name in enumerate(("u", "v"), start=1):
        looks.clear()
        alter(rig, f"alter table job add column {name} uuid default gen_random_uuid()")
        settle(rig)
        assert len(versions(rig)) == number
        assert len(looks) == group.GIVES_WAY_AT_MOST


@pytest.mark.slow
def test_batches_wait_while_a_table_is_being_altered_and_none_is_blamed(rig: ResolverRig, worker_of: Any) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.see()
    b.see()
    somebody = rig.session()
    somebody.execute("alter table app.job drop column colour")
    worker_of(rig)
    held = a.update("job", {"id": "1", "title": "held", "colour": "green"})
    free = b.update("other", {"id": "1", "title": "free"})
    for _ in range(200):
        if rig.outcome(free) != "PENDING":
            break
        rig.sql("select pg_sleep(0.02)")
    assert rig.outcome(free) == ["APPLIED"], "another table's batches go on"
    assert rig.outcome(held) == "PENDING"
    assert rig.sql("select attempts::int from anabranch.inbox") == [(0,)]
    somebody.commit()
    somebody.close()
    rig.until_left()
    assert rig.outcome(held) == ["APPLIED"]
    assert lost(rig) == [("1", "colour", "green", 1)]


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_resolver_that_is_killed_leaves_all_of_a_change_or_none(
    rig: ResolverRig, migrated_url: str, tmp_path: Path, point: str
) -> None:
    a = rig.node("a")
    a.see()
    queued = a.make(("update", "job", [{"id": "1", "n": 7, "colour": "green"}]))
    alter(rig, "alter table job alter column n type text using 'n' || n", "alter table job drop column colour")
    file = tmp_path / "faults"
    faults.arm(file, point)
    died = _commit_in_a_process(migrated_url, rig.database.id, file)
    assert died
    assert len(versions(rig)) == (1 if point == "after_commit" else 0)
    assert markers(rig) == (0 if point == "after_commit" else 2)
    settle(rig)
    assert len(versions(rig)) == 1
    sent = a.send(queued)
    settle(rig)
    assert rig.outcome(sent) == ["APPLIED"]
    assert rig.rows("job") == [("1", "one", "7"), ("2", "two", "n2")]


def _commit_in_a_process(url: str, database_id: int, file: Path) -> bool:
    """Commit groups in a forked process until it dies of an armed fault; whether it did."""
    child = os.fork()
    if not child:
        try:
            faults.watch(file)
            commits.drain(commits.AsWriters(url), database_id)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _migrations(names: random.Random) -> list[str]:
    number = names.randrange(1_000_000)
    return names.choice(
        [
            [f"alter table job add column c{number} integer default {number}"],
            ["alter table job add column if not exists extra text default 'e'", "update job set extra = 'E'"],
            ["alter table job drop column if exists extra"],
            ["alter table job alter column n type text using n::text"],
            ["alter table job alter column n type integer using regexp_replace(n::text, '\\D', '', 'g')::integer"],
            ["alter table job rename column title to subject"],
            ["alter table job rename column subject to title"],
            ["alter table job rename to task", "alter table task rename to job"],
            ["alter table job add column if not exists u uuid default gen_random_uuid()"],
            ["alter table job drop column if exists u"],
            [
                "alter table other add column if not exists x text",
                "insert into other (id, x) select gen_random_uuid(), 'x'",
            ],
            ["alter table other drop column if exists x"],
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_under_load_every_batch_is_decided_by_one_shape(
    rig: ResolverRig, migrated_url: str, worker_of: Any, seed: int
) -> None:
    """Two workers; devices, writers by SQL and migrations at once. The log leads to the rows, whatever came when."""
    workers = [worker_of(rig), worker_of(rig)]
    over = threading.Event()
    failures: list[BaseException] = []

    def run(body: Callable[[Any, random.Random], None], number: int) -> threading.Thread:
        def loop() -> None:
            choice = random.Random(seed * 100 + number)
            try:
                with psycopg.connect(migrated_url, autocommit=True) as conn:
                    conn.execute("set search_path to app")
                    conn.execute("set lock_timeout to '2s'")
                    while not over.is_set():
                        body(conn, choice)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    def migrate(conn: Any, choice: random.Random) -> None:
        try:
            with conn.transaction():
                for statement in _migrations(choice):
                    conn.execute(statement.encode())
        except (psycopg.errors.UndefinedColumn, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            pass
        over.wait(0.1)

    def write(conn: Any, choice: random.Random) -> None:
        key = str(choice.randrange(20))
        try:
            with conn.transaction():
                conn.execute("insert into job (id) values (%s) on conflict do nothing", [key])
                conn.execute("update job set colour = %s where id = %s", [str(choice.random()), key])
                if choice.random() < 0.2:
                    conn.execute("delete from job where id = %s", [key])
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            pass

    threads = [run(migrate, 0), run(write, 1)]
    choice = random.Random(seed)
    nodes = [rig.node(f"n{i}") for i in range(3)]
    sent = []
    try:
        for i in range(200):
            node = nodes[i % 3]
            node.basis = rig.head
            key = f"{choice.randrange(10)}"
            values = {"id": f"d{key}", "title": f"title {i}", "colour": f"colour {i}"}
            sent.append(node.write((choice.choice(["insert", "update"]), "job", [values])))
            for worker in workers:
                worker._wakeups.wake(rig.database.id)
            rig.sql("select pg_sleep(0.01)")
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    assert not failures, failures[0]
    workers[0]._wakeups.wake(rig.database.id)
    rig.until_left()
    settle(rig)
    outcomes = [rig.outcome(one) for one in sent]
    reasons = {one for one in outcomes if isinstance(one, str)}
    assert reasons <= {"ROW_EXISTS", "ROW_NOT_FOUND", "ROW_DELETED"}, reasons
    assert rig.sql("select count(*) from anabranch.synced_tables where torn_ms is not null") == [(0,)]
    assert len(versions(rig)) >= 2
