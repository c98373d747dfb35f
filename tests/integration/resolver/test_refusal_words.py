"""A verdict says what Postgres named, and the sender's own value; never a byte of another row, nor of an error's
text."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create type colour as enum ('red', 'green');
create domain "Short Code" as text constraint code_is_short check (length(value) < 5);
create domain named as text not null;
create table parent (id text primary key, name text);
create table t (
    id text primary key,
    code text, secret text,
    n smallint constraint t_n check (n >= 0),
    price numeric(5, 2),
    label varchar(6),
    shade colour,
    tag "Short Code",
    who named default 'me',
    needed text not null default 'x',
    parent text constraint t_parent references parent (id),
    span int4range,
    constraint t_code unique (code, n),
    constraint t_span exclude using gist (span with &&)
);
create table strict (id text primary key, note text);
create function speak() returns trigger language plpgsql as $$
begin
    if new.note = 'names' then
        raise exception 'the secret of row 1 is hunter2' using constraint = 'seat_taken', table = 'strict';
    elsif new.note = 'casts' then
        perform (select secret from t where id = '1')::int;
    end if;
    raise exception 'the secret of row 1 is hunter2' using detail = 'hunter2', hint = 'hunter2';
end $$;
create trigger speak before insert on strict for each row execute function speak();
"""
NAMES = {"parent": None, "t": None, "strict": None}


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, NAMES)
    first = made.node("first")
    first.insert("parent", {"id": "p", "name": "Ann"})
    first.insert("t", {"id": "1", "code": "taken", "secret": "hunter2", "n": 1, "span": "[1,6)", "parent": "p"})
    made.group()
    return made


def said(rig: ResolverRig, batch_id: str) -> tuple[str, list[str]]:
    verdict = rig.verdict(batch_id)
    assert verdict is not None
    assert "hunter2" not in verdict.message
    assert "hunter2" not in str(verdict), "not elsewhere in it either"
    return verdict.message, [column for mutation in verdict.mutations for column in mutation.columns]


@pytest.mark.parametrize(
    ("row", "message", "columns"),
    [
        (
            {"shade": "purple"},
            'column "shade" of table "t": "purple" is no value of type {}colour (SQLSTATE 22P02)',
            ["shade"],
        ),
        (
            {"shade": "x" * 5_000},
            'column "shade" of table "t": "' + "x" * 40 + '…" is no value of type {}colour (SQLSTATE 22P02)',
            ["shade"],
        ),
        (
            {"label": "too long"},
            'column "label" of table "t": "too long" is too long for type character varying(6) (SQLSTATE 22001)',
            ["label"],
        ),
        ({"n": 40_000}, 'column "n" of table "t": "40000" is out of range for type smallint (SQLSTATE 22003)', ["n"]),
        (
            {"price": "1000.5"},
            'column "price" of table "t": "1000.5" is out of range for type numeric(5,2) (SQLSTATE 22003)',
            ["price"],
        ),
        ({"needed": None}, 'column "needed" of table "t" takes no NULL (SQLSTATE 23502)', ["needed"]),
        (
            {"tag": "longer"},
            'constraint "code_is_short" of type "Short Code" refuses the value in column "tag" of table "t"'
            " (SQLSTATE 23514)",
            ["tag"],
        ),
        (
            {"who": None},
            'type "named", not null, refuses the value in column "who" of table "t" (SQLSTATE 23502)',
            ["who"],
        ),
        ({"n": -1}, 'the row does not meet check "t_n" of table "t" (SQLSTATE 23514)', []),
        (
            {"code": "taken", "n": 1},
            'another row of table "t" has this value of columns "code", "n" already (constraint "t_code")'
            " (SQLSTATE 23505)",
            [],
        ),
        (
            {"parent": "q"},
            'the row that foreign key "t_parent" of table "t" refers to is not there (SQLSTATE 23503)',
            [],
        ),
        (
            {"span": "[5,7)"},
            'another row of table "t" is in the way of this one (constraint "t_span") (SQLSTATE 23P01)',
            [],
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_refusal_names_what_it_is_about(
    rig: ResolverRig, row: dict[str, Any], message: str, columns: list[str]
) -> None:
    bad = rig.node("a").insert("t", {"id": "2", **row})
    rig.group()
    assert said(rig, bad) == (message.format("app."), columns)


def test_who_still_refers_to_a_row_is_told_by_table_and_key(rig: ResolverRig) -> None:
    node = rig.node("first")
    node.see()
    bad = node.delete("parent", {"id": "p"})
    rig.group()
    message, _ = said(rig, bad)
    assert message == 'rows of table "t" still refer to this row (foreign key "t_parent") (SQLSTATE 23503)'


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ("any", 'a function or trigger of the application refuses this change of table "strict" (SQLSTATE P0001)'),
        ("names", 'constraint "seat_taken" of table "strict" says no (SQLSTATE P0001)'),
        ("casts", 'a value in this change of table "strict" is no value of its type (SQLSTATE 22P02)'),
    ],
)
def test_what_a_trigger_says_stays_with_it_but_for_the_names_that_it_gives(
    rig: ResolverRig, note: str, message: str
) -> None:
    bad = rig.node("a").insert("strict", {"id": "2", "note": note})
    rig.group()
    assert said(rig, bad)[0] == message


def test_in_a_batch_of_many_rows_the_row_and_its_column_are_found(rig: ResolverRig) -> None:
    rows = [{"id": f"r{i}", "n": i, "shade": "red" if i != 3 else "blue"} for i in range(6)]
    bad = rig.node("a").insert("t", *rows)
    rig.group()
    message, columns = said(rig, bad)
    assert message.startswith('column "shade" of table "t": "blue" is no value of type')
    assert columns == ["shade"]
    verdict = rig.verdict(bad)
    assert verdict is not None
    assert verdict.mutations[0].key[0].string_value == "r3"
