"""Each SQLSTATE that a function of the application may end with: its batch gets a verdict, and never one that says that
the program is at fault; and whoever stands behind it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.store.writers import writer
from anabranch.testkit.resolver_rig import ResolverRig

# Classes 22, 23, 42, 44, 54 and P0, and those that Postgres does not have, are the application's at once. The rest may
# be Postgres's own trouble, so that they count only where others pass.
OF_THE_DATA = (
    "22000 22001 22012 22P02 23000 23502 23503 23505 23514 23P01 42601 42703 42P01 428C9 44000 54000 54001"
    " P0001 P0002 P0003 P0004 AB123 ZZ999"
)
OF_POSTGRES = (
    "01000 02000 03000 08000 08006 0A000 0B000 0F000 0L000 0P000 0Z000 20000 21000 24000 25000 25001 25006 25P02 25P03"
    " 26000 27000 28000 2B000 2D000 2F000 2F005 34000 38000 38001 39000 39P01 3B000 3D000 3F000 40001 40002 40P01 53000"
    " 53100 53200 53300 53400 55000 55006 55P02 55P03 57000 57P01 57P02 57P03 57P05 58000 58030 58P01 72000 F0000 HV000"
    " XX000 XX001 XX002"
)
VERDICTS = {
    **dict.fromkeys(OF_THE_DATA.split(), "CONSTRAINT"),
    **dict.fromkeys(OF_POSTGRES.split(), "DATABASE_FAILURE"),
    "42501": "FORBIDDEN",
    "57014": "TOO_SLOW",
}

RAISE = """
create table t (id text primary key, a text);
create function fail() returns trigger language plpgsql as $$
begin
    if new.a like 'raise %' then raise exception 'no' using errcode = substr(new.a, 7); end if;
    return new;
end $$;
create function fine(a text) returns boolean language plpgsql as $$
begin
    if a like 'raise %' then raise exception 'no' using errcode = substr(a, 7); end if;
    return true;
end $$;
"""
PLACES = {
    "trigger": "create trigger fail before insert on t for each row execute function fail()",
    "deferred": "create constraint trigger fail after insert on t deferrable initially deferred"
    " for each row execute function fail()",
    "check": "alter table t add constraint wrong check (fine(a))",
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_every_sqlstate_that_a_function_raises_comes_to_a_verdict_by_name(
    make_rig: Any, worker_of: Any, place: str
) -> None:
    rig: ResolverRig = make_rig(RAISE + PLACES[place], {"t": None})
    node = rig.node("a")
    bad = {code: node.insert("t", {"id": code, "a": f"raise {code}"}) for code in VERDICTS}
    good = node.insert("t", {"id": "good"})
    worker_of(rig, most_batches=1, rest_ms=5)
    rig.until_left(timeout_s=90.0)
    rig.check()
    assert {code: rig.outcome(one) for code, one in bad.items()} == VERDICTS
    assert rig.outcome(good) == ["APPLIED"]


# Statements that end a batch by an error that looks like Postgres's own trouble, without RAISE.
ENDS = {
    "a statement that is not prepared": ("execute 'deallocate nosuch'", "26000"),
    "a transaction that only reads": ("set local transaction_read_only = on", "25006"),
    "a lock, as it says": ("raise exception 'no' using errcode = '55P03'", "55P03"),
    "lost statements, as it says": ("raise exception 'no' using errcode = '26000'", "26000"),
}


def ends(statement: str) -> str:
    """A table on which a row that is called bad runs a statement."""
    return (
        "create table t (id text primary key, a text);"
        "create function fail() returns trigger language plpgsql as"
        f" $$ begin if new.a = 'bad' then {statement}; end if; return new; end $$;"
        "create trigger fail before insert on t for each row execute function fail()"
    )


@pytest.mark.parametrize("what", ENDS)
def test_a_batch_whose_failure_looks_like_trouble_of_postgres_ends_and_holds_up_nobody(
    make_rig: Any, worker_of: Any, what: str
) -> None:
    statement, sqlstate = ENDS[what]
    rig: ResolverRig = make_rig(ends(statement), {"t": None})
    node = rig.node("a")
    bad = node.insert("t", {"id": "bad", "a": "bad"})
    good = [node.insert("t", {"id": f"{i}"}) for i in range(20)]
    worker_of(rig, rest_ms=5)
    rig.until_left(timeout_s=30.0)
    rig.check()
    assert rig.outcome(bad) == "DATABASE_FAILURE"
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 20
    verdict = rig.verdict(bad)
    assert verdict is not None
    assert (verdict.sqlstate, sqlstate in verdict.message) == (sqlstate, True)


@pytest.mark.slow
def test_a_batch_that_postgres_has_no_room_for_waits_is_not_blamed_and_holds_up_nobody(
    make_rig: Any, worker_of: Any
) -> None:
    """A full disk fails large batches first: what is small still passes beside them, and so does the control."""
    rig: ResolverRig = make_rig(ends("execute $q$copy (select 1) to '/dev/full'$q$"), {"t": None})
    node = rig.node("a")
    bad = node.insert("t", {"id": "bad", "a": "bad"})
    good = [node.insert("t", {"id": f"{i}"}) for i in range(20)]
    for role in writer.writers(rig.conn):
        rig.sql(f'grant pg_write_server_files to "{role}"')
    worker_of(rig, rest_ms=5)
    rig.until_left(left=1, timeout_s=30.0)
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 20
    assert rig.outcome(bad) == "PENDING"
    assert rig.sql("select attempts, failure from anabranch.inbox") == [(0, None)]
    rig.sql("drop trigger fail on app.t")
    rig.until_left(timeout_s=30.0)
    rig.check()
    assert rig.outcome(bad) == ["APPLIED"]
