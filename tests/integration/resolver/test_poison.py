"""Many bad batches in one group: looked for by set queries, and each rejected with its own reason and row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.group import statements

TABLES = """
create table parent (id text primary key, gone boolean not null default false);
create table t (
    id text primary key,
    n bigint not null constraint t_n check (n >= 0),
    small smallint constraint t_small check (small % 7 <> 3),
    u text constraint t_u unique,
    parent text constraint t_parent references parent (id)
);
insert into parent (id) values ('p'), ('kept'), ('q');
insert into t (id, n, u, parent) values ('old', 1, 'taken', 'kept');
"""
NAMES: dict[str, Any] = {"parent": None, "t": None}
Sick = Callable[[dict[str, Any]], None]

KINDS: dict[str, tuple[Sick, str]] = {
    "not null": (lambda row: row.update(n=None), ""),
    "check": (lambda row: row.update(n=-5), "t_n"),
    "check of a narrower type": (lambda row: row.update(small=10), "t_small"),
    "unique, against the table": (lambda row: row.update(u="taken"), "t_u"),
    "foreign key": (lambda row: row.update(parent="nobody"), "t_parent"),
}


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, NAMES)
    return made


def _count_statements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    real = statements._send

    def counted(conn: Any, tables: Any, jobs: Any) -> Any:
        calls.append(len(jobs))
        return real(conn, tables, jobs)

    monkeypatch.setattr(statements, "_send", counted)
    return calls


@pytest.mark.parametrize("kind", KINDS)
def test_one_in_ten_is_found_without_halving(rig: ResolverRig, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sick, constraint = KINDS[kind]
    nodes = [rig.node(f"{i}") for i in range(4)]
    sent, bad = [], {i for i in range(200) if i % 10 == 3}
    for i in range(200):
        rows = [{"id": f"{i:03}-{j}", "n": j, "small": 1, "u": f"u{i}-{j}", "parent": "p"} for j in range(3)]
        if i in bad:
            make_sick(rows[1])
        sent.append(nodes[i % 4].send(nodes[i % 4].make(("insert", "t", rows))))
    calls = _count_statements(monkeypatch)
    rig.group()
    assert {i for i, one in enumerate(sent) if rig.outcome(one) != ["APPLIED"]} == bad
    for i in bad:
        verdict = rig.verdict(sent[i])
        assert verdict is not None
        assert verdict.reason == errors_pb2.REASON_CONSTRAINT
        assert verdict.constraint == constraint
        assert [v.string_value for v in verdict.mutations[0].key] == [f"{i:03}-1"], "the row to blame is named"
    assert len(rig.rows("t")) == 1 + 180 * 3
    assert len(calls) < 6 * len(bad), f"{len(calls)} statements: halves were tried"


def test_a_parent_that_others_point_to_is_not_deleted_by_one_of_many(rig: ResolverRig) -> None:
    nodes = [rig.node(f"{i}") for i in range(3)]
    sent = {key: nodes[i].delete("parent", {"id": key}) for i, key in enumerate(("p", "kept", "q"))}
    rig.group()
    assert {key: rig.outcome(one) for key, one in sent.items()} == {
        "p": ["APPLIED"],
        "kept": "CONSTRAINT",
        "q": ["APPLIED"],
    }


def test_a_parent_of_the_same_group_clears_its_children_of_suspicion(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    parent = a.insert("parent", {"id": "new"})
    child = b.insert("t", {"id": "c", "n": 1, "parent": "new"})
    sick = b.insert("t", {"id": "d", "n": 1, "parent": "nobody"})
    rig.group()
    assert [rig.outcome(one) for one in (parent, child, sick)] == [["APPLIED"], ["APPLIED"], "CONSTRAINT"]


def test_the_first_of_two_equal_values_wins_and_the_second_is_rejected(rig: ResolverRig) -> None:
    nodes = [rig.node(f"{i}") for i in range(10)]
    sent = [nodes[i].insert("t", {"id": f"{i}", "n": i, "u": "same" if i in (2, 7) else f"u{i}"}) for i in range(10)]
    rig.group()
    assert [i for i, one in enumerate(sent) if rig.outcome(one) != ["APPLIED"]] == [7]


def test_a_trigger_that_mends_a_row_clears_it(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        """
        create table t (id text primary key, n bigint not null constraint t_n check (n >= 0));
        create function mend() returns trigger language plpgsql as
            $$ begin new.n = coalesce(new.n, 0); return new; end $$;
        create trigger mend before insert on t for each row execute function mend();
        """,
        {"t": None},
    )
    nodes = [rig.node(f"{i}") for i in range(6)]
    sent = [nodes[i].insert("t", {"id": f"{i}", "n": [1, None, -1, 2, None, 3][i]}) for i in range(6)]
    rig.group()
    assert [i for i, one in enumerate(sent) if rig.outcome(one) != ["APPLIED"]] == [2]
    assert rig.rows("t", "id", "n")[1] == ("1", 0)


def test_a_check_that_can_not_be_asked_beforehand_is_run_into(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        "create table t (id text primary key, n bigint constraint t_n check (12 / n > 2))", {"t": None}
    )
    nodes = [rig.node(f"{i}") for i in range(6)]
    sent = [nodes[i].insert("t", {"id": f"{i}", "n": [1, 0, 9, 2, 3, 4][i]}) for i in range(6)]
    rig.group()
    assert [i for i, one in enumerate(sent) if rig.outcome(one) != ["APPLIED"]] == [1, 2]


def _rows(batch: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"{batch:03}-{j}", "n": j, "small": 1, "u": f"u{batch}-{j}", "parent": "p", **more} for j in range(3)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_same_group_that_are_updated_badly_are_found_too(
    rig: ResolverRig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sick, constraint = KINDS[kind]
    node = rig.node("a")
    sent = [node.insert("t", *_rows(i)) for i in range(60)]
    bad = {i for i in range(60) if i % 6 == 2}
    for i in range(60):
        rows: list[dict[str, Any]] = [{"id": f"{i:03}-{j}", "n": 100 + j} for j in range(3)]
        if i in bad:
            make_sick(rows[1])
            rows = [{**dict.fromkeys(rows[1], 0), **_given(rows[1], row)} for row in rows]
        sent.append(node.update("t", *rows))
    calls = _count_statements(monkeypatch)
    rig.group()
    outcomes = [rig.outcome(one) for one in sent]
    assert outcomes == [["APPLIED"] if i - 60 not in bad else "CONSTRAINT" for i in range(120)]
    for i in bad:
        verdict = rig.verdict(sent[60 + i])
        assert verdict is not None
        assert verdict.constraint == constraint
        assert [v.string_value for v in verdict.mutations[0].key] == [f"{i:03}-1"]
        assert rig.rows("t", "id", "n")[3 * i : 3 + 3 * i] == [(f"{i:03}-{j}", j) for j in range(3)]
    assert len(calls) < 5 * len(bad), f"{len(calls)} statements: halves were tried"


def _given(sick: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A row with all the columns that the sick one has, so that one mutation holds both."""
    good = {"n": 100, "small": 1, "u": f"new {row['id']}", "parent": "q"}
    return {name: row.get(name, good.get(name)) for name in sick}


