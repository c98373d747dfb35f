"""Tables and columns that were renamed: all that goes by identity finds them in SQL by their present names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.resolver.calls import resolver_process
from tests.integration.resolver.renamed import RENAMES, TABLE_NAMES, TABLES, Renamed
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.store.capture.triggers import MARK_RESOLVER
from anabranch.store.catalog.drift import drift
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2

POLICIES = {**TABLE_NAMES, "todo": {"columns": {"n": "max"}}}


@pytest.fixture(params=list(RENAMES))
def renamed(make_rig: Any, request: pytest.FixtureRequest) -> Renamed:
    rig: ResolverRig = make_rig(TABLES, POLICIES)
    first = rig.node("first")
    first.insert("list", {"id": "l", "code": "c", "title": "groceries"})
    first.insert("todo", {"id": "t", "list_id": "l", "title": "milk", "n": 1, "needed": "x"})
    rig.drain()
    return Renamed(rig, RENAMES[request.param])


def effects(rig: ResolverRig, table: str) -> list[change_pb2.Effect]:
    found = rig.sql(
        "select effect from anabranch.log where table_id = %s order by position, batch_id, ordinal",
        [rig.database.tables[table].id],
    )
    return [change_pb2.Effect.FromString(raw) for (raw,) in found]


def refused(rig: ResolverRig, batch_id: str) -> tuple[Any, str, list[str], str]:
    """Reason and constraint of a refusal, its columns, and the message."""
    verdict = rig.verdict(batch_id)
    assert verdict is not None
    [mutation] = verdict.mutations
    return rig.outcome(batch_id), verdict.constraint, list(mutation.columns), verdict.message


def test_the_registration_is_as_the_tables_are(renamed: Renamed) -> None:
    assert drift(renamed.rig.conn, renamed.rig.database) == []


def test_batches_are_decided_by_identities(renamed: Renamed) -> None:
    rig = renamed.rig
    a, b = rig.node("a"), rig.node("b")
    a.see()
    b.see()
    made = a.write(
        ("insert", "list", [{"id": "l2", "code": "c2"}]),
        ("insert", "todo", [{"id": "t2", "list_id": "l2", "title": "bread", "needed": "y"}]),
        ("insert", "pair", [{"a": 1, "b": "x", "body": "one"}]),
    )
    first = a.update("todo", {"id": "t", "title": "of a", "n": 3})
    second = b.update("todo", {"id": "t", "title": "of b", "n": 2, "list_id": None})
    gone = b.delete("todo", {"id": "nowhere"})
    rig.drain()
    assert [rig.outcome(one) for one in (made, first)] == [["APPLIED"] * 3, ["APPLIED"]]
    assert rig.outcome(second) != "PENDING"
    assert rig.outcome(gone) == "ROW_NOT_FOUND"
    assert renamed.rows("todo", "id", "list_id", "title", "n", "needed") == [
        ("t", None, "of b", 3, "x"),
        ("t2", "l2", "bread", 7, "y"),
    ]
    assert renamed.rows("pair", "a", "b", "body") == [(1, "x", "one")]
    assert ("todo", "t", "title", "of a") in rig.losers()
    a.see()
    assert rig.outcome(a.delete("pair", {"a": 1, "b": "x"})) == "PENDING"
    rig.drain()
    assert renamed.rows("pair", "a") == []
    for table, columns in (("todo", {"id", "list_id", "title", "n", "note", "needed"}), ("pair", {"a", "b", "body"})):
        found = effects(rig, table)
        assert {effect.table for effect in found} == {table}
        assert set().union(*(effect.columns for effect in found)) == columns


def test_what_is_written_by_sql_is_captured_and_drained(renamed: Renamed) -> None:
    rig, a = renamed.rig, renamed.rig.node("a")
    a.see()
    renamed.sql("insert into {table} ({id}, {code}) values ('l3', 'c3')", "list")
    renamed.sql("insert into {table} ({id}, {list_id}, {needed}) values ('t3', 'l3', 'z'), ('t4', 'l', 'z')", "todo")
    renamed.sql("update {table} set {title} = 'by sql', {list_id} = null where {id} = 't'", "todo")
    renamed.sql("insert into {table} ({a}, {b}) values (1, 'x')", "pair")
    renamed.sql("update {table} set {a} = 2 where {b} = 'x'", "pair")
    renamed.sql("delete from {table} where {id} = 't4'", "todo")
    renamed.sql("truncate {table}", "part")
    rig.drain()
    last = [(effect.type, sorted(effect.columns)) for effect in effects(rig, "todo")][-2:]
    assert last == [
        (change_pb2.EFFECT_TYPE_UPDATE, ["id", "list_id", "title"]),
        (change_pb2.EFFECT_TYPE_DELETE, ["id"]),
    ]
    late = a.update("todo", {"id": "t", "title": "late"})
    rig.drain()
    assert (rig.outcome(late), rig.losers()) == (["OVERWROTE"], [("todo", "t", "title", "by sql")])


def test_refusals_name_what_people_know_and_verdicts_what_devices_know(renamed: Renamed) -> None:
    rig = renamed.rig
    a = rig.node("a")
    a.see()
    batches = {
        "parent": a.insert("todo", {"id": "1", "list_id": "nobody", "needed": "x"}),
        "child": a.delete("list", {"id": "l"}),
        "taken": a.insert("list", {"id": "2", "code": "c"}),
        "check": a.insert("todo", {"id": "3", "n": -1, "needed": "x"}),
        "null": a.update("todo", {"id": "t", "needed": None}),
        "long": a.insert("todo", {"id": "4", "note": "too long", "needed": "x"}),
        "good": a.insert("todo", {"id": "5", "note": "short", "needed": "x"}),
    }
    rig.drain()
    assert rig.outcome(batches.pop("good")) == ["APPLIED"]
    found = {what: refused(rig, batch_id) for what, batch_id in batches.items()}
    assert {what: one[:3] for what, one in found.items()} == {
        "parent": ("CONSTRAINT", "todo_list", []),
        "child": ("CONSTRAINT", "todo_list", []),
        "taken": ("CONSTRAINT", "list_code", []),
        "check": ("CONSTRAINT", "todo_n", []),
        "null": ("CONSTRAINT", "", ["needed"]),
        "long": ("CONSTRAINT", "", ["note"]),
    }
    todo, lists = (rig.database.tables[name].sql_name for name in ("todo", "list"))
    assert f'of table "{todo}" refers to is not there' in found["parent"][3]
    assert f'rows of table "{todo}" still refer to this row' in found["child"][3]
    assert (
        f'another row of table "{lists}" has this value of column "{renamed.column("list", "code")}"'
        in (found["taken"][3])
    )
    assert f'check "todo_n" of table "{todo}"' in found["check"][3]
    assert f'column "{renamed.column("todo", "needed")}" of table "{todo}" takes no NULL' in found["null"][3]
    assert f'column "{renamed.column("todo", "note")}" of table "{todo}": "too long" is too long' in found["long"][3]


def test_bad_batches_are_found_by_questions_and_not_one_by_one(
    renamed: Renamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anabranch_conflict_resolver.group import attempt

    rig = renamed.rig
    monkeypatch.setattr(attempt, "bisect", None)
    nodes = [rig.node(f"n{i}") for i in range(8)]
    for turn in range(2):
        bad = [
            node.insert("todo", {"id": f"{turn}p{i}", "list_id": "nobody", "needed": "x"})
            for i, node in enumerate(nodes[:2])
        ]
        bad += [node.insert("list", {"id": f"{turn}u{i}", "code": "c"}) for i, node in enumerate(nodes[2:4])]
        bad += [node.insert("todo", {"id": f"{turn}c{i}", "n": -1, "needed": "x"}) for i, node in enumerate(nodes[4:6])]
        bad += [nodes[6].insert("todo", {"id": f"{turn}n", "needed": None})]
        good = nodes[7].insert("todo", {"id": f"{turn}g", "list_id": "l", "needed": "x"})
        rig.drain()
        assert rig.outcome(good) == ["APPLIED"]
        assert {str(rig.outcome(one)) for one in bad} == {"CONSTRAINT"}


def test_what_a_cascade_deletes_is_an_effect(renamed: Renamed) -> None:
    rig = renamed.rig
    a = rig.node("a")
    a.see()
    a.insert("part", {"id": "p", "todo_id": "t"})
    rig.drain()
    a.see()
    gone = a.delete("todo", {"id": "t"})
    rig.drain()
    assert rig.outcome(gone) == ["APPLIED"]
    assert [effect.type for effect in effects(rig, "part")] == [
        change_pb2.EFFECT_TYPE_INSERT,
        change_pb2.EFFECT_TYPE_DELETE,
    ]


@pytest.mark.slow
def test_a_dry_run_and_the_list_of_conflicts_answer_by_identities(
    renamed: Renamed, migrated_url: str, tmp_path: Path
) -> None:
    rig = renamed.rig
    a = rig.node("a")
    a.see()
    with resolver_process(rig, migrated_url, tmp_path) as service:
        made = a.make(("update", "todo", [{"id": "t", "title": "maybe"}]))
        answer = service.explain(a, made)
        assert [one.table for one in answer.verdict.mutations] == ["todo"]
        assert [(one.table, list(one.columns)) for one in answer.effects] == [("todo", ["id", "title"])]
        none = service.explain(a, a.make(("insert", "todo", [{"id": "9", "list_id": "nobody", "needed": "x"}])))
        assert (none.verdict.constraint, none.verdict.mutations[0].table) == ("todo_list", "todo")
        renamed.sql("update {table} set {title} = 'by sql' where {id} = 't'", "todo")
        late = a.update("todo", {"id": "t", "title": "late"})
        rig.until_left()
        assert rig.outcome(late) == ["OVERWROTE"]
        [listed] = service.all_conflicts(table="todo")
        assert (listed.table, listed.column) == ("todo", "title")


def run(rig: ResolverRig, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--postgres-url", rig.url])


@pytest.mark.slow
def test_commands_know_tables_and_columns_by_their_present_names(
    renamed: Renamed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = renamed.rig
    monkeypatch.setenv("COLUMNS", "200")
    todo, title, n = (renamed.column("todo", name) for name in ("id", "title", "n"))
    called = rig.database.tables["todo"].sql_name
    a, b = rig.node("a"), rig.node("b")
    a.see()
    b.see()
    a.update("todo", {"id": "t", "title": "of a"})
    b.update("todo", {"id": "t", "title": "of b"})
    rig.drain()
    told = run(rig, "conflicts", "list", rig.name, "--table", called, "--key", "t", "--json")
    assert told.exit_code == 0, told.output
    [conflict] = map(json.loads, told.stdout.splitlines())
    assert (conflict["table"], conflict["column"], conflict["losing_value"]) == (called, title, "of a")
    listed = run(rig, "table", "list", rig.name)
    assert f"table {called}" in listed.stdout
    assert todo in listed.stdout
    policy = run(rig, "table", "policy", rig.name, called, "--set", json.dumps({"columns": {title: "reject"}}))
    assert json.loads(policy.stdout) == {"columns": {n: "max", title: "reject"}}
    assert rig.sql("select policy from anabranch.synced_tables where name = 'todo'") == [
        ({"columns": {"n": "max", "title": "reject"}},)
    ]
    same = run(rig, "verify", "--db", rig.name, "--table", called)
    assert (same.exit_code, same.stdout.split(":")[0]) == (0, called)
    run(rig, "table", "capture", "off", rig.name, called)
    renamed.sql("update {table} set {title} = 'behind' where {id} = 't'", "todo")
    differs = run(rig, "verify", "--db", rig.name)
    assert differs.exit_code == 1
    assert f"{title} 'behind' in the table, 'of b' in the log" in differs.stdout
    again = run(rig, "table", "capture", "on", rig.name, called)
    assert again.exit_code == 0, again.output
    rig.drain()
    assert rig.database.tables["todo"].sql_name == called
    assert rig.database.tables["todo"].by_name["title"].sql_name == title
    assert rig.database.table_policies["todo"].columns == {"n": "max", "title": "reject"}
    assert run(rig, "verify", "--db", rig.name).exit_code == 0
    removed = run(rig, "table", "remove", rig.name, called)
    assert removed.exit_code == 0, removed.output
    rig.drain()
    assert "todo" not in rig.database.tables


def test_rows_that_were_changed_behind_the_triggers_are_adopted(renamed: Renamed) -> None:
    rig = renamed.rig
    renamed.sql("insert into {table} ({a}, {b}, {body}) values (1, 'x', 'one'), (2, 'y', 'two')", "pair")
    rig.drain()
    with rig.conn.transaction():
        rig.conn.execute(MARK_RESOLVER)
        renamed.sql("update {table} set {body} = 'behind' where {a} = 1", "pair")
        renamed.sql("delete from {table} where {b} = 'y'", "pair")
    called = rig.database.tables["pair"].sql_name
    told = run(rig, "verify", "--db", rig.name, "--table", called)
    assert told.exit_code == 1
    assert f"{renamed.column('pair', 'body')} 'behind' in the table, 'one' in the log" in told.stdout
    assert run(rig, "verify", "--db", rig.name, "--table", called, "--adopt").exit_code == 0
    rig.drain()
    assert run(rig, "verify", "--db", rig.name).exit_code == 0
    assert [effect.type for effect in effects(rig, "pair")][-2:] == [
        change_pb2.EFFECT_TYPE_UPDATE,
        change_pb2.EFFECT_TYPE_DELETE,
    ]
