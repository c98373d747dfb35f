"""Tables that were changed behind our back: their batches are refused by name, those of other tables go on."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.store.group.waves import DatabaseError
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import cache

TABLES = """
create table t (id text primary key, n int, a text);
create table u (id text primary key, n int);
"""

CHANGES = {
    "renamed column": ("alter table app.t rename column n to m", 'column "n" is called "m" now'),
    "dropped column": ("alter table app.t drop column n", 'column "n" is gone'),
    "retyped column": ("alter table app.t alter column n type text", 'column "n" was integer and is text'),
    "renamed table": ("alter table app.t rename to v", "the table is gone"),
    "dropped table": ("drop table app.t", "the table is gone"),
    "made anew": ("drop table app.t; create table app.t (id text primary key, n int, a text)", "is gone"),
    "another key": ("alter table app.t drop constraint t_pkey, add primary key (a)", "the key was id and is a"),
    "column made anew": ("alter table app.t drop column n, add column n int", "a column was dropped and made anew"),
}


@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES.keys())
def test_batches_of_a_changed_table_are_refused_and_others_go_on(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch, change: str, told: str
) -> None:
    rig: ResolverRig = make_rig(TABLES, {"t": None, "u": None})
    a = rig.node("a")
    a.insert("t", {"id": "1", "n": 1, "a": "x"})
    rig.drain()
    rig.sql(change)
    insert = a.insert("t", {"id": "2", "n": 2, "a": "y"})
    other = a.insert("u", {"id": "1", "n": 1})
    update = a.update("t", {"id": "1", "n": 3})
    monkeypatch.setattr(cache, "_LOOK_S", 0.0)
    committed(rig)
    assert rig.outcome(other) == ["APPLIED"]
    assert rig.outcome(insert) == rig.outcome(update) == "TABLE_CHANGED"
    verdict = rig.verdict(insert)
    assert verdict is not None
    assert told in verdict.message


@pytest.mark.parametrize("write", ["insert", "update"])
def test_a_change_that_no_look_has_found_yet_is_found_when_a_write_fails(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    monkeypatch.setattr(cache, "_LOOK_S", 3_600.0)
    rig: ResolverRig = make_rig(TABLES, {"t": None, "u": None})
    a = rig.node("a")
    a.insert("t", {"id": "1", "n": 1, "a": "x"})
    rig.drain()
    rig.sql("alter table app.t rename column n to m")
    refused = getattr(a, write)("t", {"id": "1" if write == "update" else "2", "n": 2})
    if write == "update":
        # The row's lock names the column: the group fails, and has the tables looked at.
        with pytest.raises(DatabaseError):
            committed(rig)
    else:
        committed(rig)
        assert rig.verdict(refused) is None
    committed(rig)
    assert rig.outcome(refused) == "TABLE_CHANGED"


def test_a_table_that_is_changed_back_is_synced_again(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_LOOK_S", 0.0)
    rig: ResolverRig = make_rig(TABLES, {"t": None})
    a = rig.node("a")
    rig.sql("alter table app.t rename column n to m")
    refused = a.insert("t", {"id": "1", "n": 1})
    committed(rig)
    rig.sql("alter table app.t rename column m to n; alter table app.t add column more int default 5")
    applied = a.insert("t", {"id": "2", "n": 2})
    rig.drain()
    assert [rig.outcome(refused), rig.outcome(applied)] == ["TABLE_CHANGED", ["APPLIED"]]


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


def committed(rig: ResolverRig) -> None:
    """One group, without the rig's own look at the tables, which may not be there."""
    assert rig.commit is not None
    rig.commit(rig.database.id, 1_000, 0)
