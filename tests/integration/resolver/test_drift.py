"""Tables that were changed so that they can't be synced as they are: their batches are refused by name, those of other
tables go on, and so do they where they are mended."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.resolver.altering import change, unwatched

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import cache

TABLES = """
create table t (id text primary key, n int, a text);
create table u (id text primary key, n int);
"""
ANEW = "drop table app.t; create table app.t (id text primary key, n int, a text)"
CHANGES = {
    "no key": "alter table app.t drop constraint t_pkey",
    "a key that is no key here": "alter table app.t alter column id type float8 using id::float8",
    "made anew": ANEW,
}


@pytest.fixture(params=["watched", "unwatched"])
def rig(request: pytest.FixtureRequest, make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, {"t": None, "u": None})
    return made if request.param == "watched" else unwatched(made)


def committed(rig: ResolverRig) -> None:
    """Groups, without the rig's own look at the tables, which may not be there."""
    assert rig.commit is not None
    for _ in range(20):
        if not rig.commit(rig.database.id, 1_000, 0):
            return
    raise AssertionError("the resolver goes round and round")


@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES.keys())
def test_batches_of_a_table_that_cannot_go_on_are_refused_and_others_go_on(rig: ResolverRig, statement: str) -> None:
    a = rig.node("a")
    a.insert("t", {"id": "1", "n": 1, "a": "x"})
    rig.drain()
    rig.sql(statement)
    insert = a.insert("t", {"id": "2", "n": 2, "a": "y"})
    other = a.insert("u", {"id": "1", "n": 1})
    update = a.update("t", {"id": "1", "n": 3})
    committed(rig)
    assert rig.outcome(other) == ["APPLIED"]
    assert [rig.outcome(insert), rig.outcome(update)] in (["TABLE_CHANGED"] * 2, ["UNKNOWN_TABLE"] * 2)
    verdict = rig.verdict(insert)
    assert verdict is not None
    assert '"t"' in verdict.message


def test_a_table_that_is_mended_is_pulled_and_synced_again(rig: ResolverRig) -> None:
    a = rig.node("a")
    a.insert("t", {"id": "1", "n": 1, "a": "x"})
    rig.drain()
    rig.sql("alter table app.t drop constraint t_pkey")
    refused = a.insert("t", {"id": "2", "n": 1})
    committed(rig)
    rig.sql("alter table app.t add primary key (id)")
    committed(rig)
    applied = a.insert("t", {"id": "3", "n": 2})
    rig.drain()
    assert [rig.outcome(refused), rig.outcome(applied)] == ["TABLE_CHANGED", ["APPLIED"]]
    assert list(change(rig).pulled) == ["t"]


def test_triggers_that_rest_unasked_are_told_of_and_the_table_goes_on(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pg_restore --disable-triggers`` leaves such triggers behind."""
    monkeypatch.setattr(cache, "_LOOK_S", 0.0)
    rig: ResolverRig = make_rig(TABLES, {"t": None})
    a = rig.node("a")
    a.insert("t", {"id": "1"})
    rig.drain()
    rig.sql("alter table app.t disable trigger all; alter table app.t enable trigger all")
    applied = a.insert("t", {"id": "2"})
    with capture_logs() as logs:
        rig.drain()
    assert rig.outcome(applied) == ["APPLIED"]
    [told] = [entry for entry in logs if entry.get("table") == "t"]
    assert told["log_level"] == "warning"
    assert "direct writes are not captured" in told["detail"]
