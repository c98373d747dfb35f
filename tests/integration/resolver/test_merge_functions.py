"""Columns that a function of the application's own decides, from a device's batch to the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.clock import Clock
from anabranch.store.inbox.claim import open_session, session_options
from anabranch.testkit.merge_functions import install
from anabranch.testkit.resolver_rig import Made, ResolverRig, RigNode
from anabranch_conflict_resolver.functions.child import Functions
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits

NOTES = (
    "create table notes (id text primary key, body text, n int, tags text[], doc jsonb, seen timestamptz, "
    "must text not null default '')"
)
COLUMNS = {
    "body": "join",
    "n": "number",
    "tags": "join",
    "doc": "join",
    "must": "nothing",
}


@pytest.fixture
def make(migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``make(**columns)``: a rig with table notes whose columns have functions, and two nodes that saw row x."""
    monkeypatch.setenv("PYTHONPATH", install(tmp_path))
    options = session_options(statement_timeout_ms=10_000, lock_timeout_ms=250, idle_timeout_ms=5_000)
    session = open_session(migrated_url, options)
    functions = Functions(timeout_ms=400)
    cache = Cache()
    rigs: list[ResolverRig] = []

    def commit(database_id: int, most: int, offset_ms: int) -> int:
        return commit_group(
            session,
            cache,
            database_id,
            most=most,
            now_ms=Clock(offset_ms).now_ms(),
            clock_offset_ms=offset_ms,
            limits=GroupLimits(busy_ms=20),
            functions=functions,
        ).taken

    def made(**columns: str) -> tuple[ResolverRig, RigNode, RigNode]:
        policy = {"columns": {column: f"function:{name}" for column, name in columns.items()}}
        rig = ResolverRig(migrated_url, NOTES, {"notes": policy}, commit=commit)
        rigs.append(rig)
        a, b = rig.node("a"), rig.node("b")
        sent = a.insert("notes", {"id": "x", "body": "old", "n": 1, "tags": ("old",), "doc": "{}"})
        decide(rig, sent)
        a.see()
        b.see()
        return rig, a, b

    yield made
    for rig in rigs:
        rig.close()
    functions.close()
    session.close()


def decide(rig: ResolverRig, *batch_ids: str) -> None:
    """Commit groups until all of them have a verdict."""
    deadline = time.monotonic() + 60
    while any(rig.outcome(batch_id) == "PENDING" for batch_id in batch_ids):
        assert time.monotonic() < deadline
        rig.group()


def change(node: RigNode, before: dict[str, Any], **values: Any) -> Made:
    return node.make(("update", "notes", [{"id": "x", **values}]), undo=before)


def both(rig: ResolverRig, a: RigNode, b: RigNode, column: str, old: Any, theirs: Any, mine: Any) -> str:
    """B changes what A has changed, unseen; gives the id of B's batch once it is decided."""
    from_a, from_b = change(a, {column: old}, **{column: theirs}), change(b, {column: old}, **{column: mine})
    a.send(from_a)
    decide(rig, from_a.id)
    b.send(from_b)
    decide(rig, from_b.id)
    return from_b.id


def test_two_notes_are_put_together_and_both_are_kept(make: Any) -> None:
    rig, a, b = make(body="join")
    sent = both(rig, a, b, "body", "old", "tyres", "brakes")
    assert rig.rows("notes", "body") == [("tyres / brakes",)]
    assert rig.outcome(sent) == ["MERGED"]
    assert sorted(rig.losers()) == [("notes", "x", "body", "brakes"), ("notes", "x", "body", "tyres")]


def test_who_saw_the_other_ones_value_replaces_it(make: Any) -> None:
    rig, a, b = make(body="join")
    from_a = change(a, {"body": "old"}, body="tyres")
    a.send(from_a)
    decide(rig, from_a.id)
    b.see()
    from_b = change(b, {"body": "tyres"}, body="brakes")
    b.send(from_b)
    decide(rig, from_b.id)
    assert rig.rows("notes", "body") == [("brakes",)]
    assert rig.losers() == []


