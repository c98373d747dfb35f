"""An audience expression is judged by Postgres: it is one immutable expression over the row's columns that gives text
or text[]."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.audiences.conftest import expected_sums, kept_sums

from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.judging import judge_expression
from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.refusals import Refused, TableRefusal
from anabranch.store.catalog.registration import add_table
from anabranch.store.catalog.sums import scan_rows
from anabranch.store.cells.binary_cells import Row
from anabranch.store.session.engine import Session

TAKEN = [
    ("'team:' || team_id", ("team_id",), False),
    ("team_id", ("team_id",), False),
    ("'everyone'", (), False),
    ("array['team:' || team_id, 'job:' || id]", ("id", "team_id"), True),
    ("tags", ("tags",), True),
    ("case when n > 3 then 'many' when title is null then null else 'n:' || n end -- a comment", ("title", "n"), False),
    ("('big:' || big)::varchar(20)", ("big",), False),
    ("job.team_id", ("team_id",), False),
    ("upper(label)", ("label",), False),
    ("team_id collate \"C\"", ("team_id",), False),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "columns", "is_list"), TAKEN, ids=[one[0] for one in TAKEN])
def test_an_expression_is_taken_with_the_columns_that_it_reads(
    conn: Session, expression: str, columns: tuple[str, ...], is_list: bool
) -> None:
    conn.execute("create domain app.label as text check (value <> 'x'); alter table app.job add label app.label")
    found = judge_expression(conn, "app", "job", expression)
    assert isinstance(found, Audience)
    assert (found.columns, found.is_list) == (columns, is_list)
    # As it is kept it is judged again, wherever the search path leads, and stays as it is.
    assert judge_expression(conn, "app", "job", found.expression) == found
    assert conn.execute("select count(*) from pg_class where relpersistence = 't'").fetchone() == (0,)
    conn.execute(f"select {found.as_list}, {found.meets('array[1::text]')} from app.job".encode())


REFUSED = [
    ("'at:' || at", TableRefusal.AUDIENCE_NOT_IMMUTABLE, "IMMUTABLE"),
    ("'by:' || current_user", TableRefusal.AUDIENCE_NOT_IMMUTABLE, "IMMUTABLE"),
    ("'r' || random()", TableRefusal.AUDIENCE_NOT_IMMUTABLE, "IMMUTABLE"),
    ("n", TableRefusal.AUDIENCE_TYPE, "has type integer"),
    ("n::int[]", TableRefusal.AUDIENCE_EXPRESSION, "cannot cast"),
    ("array[n]", TableRefusal.AUDIENCE_TYPE, "has type integer[]"),
    ("code", TableRefusal.AUDIENCE_TYPE, "has type character"),
    ("f(team_id)", TableRefusal.AUDIENCE_FUNCTION, "function app.f(text)"),
    ("title &&& title", TableRefusal.AUDIENCE_FUNCTION, "operator app.&&&(text,text)"),
    ("title::app.label", TableRefusal.AUDIENCE_FUNCTION, "type app.label"),
    ("(place).city", TableRefusal.AUDIENCE_FUNCTION, "column place of type app.place"),
    ("(places[1]).city", TableRefusal.AUDIENCE_FUNCTION, "column places of type app.place"),
    ("title collate app.same", TableRefusal.AUDIENCE_TYPE, "collation"),
    ("'team:' || no_such_column", TableRefusal.AUDIENCE_EXPRESSION, "no_such_column"),
    ("(select 'a')", TableRefusal.AUDIENCE_EXPRESSION, "subquer"),
    ("max(team_id)", TableRefusal.AUDIENCE_EXPRESSION, "aggregate"),
    ("row_number() over () || ''", TableRefusal.AUDIENCE_EXPRESSION, "window"),
    ("unnest(tags)", TableRefusal.AUDIENCE_EXPRESSION, "set-returning"),
    ("team_id, title", TableRefusal.AUDIENCE_TYPE, "record"),
    ("team_id), (title", TableRefusal.AUDIENCE_EXPRESSION, "one expression"),
    ("case when job is null then 'a' end", TableRefusal.AUDIENCE_EXPRESSION, "whole row"),
    ("'a'); select ('b'", TableRefusal.AUDIENCE_EXPRESSION, "multiple commands"),
    ("", TableRefusal.AUDIENCE_EXPRESSION, "syntax error"),
    ("'a", TableRefusal.AUDIENCE_EXPRESSION, "unterminated"),
    ("tableoid::text", TableRefusal.AUDIENCE_EXPRESSION, "system column"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "reason", "text"), REFUSED, ids=[one[0] for one in REFUSED])
def test_an_expression_is_refused_with_the_reason(
    conn: Session, expression: str, reason: TableRefusal, text: str
) -> None:
    # As one of ICU would be, which not every Postgres has.
    conn.execute(
        'create collation app.same from "C";'
        "update pg_collation set collisdeterministic = false where collname = 'same';"
        "create function app.f(text) returns text immutable language sql as $$ select $1 $$;"
        "create function app.g(text, text) returns text immutable language sql as $$ select $1 $$;"
        "create operator app.&&& (leftarg = text, rightarg = text, function = app.g);"
        "create domain app.label as text; create type app.place as (city text);"
        "alter table app.job add place app.place, add places app.place[]"
    )
    found = judge_expression(conn, "app", "job", expression)
    assert isinstance(found, Refused)
    assert found.reason is reason
    assert text in found.text
    assert conn.execute("select 1").fetchone() == (1,)


def test_the_audiences_of_a_row_are_a_set_in_order_without_what_is_none(conn: Session) -> None:
    conn.execute(
        "insert into app.job (id, tags) values ('1', '{b,a,NULL,\"\",b}'), ('2', null), ('3', '{}'),"
        " ('4', array[repeat('x', 1000), repeat('x', 1001)])"
    )
    add_table(conn, "d", "job", audience="tags")
    audience = load_database(conn, "d").restricted["job"]
    found = conn.execute(f"select id, {audience.as_list} from app.job order by id".encode()).fetchall()
    assert found == [("1", ["a", "b"]), ("2", []), ("3", []), ("4", ["x" * 1000])]


OF_ALL = """
array[team_id, title, tags[1], cardinality(tags)::text, n::text, big::text, (at > '2024-06-01 00:00:00+00')::text,
      (day - date '2000-01-01')::text, code::text, price::text, coalesce(label, 'none')]
