"""Values that take few bytes and become many where Postgres prints them: refused by name before any is made, or taken
in groups that stay small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.resolver import commits

from anabranch import limits
from anabranch.testkit.oracle import read_server, replay
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import value_pb2
from anabranch_conflict_resolver.captured import limits as captured_limits
from anabranch_conflict_resolver.captured import pieces
from anabranch_conflict_resolver.group import cuts

TYPES = "create type pair as (a numeric, b text); create domain many as numeric; create domain doc as jsonb;"
HUGE = "1e131071"
MB = 2**20


def numbers(count: int) -> str:
    return "[" + ",".join([HUGE] * count) + "]"


def literal(text: str) -> value_pb2.Value:
    return value_pb2.Value(text_literal=text)


ROWS: dict[str, tuple[Any, int]] = {
    "numeric": (HUGE, 3_000),
    "many": (HUGE, 3_000),
    "numeric(1000,900)": ("1", 50_000),
    "numeric[]": ((HUGE,) * 10, 300),
    "jsonb": (numbers(100), 30),
    "doc": (numbers(100), 30),
    "numrange": (literal(f"[{HUGE},]"), 3_000),
    "pair": (literal(f"({HUGE},x)"), 3_000),
    "character(1000000)": ("x", 300),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROWS)
def test_a_batch_that_would_grow_too_far_is_refused_by_name(make_rig: Any, kind: str) -> None:
    value, count = ROWS[kind]
    rig: ResolverRig = make_rig(f"{TYPES} create table t (id int primary key, v {kind})", {"t": None})
    a, b = rig.node("a"), rig.node("b")
    bad = a.insert("t", *({"id": i, "v": value} for i in range(count)))
    good = b.insert("t", {"id": -1, "v": value})
    rig.group()
    assert rig.outcome(bad) == "LIMIT_EXCEEDED"
    verdict = rig.verdict(bad)
    assert verdict is not None
    assert str(limits.MAX_BATCH_BYTES) in verdict.message
    assert rig.outcome(good) == ["APPLIED"]
    update = b.update("t", {"id": -1, "v": value})
    rig.group()
    assert rig.outcome(update) == ["APPLIED"]


@pytest.mark.parametrize("kind", ["jsonb", "numeric[]"])
def test_a_value_that_would_grow_too_far_is_refused_with_its_column(make_rig: Any, kind: str) -> None:
    rig: ResolverRig = make_rig(f"create table t (id int primary key, v {kind})", {"t": None})
    bad = rig.node("a").insert("t", {"id": 1, "v": numbers(400) if kind == "jsonb" else (HUGE,) * 400})
    good = rig.node("b").insert("t", {"id": 2})
    rig.group()
    assert (rig.outcome(bad), rig.outcome(good)) == ("LIMIT_EXCEEDED", ["APPLIED"])
    verdict = rig.verdict(bad)
    assert verdict is not None
    assert 'column "v"' in verdict.message


@pytest.mark.slow
def test_json_that_is_kept_as_it_came_does_not_grow(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id int primary key, v json, n numeric(10, 2))", {"t": None})
    made = rig.node("a").insert("t", {"id": 1, "v": numbers(400)})
    rounded = rig.node("a").insert("t", *({"id": 2 + i, "n": "1e-16000"} for i in range(3_000)))
    rig.group()
    assert [rig.outcome(one) for one in (made, rounded)] == [["APPLIED"]] * 2


def test_groups_are_cut_by_what_their_values_become(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "GROWN_BYTES", MB)
    rig: ResolverRig = make_rig("create table t (id int primary key, v numeric)", {"t": None})
    nodes = [rig.node(f"{i}") for i in range(4)]
    sent = [nodes[i % 4].insert("t", *({"id": 10 * i + j, "v": HUGE} for j in range(3))) for i in range(12)]
    alone = nodes[0].insert("t", *({"id": 1_000 + j, "v": HUGE} for j in range(9)))
    rig.drain()
    assert [rig.outcome(one) for one in (*sent, alone)] == [["APPLIED"]] * 13
    counts = [batches for (batches,) in rig.sql("select batches from anabranch.groups order by position")]
    assert counts == [2] * 6 + [1]


@pytest.mark.slow
def test_a_thousand_rows_of_sql_are_taken_in_pieces(make_rig: Any, migrated_url: str) -> None:
    """They are 131 MB as they are printed, and 20 kB as they are captured."""
    rig: ResolverRig = make_rig(
        f"{TYPES} create table t (id int primary key, v numeric, w numeric[]); create table todo (id text primary key)",
        {"t": None, "todo": None},
    )
    with commits.growing_process(migrated_url) as grown:
        rig.sql("insert into app.t values (-1, 1e131071, '{1e131071}'); insert into app.todo values ('1')")
        grown(rig.database.id)
        for statement in (
            "insert into app.t select i, 1e131071, null from generate_series(1, 1000) i",
            "update app.t set v = v + 1 where id <= 500",
            "delete from app.t",
        ):
            rig.sql(statement)
            more = grown(rig.database.id)
            print(f"{statement[:20]}: {more / MB:.0f} MiB")
            assert more < 100 * MB
    rig.check()
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups hold few bytes of captured changes."""
    monkeypatch.setattr(captured_limits, "MOST_BYTES", MB)
    monkeypatch.setattr(pieces, "BUCKET_BYTES", MB)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_rows_that_sql_has_changed_often_are_told_apart_when_they_grow(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id int primary key, v numeric, n int)", {"t": None})
    with rig.session() as somebody:
        somebody.execute("insert into app.t select i, 1e131071, 0 from generate_series(1, 20) i")
        somebody.execute("update app.t set n = id, v = v + id")
        somebody.execute("update app.t set id = -id where id > 15")
        somebody.execute("delete from app.t where id between 1 and 5")
    for i in range(5):
        rig.sql(f"insert into app.t values (100 + {i}, 1e131071, 0), (200 + {i}, 1e131071, 0), (300 + {i}, 1, 0)")
    assert rig.commit is not None
    commits.drain(rig.commit, rig.database.id)
    rig.check()
    server = read_server(rig.conn, rig.database)
    printed = {at: {**row, "v": str(row["v"])} for at, row in server.rows.items()}
    assert replay(server, {}) == printed
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]
    counts = rig.sql("select batches, changes from anabranch.groups order by position")
    assert len(counts) >= 3, "they are taken in several groups"


@pytest.fixture
def grown(migrated_url: str) -> Iterator[Callable[[int], int]]:
    with commits.growing_process(migrated_url) as drained:
        yield drained


@pytest.mark.slow
def test_rows_that_a_cascade_changes_are_taken_in_pieces(make_rig: Any, grown: Any) -> None:
    rig: ResolverRig = make_rig(
        "create table p (id int primary key); create table t (id int primary key, v numeric,"
        " p int references p (id) on delete cascade)",
        {"p": None, "t": None},
    )
    rig.sql("insert into app.p values (1)")
    rig.sql("insert into app.t select i, 1e131071, 1 from generate_series(1, 1000) i")
    grown(rig.database.id)
    node = rig.node("a")
    node.see()
    made = node.delete("p", {"id": 1})
    more = grown(rig.database.id)
    print(f"{more / MB:.0f} MiB")
    assert rig.outcome(made) == ["APPLIED"]
    assert more < 100 * MB
    rig.check()
    assert rig.rows("t") == []
