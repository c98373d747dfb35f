"""Captured changes that can't be drained: the table at fault is set aside by name, and trouble that is nobody's sets
none aside."""

from __future__ import annotations

import time
from typing import Any

import pytest

from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift, stopped_tables
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.blame.evidence import FAILURES_AT_MOST
from anabranch_conflict_resolver.captured import limits
from anabranch_conflict_resolver.captured.server_batches import ServerBatch

TABLES = "".join(f"create table {name} (id text primary key, n int);" for name in ("bad", "good", "other"))
REFUSE = """
create function app.refuse() returns trigger language plpgsql as $$
begin
    if {when} then raise exception 'no room' using errcode = '{code}'; end if;
    return new;
end $$;
create trigger refuse before insert on anabranch.{table} for each row execute function app.refuse();
"""


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, {"bad": None, "good": None, "other": None})
    return made


def drained(rig: ResolverRig, what: str = "select not exists (select from anabranch.captured)") -> None:
    """Wait until the query says so, and no batch waits."""
    until(
        lambda: not rig.waiting() and rig.sql(what)[0][0],
        60,
        lambda: f"{rig.waiting()}, {rig.sql('select * from anabranch.captured')}",
    )


def set_aside(rig: ResolverRig) -> list[str]:
    return list(stopped_tables(drift(rig.conn, load_database(rig.conn, rig.name))))


def refuse(rig: ResolverRig, table: str, when: str, code: str = "54000") -> None:
    rig.sql(REFUSE.format(when=when, code=code, table=table))


@pytest.mark.parametrize("code", ["54000", "XX000", "P0001"])
@pytest.mark.parametrize("table", ["row_versions", "log"])
def test_a_table_whose_changes_are_refused_is_set_aside_and_nobody_waits_for_it(
    rig: ResolverRig, worker_of: Any, code: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(rig, table, f"new.table_id = {rig.database.tables['bad'].id}", code)
    a = rig.node("a")
    rig.sql("insert into app.good values ('before', 1)")
    rig.sql("insert into app.bad values ('1', 1); insert into app.other values ('beside', 1)")
    rig.sql("insert into app.good values ('behind', 1)")
    batch = a.insert("good", {"id": "device", "n": 1})
    worker_of(rig)
    drained(rig)
    assert rig.outcome(batch) == ["APPLIED"]
    keys = [key for (key,) in rig.sql("select key from anabranch.log order by key")]
    assert keys == ["before", "behind", "beside", "device"]
    assert set_aside(rig) == ["bad"]
    assert "could not be drained and are dropped" in (said := capsys.readouterr().out)
    assert "no room" in said


@pytest.mark.parametrize(
    ("table", "when", "code"),
    [("row_versions", "true", "P0001"), ("log", "new.table_id = {bad}", "53100"), ("groups", "true", "54000")],
    ids=["all tables", "a full disk", "all groups"],
)
def test_trouble_that_is_nobodys_sets_no_table_aside_and_blames_no_batch(
    rig: ResolverRig, worker_of: Any, table: str, when: str, code: str
) -> None:
    refuse(rig, table, when.format(bad=rig.database.tables["bad"].id), code)
    a = rig.node("a")
    rig.sql("insert into app.bad values ('1', 1)")
    batch = a.insert("good", {"id": "device", "n": 1})
    worker = worker_of(rig)
    end = time.monotonic() + 60
    while not (cache := worker._known.caches.get(rig.database.id)) or cache.trouble.failures <= FAILURES_AT_MOST:
        assert time.monotonic() < end
        rig.sql("select pg_sleep(0.02)")
    assert rig.outcome(batch) == "PENDING"
    assert set_aside(rig) == []
    rig.sql("drop function app.refuse() cascade")
    drained(rig)
    rig.check()
    assert rig.outcome(batch) == ["APPLIED"]
    assert rig.sql("select key from anabranch.log order by key") == [("1",), ("device",)]


def test_a_bad_batch_beside_captured_changes_is_still_found(rig: ResolverRig, worker_of: Any) -> None:
    """Its group is tried again when they are drained without it, and are not at fault."""
    rig.sql(
        "create function app.fail() returns trigger language plpgsql as $$ begin"
        " if new.id = 'bad' then raise exception using errcode = '40001'; end if; return new; end $$;"
        " create trigger fail before insert on app.good for each row execute function app.fail()"
    )
    a, b = rig.node("a"), rig.node("b")
    rig.sql("insert into app.bad values ('1', 1)")
    bad = a.insert("good", {"id": "bad", "n": 1})
    good = b.insert("good", {"id": "device", "n": 1})
    worker_of(rig)
    drained(rig)
    rig.check()
    assert rig.outcome(bad) == "DATABASE_FAILURE"
    assert rig.outcome(good) == ["APPLIED"]
    assert set_aside(rig) == []


def test_changes_that_this_program_stumbles_over_set_their_table_aside(
    rig: ResolverRig, worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is one piece of a large transaction."""
    monkeypatch.setattr(limits, "MOST_ROWS", 20)
    real = ServerBatch.add

    def stumbles(batch: ServerBatch, view: Any, steps: Any, remembering: Any) -> None:
        if any(step.at[0] == "bad" for step in steps):
            raise OverflowError("a fault of the program")
        real(batch, view, steps, remembering)

    monkeypatch.setattr(ServerBatch, "add", stumbles)
    rig.sql(
        "insert into app.good select g, 1 from generate_series(1, 50) g;"
        "insert into app.bad select g, 1 from generate_series(1, 50) g;"
        "insert into app.other values ('beside', 1)"
    )
    rig.sql("insert into app.good values ('behind', 1)")
    worker_of(rig)
    drained(rig)
    assert set_aside(rig) == ["bad"]
    assert rig.sql("select count(*) from anabranch.log") == [(52,)]
