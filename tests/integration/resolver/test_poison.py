"""Many bad batches in one group: looked for by set queries, and each rejected with its own reason and row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver import carry_out

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
    real = carry_out._send

    def counted(conn: Any, tables: Any, jobs: Any) -> Any:
        calls.append(len(jobs))
        return real(conn, tables, jobs)

    monkeypatch.setattr(carry_out, "_send", counted)
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
