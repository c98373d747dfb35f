"""A change of tables by DDL is an entry of the log, at its position; what it makes of values follows as effects of
those columns alone, and the sums go on. After each group the rig compares log, tables and sums."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.resolver.altering import (
    alter,
    change,
    group_of,
    lost,
    markers,
    settle,
    told,
    values_told,
    versions,
)

from anabranch.testkit.resolver_rig import ResolverRig

JOB = "create table job (id text primary key, title text, done boolean)"


@pytest.fixture
def jobs(make_rig: Any) -> ResolverRig:
    rig: ResolverRig = make_rig(JOB, {"job": None})
    rig.sql("insert into app.job values ('1', 'one', false), ('2', 'two', false)")
    settle(rig)
    return rig


def test_added_columns_are_told_by_what_rows_have_and_no_row_is_touched(jobs: ResolverRig) -> None:
    a = jobs.node("a")
    a.see()
    queued = a.make(("update", "job", [{"id": "1", "done": True}]))
    sums = jobs.sql("select row_count, row_hash from anabranch.table_sums")
    head = jobs.head
    alter(
        jobs, "alter table job add column priority integer not null default 3", "alter table job add column note text"
    )
    settle(jobs)
    [(version, position)] = versions(jobs)
    assert (version, jobs.head) == (2, position)
    assert position > head
    assert group_of(jobs, position) == (0, 0, [])
    assert jobs.sql("select row_count, row_hash from anabranch.table_sums") == sums
    [table] = change(jobs).tables
    added = {column.name: column.initial for column in table.columns if column.HasField("initial")}
    assert list(added) == ["priority", "note"]
    assert added["priority"].int64_value == 3
    assert added["note"].WhichOneof("kind") == "null_value"
    jobs.sql("update app.job set priority = 5, note = 'urgent' where id = '2'")
    applied = a.send(queued)
    written = jobs.node("b").insert("job", {"id": "3", "title": "three", "priority": 1, "note": "seen"})
    settle(jobs)
    assert jobs.outcome(applied) == jobs.outcome(written) == ["APPLIED"]
    assert values_told(jobs, position) == [("1", {"done": True}), ("2", {"priority": 5, "note": "urgent"})]
    assert jobs.rows("job") == [
        ("1", "one", True, 3, None),
        ("2", "two", False, 5, "urgent"),
        ("3", "three", None, 1, "seen"),
    ]


def test_a_change_waits_for_nobody_and_leaves_no_marker(jobs: ResolverRig) -> None:
    alter(jobs, "alter table job add column note text")
    assert markers(jobs) == 1
    assert jobs.group() > 0
    assert markers(jobs) == 0
    assert jobs.group() == 0


def test_changes_that_wait_together_are_one(jobs: ResolverRig) -> None:
    alter(jobs, "alter table job add column a text")
    alter(jobs, "alter table job rename column a to b")
    alter(jobs, "alter table job alter column b set default 'x'")
    settle(jobs)
    assert [version for version, _ in versions(jobs)] == [2]
    assert [column.name for column in change(jobs).tables[0].columns] == ["id", "title", "done", "b"]


def test_a_change_that_is_undone_is_none(jobs: ResolverRig) -> None:
    alter(jobs, "alter table job add column a text", "insert into job (id, a) values ('3', 'x')")
    alter(jobs, "alter table job drop column a")
    jobs.sql("insert into app.job (id, title) values ('4', 'four')")
    head = jobs.head
    settle(jobs)
    assert versions(jobs) == []
    assert [(key, kind) for _, key, kind, _ in told(jobs, head)] == [("3", "INSERT"), ("4", "INSERT")]


def test_names_change_and_nothing_else(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        "create table job (id text primary key, title text); create table site (id text primary key, city text)",
        {"job": None, "site": None},
    )
    rig.sql("insert into app.job values ('1', 'one'); insert into app.site values ('s', 'Graz')")
    settle(rig)
    a = rig.node("a")
    a.see()
    queue = [
        a.make(("update", "job", [{"id": "1", "title": "changed offline"}])),
        a.make(("update", "site", [{"id": "s", "city": "Linz"}])),
        a.make(("insert", "site", [{"id": "t", "city": "Wien"}])),
    ]
    alter(rig, "alter table job rename column title to subject", "alter table site rename to location")
    settle(rig)
    [(_, position)] = versions(rig)
    assert group_of(rig, position) == (0, 0, [])
    sent = [a.send(one) for one in queue]
    rig.sql("update app.location set city = 'Steyr' where id = 's' and city = 'nobody'")
    settle(rig)
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 3
    assert rig.rows("job") == [("1", "changed offline")]
    assert rig.rows("location") == [("s", "Linz"), ("t", "Wien")]
    assert {(table, tuple(cells)) for table, _, _, cells in told(rig, position)} == {
        ("job", ("id", "title")),
        ("site", ("id", "city")),
    }
    rig.sql("insert into app.location values ('u', 'Enns')")
    settle(rig)
    assert told(rig, 0)[-1] == ("site", "u", "INSERT", {"id": "u", "city": "Enns"})


def test_a_dropped_column_is_counted_anew_and_its_queued_values_are_lost_by_name(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table job (id text primary key, title text, colour text)", {"job": None})
    rig.sql("insert into app.job values ('1', 'one', 'red')")
    settle(rig)
    a, b = rig.node("a"), rig.node("b")
    a.see()
    b.see()
    queued = a.make(("update", "job", [{"id": "1", "title": "offline", "colour": "blue"}]))
    alter(rig, "alter table job drop column colour")
    settle(rig)
    [(_, position)] = versions(rig)
    assert group_of(rig, position) == (0, 0, ["job"])
    b.update("job", {"id": "1", "title": "by b"})
    settle(rig)
    sent = a.send(queued)
    settle(rig)
    assert rig.outcome(sent) == ["OVERWROTE"]
    assert rig.rows("job") == [("1", "offline")]
    assert lost(rig) == [("1", "title", "by b", 0), ("1", "colour", "blue", 1)]
    [(winner, node)] = rig.sql("select winning_batch, winning_node from anabranch.conflicts where cause = 1")
    assert node == "server"
    assert winner.startswith("0000000000")


def test_values_that_rows_compute_come_as_values_of_their_columns_alone(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table job (id text primary key, title text, minutes integer)", {"job": None})
    rig.sql("insert into app.job values ('1', 'one', 90), ('2', 'two', 30)")
    settle(rig)
    a = rig.node("a")
    a.see()
    queued = a.make(("update", "job", [{"id": "2", "minutes": 45}]))
    head = rig.head
    alter(
        rig,
        "alter table job add column ref uuid not null default gen_random_uuid()",
        "alter table job add column title_length integer generated always as (length(title)) stored",
        "alter table job alter column minutes type numeric(6,2) using minutes / 60.0",
    )
    settle(rig)
    stored = {
        key: (str(ref), length, str(minutes))
        for key, ref, length, minutes in rig.rows("job", "id", "ref", "title_length", "minutes")
    }
    assert values_told(rig, head) == [
        (key, {"ref": ref, "title_length": length, "minutes~2": minutes})
        for key, (ref, length, minutes) in sorted(stored.items())
    ]
    [(_, position)] = versions(rig)
    batches, changes, sums = group_of(rig, position)
    assert (batches, changes, sums) == (1, 2, ["job"])
    [(batch_id,)] = rig.sql("select batch_id from anabranch.batches where position = %s", [position])
    verdict = rig.verdict(batch_id)
    assert verdict is not None
    assert 'column "minutes" was integer and is numeric(6,2)' in verdict.message
    assert "role postgres, application somebody-else: alter table" in verdict.message
    sent = a.send(queued)
    settle(rig)
    assert rig.outcome(sent) == ["APPLIED"]
    assert [str(minutes) for (minutes,) in rig.sql("select minutes from app.job order by id")] == ["1.50", "45.00"]
    assert values_told(rig, position) == [("2", {"minutes~2": "45.00"})]


def test_a_migration_that_mixes_ddl_with_changes_of_rows_is_one_moment(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table person (id text primary key, name text)", {"person": None})
    rig.sql("insert into app.person values ('1', 'Ada Lovelace'), ('2', 'Alan Turing')")
    settle(rig)
    a = rig.node("a")
    a.see()
    queued = a.make(("update", "person", [{"id": "2", "name": "A. Turing"}]))
    head = rig.head
    alter(
        rig,
        "update person set name = upper(name) where id = '1'",
        "alter table person add column first text",
        "alter table person add column last text",
        "update person set first = split_part(name, ' ', 1), last = split_part(name, ' ', 2)",
        "alter table person drop column name",
        "insert into person (id, first, last) values ('x', 'Grace', 'Hopper')",
    )
    rig.group()
    assert [position for _, position in versions(rig)] == [rig.head]
    assert sorted(told(rig, head)[:2]) == [
        ("person", "1", "UPDATE", {"id": "1", "first": "ADA", "last": "LOVELACE"}),
        ("person", "2", "UPDATE", {"id": "2", "first": "Alan", "last": "Turing"}),
    ]
    assert told(rig, head)[2:] == [
        ("person", "x", "INSERT", {"id": "x", "first": "Grace", "last": "Hopper"}),
    ]
    sent = a.send(queued)
    settle(rig)
    assert rig.outcome(sent) == ["SUPERSEDED"]
    assert lost(rig) == [("2", "name", "A. Turing", 1)]
    assert rig.rows("person") == [("1", "ADA", "LOVELACE"), ("2", "Alan", "Turing"), ("x", "Grace", "Hopper")]


def test_a_new_table_comes_by_itself_and_a_dropped_one_refuses_its_batches(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        "create table job (id text primary key, title text); create table old_note (id text primary key, body text)",
        {"job": None, "old_note": None},
        policy={"new_tables": "all"},
    )
    rig.sql("insert into app.job values ('1', 'one'); insert into app.old_note values ('n', 'keep')")
    settle(rig)
    a = rig.node("a")
    a.see()
    edited = {"id": "n", "body": "edited offline"}
    refused = a.make(("update", "old_note", [edited]), ("update", "job", [{"id": "1", "title": "edited offline"}]))
    applied = a.make(("update", "job", [{"id": "1", "title": "edited again"}]))
    head = rig.head
    alter(
        rig,
        "create table visit (id text primary key, job_id text references job (id), at timestamptz)",
        "insert into visit values ('v1', '1', '2026-01-02T03:04:05Z')",
    )
    alter(rig, "drop table old_note")
    settle(rig)
    told_change = change(rig)
    assert [table.name for table in told_change.tables] == ["visit"]
    assert list(told_change.created) == ["visit"]
    assert list(told_change.dropped) == ["old_note"]
    assert [(table, key, kind) for table, key, kind, _ in told(rig, head)] == [("visit", "v1", "INSERT")]
    written = rig.node("b").insert("visit", {"id": "v2", "job_id": "1"})
    sent = [a.send(refused), a.send(applied)]
    rig.sql("insert into app.visit values ('v3', null, null)")
    settle(rig)
    assert [rig.outcome(one) for one in [written, *sent]] == [["APPLIED"], "UNKNOWN_TABLE", ["APPLIED"]]
    assert [key for (key,) in rig.rows("visit", "id")] == ["v1", "v2", "v3"]
    assert rig.rows("job") == [("1", "edited again")]


def test_values_that_using_rewrites_are_told_though_the_type_is_carried_alike(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table bill (id text primary key, amount integer, note text)", {"bill": None})
    rig.sql("insert into app.bill values ('1', 12, 'a'), ('2', 5, 'b'), ('3', null, 'c')")
    settle(rig)
    head = rig.head
    alter(rig, "alter table bill alter amount type bigint using amount * 100")
    settle(rig)
    assert values_told(rig, head) == [("1", {"amount": 1200}), ("2", {"amount": 500}), ("3", {"amount": None})]


def test_a_label_that_is_renamed_is_told_of_every_row(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        "create type state as enum ('open', 'in_prgs', 'done'); create table task (id text primary key, st app.state)",
        {"task": None},
    )
    rig.sql("insert into app.task values ('1', 'in_prgs'), ('2', 'open')")
    settle(rig)
    head = rig.head
    rig.sql("insert into app.task values ('3', 'in_prgs')")
    alter(rig, "alter type state rename value 'in_prgs' to 'in_progress'")
    rig.sql("insert into app.task values ('4', 'in_progress')")
    settle(rig)
    assert values_told(rig, head) == [
        ("1", {"st": "in_progress"}),
        ("2", {"st": "open"}),
        ("3", {"st": "in_progress"}),
        ("4", {"st": "in_progress"}),
    ]
    written = rig.node("a").insert("task", {"id": "5", "st": "in_progress"})
    settle(rig)
    assert rig.outcome(written) == ["APPLIED"]


def test_what_was_written_with_a_label_of_before_has_the_one_of_today(make_rig: Any) -> None:
    """To rename a label waits for nobody who writes to the table."""
    rig: ResolverRig = make_rig(
        "create type state as enum ('open', 'in_prgs', 'done'); create table task (id text primary key, st app.state)",
        {"task": None},
    )
    rig.sql("insert into app.task values ('1', 'open'), ('2', 'open')")
    settle(rig)
    slow = rig.session()
    slow.execute("update app.task set st = 'in_prgs' where id = '1'")
    slow.execute("insert into app.task values ('3', 'in_prgs')")
    alter(rig, "alter type state rename value 'in_prgs' to 'in_progress'")
    settle(rig)
    head = rig.head
    slow.execute("update app.task set st = 'done' where id = '2'")
    slow.commit()
    slow.close()
    settle(rig)
    assert [(key, kind, cells["st"]) for _, key, kind, cells in told(rig, head)] == [
        ("1", "UPDATE", "in_progress"),
        ("3", "INSERT", "in_progress"),
        ("2", "UPDATE", "done"),
    ]


def test_names_of_two_columns_are_exchanged(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table pair (id text primary key, a text, b text)", {"pair": None})
    rig.sql("insert into app.pair values ('1', 'A', 'B')")
    settle(rig)
    a = rig.node("a")
    a.see()
    queued = a.make(("update", "pair", [{"id": "1", "a": "new A"}]))
    head = rig.head
    alter(
        rig,
        "alter table pair rename column a to c",
        "alter table pair rename column b to a",
        "alter table pair rename column c to b",
        "update pair set a = 'new B'",
    )
    settle(rig)
    assert values_told(rig, head) == [("1", {"b": "new B"})]
    sent = a.send(queued)
    settle(rig)
    assert rig.outcome(sent) == ["MERGED"]
    assert rig.rows("pair", "a", "b") == [("new B", "new A")]


def test_a_column_that_is_made_anew_under_its_name_is_another_one(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table job (id text primary key, colour text)", {"job": None})
    rig.sql("insert into app.job values ('1', 'red')")
    settle(rig)
    a = rig.node("a")
    a.see()
    queued = a.make(("update", "job", [{"id": "1", "colour": "blue"}]))
    alter(rig, "alter table job drop column colour", "alter table job add column colour text default 'none'")
    settle(rig)
    assert [(column.name, column.sql_name) for column in change(rig).tables[0].columns] == [
        ("id", ""),
        ("colour~2", "colour"),
    ]
    sent = a.send(queued)
    anew = rig.node("b").insert("job", {"id": "2", "colour~2": "green"})
    settle(rig)
    assert rig.outcome(sent) == ["SUPERSEDED"]
    assert rig.outcome(anew) == ["APPLIED"]
    assert lost(rig) == [("1", "colour", "blue", 1)]
    assert rig.rows("job") == [("1", "none"), ("2", "green")]


def test_a_key_of_another_type_has_its_table_pulled_and_no_other(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        "create table n (id integer primary key, t text); create table u (id text primary key, t text)",
        {"n": None, "u": None},
    )
    rig.sql("insert into app.n values (1, 'one'), (2, 'two'); insert into app.u values ('1', 'one')")
    settle(rig)
    number = rig.database.tables["n"].id
    alter(rig, "alter table n alter column id type text using 'n' || id", "insert into n values ('n3', 'three')")
    settle(rig)
    assert list(change(rig).pulled) == ["n"]
    assert rig.database.tables["n"].id != number
    a = rig.node("a")
    queued = a.update("n", {"id": 1, "t": "never"})
    written = a.update("n", {"id~2": "n1", "t": "changed"})
    rig.sql("update app.n set t = 'by sql' where id = 'n2'; update app.u set t = 'more'")
    settle(rig)
    assert [rig.outcome(queued), rig.outcome(written)] == ["INCOMPLETE_KEY", ["APPLIED"]]
    assert rig.rows("n") == [("n1", "changed"), ("n2", "by sql"), ("n3", "three")]