@pytest.mark.parametrize(
    ("column", "name", "old", "theirs", "mine", "told"),
    [
        ("body", "fails", "old", "a", "b", "it raised KeyError: 'no such thing'"),
        ("body", "hangs", "old", "a", "b", "it did not answer within 400 ms"),
        ("body", "dies", "old", "a", "b", "its process ended"),
        ("body", "number", "old", "a", "b", "it returned a int, which is no value of type text"),
        ("body", "odd", "old", "a", "b", "it returned a object"),
        ("body", "nul", "old", "a", "b", "NUL"),
        ("body", "unheard_of", "old", "a", "b", "no such function is installed"),
        ("n", "join", 1, 2, 3, "it returned a str, which is no value of type integer"),
        ("tags", "join", ("old",), ("a",), ("b",), "it returned a str, which is no value of type text[]"),
        ("doc", "join", "{}", "1", "2", "it returned a str, which is no value of type jsonb"),
        ("must", "nothing", "", "a", "b", "it returned None, and the column is not null"),
    ],
)
def test_a_function_that_fails_rejects_that_batch_alone(
    make: Any, column: str, name: str, old: Any, theirs: Any, mine: Any, told: str
) -> None:
    rig, a, b = make(**{column: name})
    other = rig.node("c")
    from_a, from_b = change(a, {column: old}, **{column: theirs}), change(b, {column: old}, **{column: mine})
    a.send(from_a)
    decide(rig, from_a.id)
    b.send(from_b)
    beside = other.insert("notes", {"id": "y", "body": "beside"})
    decide(rig, from_b.id, beside)
    assert rig.outcome(from_b.id) == "MERGE_FUNCTION"
    verdict = rig.verdict(from_b.id)
    assert verdict is not None
    assert told in verdict.message
    assert f'merge function "{name}" of column "{column}"' in verdict.message
    assert rig.outcome(beside) == ["APPLIED"]
    [(stored,)] = rig.sql(f"select {column} from {rig.name}.notes where id = 'x'")
    assert stored == (list(theirs) if isinstance(theirs, tuple) else int(theirs) if column == "doc" else theirs)


@pytest.mark.slow
def test_batches_beyond_a_groups_time_are_put_off_and_nobody_waits_for_them(make: Any) -> None:
    """Ten batches whose function hangs, in one group with one that asks nothing."""
    rig, a, b = make(body="hangs")
    from_a = change(a, {"body": "old"}, body="theirs")
    a.send(from_a)
    decide(rig, from_a.id)
    slow = []
    for i in range(6):
        node = rig.node(f"slow{i}")
        node.basis = b.basis
        made = change(node, {"body": "old"}, body=f"mine{i}")
        node.send(made)
        slow.append(made.id)
    beside = rig.node("c").insert("notes", {"id": "y", "body": "beside"})
    started = time.monotonic()
    rig.group()
    assert rig.outcome(beside) == ["APPLIED"]
    pending = [one for one in slow if rig.outcome(one) == "PENDING"]
    assert 0 < len(pending) < 6
    assert time.monotonic() - started < 5
    decide(rig, *slow)
    assert {rig.outcome(one) for one in slow} == {"MERGE_FUNCTION"}


def test_a_group_that_is_cut_for_a_bad_batch_asks_nothing_twice(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, a, b = make(body="join")
    asked = []
    ask = Functions.ask

    def counted(self: Functions, *question: Any) -> Any:
        answer = ask(self, *question)
        asked.append(question)
        return answer

    from_a = change(a, {"body": "old"}, body="theirs")
    a.send(from_a)
    decide(rig, from_a.id)
    monkeypatch.setattr(Functions, "ask", counted)
    from_b = change(b, {"body": "old"}, body="mine")
    b.send(from_b)
    bad = rig.node("c").insert("notes", {"id": "y", "must": None})
    decide(rig, from_b.id, bad)
    assert rig.outcome(bad) == "CONSTRAINT"
    assert rig.outcome(from_b.id) == ["MERGED"]
    assert len(asked) == 1


def test_what_the_policy_columns_do_together(make: Any) -> None:
    rig, _, _ = make(**COLUMNS)
    assert rig.database.table_policy("notes").columns == {c: f"function:{f}" for c, f in COLUMNS.items()}