"""
ALL_SORTS = """
insert into app.job values
    ('1', 't1', 'x', '{a,b}', 5, 7, '2024-01-01 00:00:00+00', '0044-03-15 BC', 'ab', 1.5),
    ('2', null, null, null, null, null, 'infinity', null, null, null),
    ('3', 't2', '', '{}', -1, 0, '294276-12-31 23:59:59.999999+00', '2024-02-29', 'abcd', -0.05)
"""


def test_cells_have_the_audiences_of_their_rows(conn: Session) -> None:
    conn.execute(ALL_SORTS)
    conn.execute("create domain app.label as varchar(5) check (value <> 'x'); alter table app.job add label app.label")
    conn.execute("update app.job set label = 'l' || id where n > 0")
    add_table(conn, "d", "job", audience=OF_ALL)
    database = load_database(conn, "d")
    table, audience = database.tables["job"], database.restricted["job"]
    with conn.transaction():
        scanned: list[list[Any]] = [row for rows in scan_rows(conn, "app", table, audience) for row in rows]
    assert max(len(row[-1]) for row in scanned) == 11
    found = RowAudiences(table, audience).of_all(conn, [row[:-1] for row in scanned])
    assert found == [tuple(row[-1]) for row in scanned]
    assert RowAudiences(table, audience).of_all(conn, []) == []


def test_an_audience_without_columns_is_computed_for_each_row(conn: Session) -> None:
    conn.execute("insert into app.job (id) select i::text from generate_series(1, 2500) i")
    add_table(conn, "d", "job", audience="'everyone'")
    database = load_database(conn, "d")
    rows: list[Row] = [[str(i), *[None] * 9] for i in range(1, 2501)]
    of_table = RowAudiences(database.tables["job"], database.restricted["job"])
    assert of_table.of_all(conn, rows) == [("everyone",)] * 2500
    assert kept_sums(conn, "job") == expected_sums(conn, "job", {"everyone": rows})