def test_a_value_that_was_given_twice_is_left_to_the_second_where_the_first_is_refused(rig: ResolverRig) -> None:
    node = rig.node("a")
    first = node.insert("t", {"id": "1", "n": -1, "u": "x"})
    second = node.insert("t", {"id": "2", "n": 1, "u": "x"})
    third = node.insert("t", {"id": "3", "n": 1, "u": "x"})
    rig.group()
    assert [rig.outcome(one) for one in (first, second, third)] == ["CONSTRAINT", ["APPLIED"], "CONSTRAINT"]


def test_who_makes_room_is_written_before_who_needs_it(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    move = a.update("t", {"id": "old", "u": "elsewhere"})
    take = a.insert("t", {"id": "1", "n": 1, "u": "taken"})
    late = b.insert("t", {"id": "2", "n": 1, "u": "taken"})
    sick = b.insert("t", {"id": "3", "n": -1})
    rig.group()
    assert [rig.outcome(one) for one in (move, take, late, sick)] == [
        ["APPLIED"],
        ["APPLIED"],
        "CONSTRAINT",
        "CONSTRAINT",
    ]


def test_who_is_mended_by_a_trigger_keeps_its_turn_before_its_nodes_next_batch(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        """
        create table t (id text primary key, n bigint not null, u text constraint t_u unique);
        create function mend() returns trigger language plpgsql as
            $$ begin new.n = coalesce(new.n, 0); return new; end $$;
        create trigger mend before insert on t for each row execute function mend();
        """,
        {"t": None},
    )
    node = rig.node("a")
    node.insert("t", {"id": "0", "n": 1, "u": "there"})
    rig.group()
    mended = node.insert("t", {"id": "1", "n": None, "u": "x"})
    second = node.insert("t", {"id": "2", "n": 1, "u": "x"})
    sick = node.insert("t", {"id": "3", "n": 1, "u": "there"})
    rig.group()
    assert [rig.outcome(one) for one in (mended, second, sick)] == [["APPLIED"], "CONSTRAINT", "CONSTRAINT"]


def test_what_a_refused_batch_made_of_a_row_is_not_held_against_the_next(rig: ResolverRig) -> None:
    node = rig.node("a")
    sent = [
        node.update("t", {"id": "old", "n": -1}),
        node.update("t", {"id": "old", "small": 2}),
        node.update("t", {"id": "old", "small": 10}),
        node.update("t", {"id": "old", "u": "new"}),
    ]
    rig.group()
    assert [rig.outcome(one) for one in sent] == ["CONSTRAINT", ["APPLIED"], "CONSTRAINT", ["APPLIED"]]
    assert rig.rows("t", "id", "n", "small", "u") == [("old", 1, 2, "new")]


def test_after_bad_batches_the_next_group_is_looked_through_first(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = rig.node("a")
    node.insert("t", {"id": "1", "n": -1})
    node.insert("t", {"id": "2", "n": 1})
    rig.group()
    sent = [node.insert("t", {"id": f"3{i}", "n": -1 if i == 4 else 1}) for i in range(8)]
    calls = _count_statements(monkeypatch)
    rig.group()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"] if i != 4 else "CONSTRAINT" for i in range(8)]
    # All good ones together, and the bad one.
    assert calls == [7, 1]
    good = [node.insert("t", {"id": f"4{i}", "n": 1}) for i in range(8)]
    for _ in range(2):
        rig.group()
    more = [node.insert("t", {"id": f"5{i}", "n": 1}) for i in range(8)]
    calls.clear()
    rig.group()
    assert [rig.outcome(one) for one in (*good, *more)] == [["APPLIED"]] * 16
    assert calls == [8]
