"""The audiences of rows are what Postgres says of the stored rows, whatever the expression reads."""

from __future__ import annotations

import pytest
from tests.integration.rows.conftest import Register

from anabranch.store.audiences import row_audiences
from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.catalog.sums import scan_rows
from anabranch.store.cells.binary_cells import Row
from anabranch.store.session.engine import Session
from anabranch.values import Table

COLUMNS = """
id text primary key, t text, i int, b boolean, f double precision, n numeric(10,2), at timestamptz, d date, u uuid,
tags text[], j jsonb, v varchar(5), mood app.mood, raw bytea, h time
"""
ROWS = """
insert into app.{name} values
('1', 'a', 1, true, 0.0, 1.5, '2024-01-01 00:00:00.000001+00', '2024-02-29', '00000000-0000-0000-0000-000000000001',
 '{{a,b}}', '{{"a": ["x", "y"]}}', 'abc', 'ok', '\\x00ff', '12:30'),
('2', '', -1, false, '-0.0', 2.50, 'infinity', '-infinity', null, '{{}}', '[]', '', 'sad', '', '24:00'),
('3', null, null, null, 'nan', null, null, null, null, null, null, null, null, null, null),
('4', 'a', 1, true, -1.5, 'nan', '290000-01-01', 'infinity', null, '{{NULL,"q,uote",""}}', 'null', 'abc', 'ok', '\\x',
 '00:00'),
('5', 'ü', 2, null, 1e300, 1.50, '2024-01-01', null, null, '[2:3]={{c,d}}', null, null, null, null, null)
"""
EXPRESSIONS = [
    ("'all'", (), False),
    ("'team:' || t", ("t",), False),
    ("t", ("t",), False),
    ("i::text || coalesce(t, '')", ("t", "i"), False),
    ("case when b then 'yes' else 'no' end", ("b",), False),
    ("f::text", ("f",), False),
    ("n::text", ("n",), False),
    ("(at at time zone 'UTC')::date::text", ("at",), False),
    ("d::text", ("d",), False),
    ("u::text", ("u",), False),
    ("tags", ("tags",), True),
    ("array[j->'a'->>0, j->'a'->>1, 'x']", ("j",), True),
    ("v", ("v",), False),
    ("'mood:' || mood", ("mood",), False),
    ("encode(raw, 'hex')", ("raw",), False),
    ("h::text", ("h",), False),
    ("array['user:' || t, null, 'org:' || i, 'user:' || t, repeat('x', i * 600)]", ("t", "i"), True),
    ('"row_audiences".t || row_audiences.id', ("id", "t"), False),
]


@pytest.fixture(scope="module")
def table(conn: Session, register: Register) -> Table:
    """A table with a column of most types, and five rows."""
    conn.execute("create type app.mood as enum ('ok', 'sad')")
    found = register("row_audiences", f"create table app.row_audiences ({COLUMNS})")
    conn.execute(ROWS.format(name="row_audiences").encode())
    return found


def _rows(conn: Session, table: Table) -> list[Row]:
    with conn.transaction():
        return sorted(row for rows in scan_rows(conn, "app", table) for row in rows)


@pytest.mark.parametrize(("expression", "columns", "is_list"), EXPRESSIONS)
def test_audiences_are_what_postgres_says_of_the_stored_rows(
    conn: Session, table: Table, expression: str, columns: tuple[str, ...], is_list: bool
) -> None:
    audience = Audience(expression, columns, is_list)
    rows = _rows(conn, table)
    audiences = RowAudiences(table, audience)
    audiences.learn(conn, rows)
    stored = conn.execute(f"select id, {audience.as_list} from app.row_audiences order by id".encode()).fetchall()
    assert [list(audiences.of(row)) for row in rows] == [found for _, found in stored]
    for wanted in {one for _, found in stored for one in found}:
        met = conn.execute(
            f"select id from app.row_audiences where {audience.meets('%s::text[]')} order by id".encode(), [[wanted]]
        ).fetchall()
        assert [key for (key,) in met] == [key for key, found in stored if wanted in found]


def test_rows_of_equal_values_are_evaluated_once(conn: Session, table: Table) -> None:
    rows = _rows(conn, table)
    audiences = RowAudiences(table, Audience("'team:' || t", ("t",), False))
    assert audiences.known(rows[0]) is None
    audiences.learn(conn, rows[:1])
    assert audiences.known(rows[3]) == ("team:a",)
    assert audiences.known(rows[4]) is None


def test_what_is_kept_has_a_bound_and_what_was_asked_is_known(
    conn: Session, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_audiences, "KEPT", 2)
    monkeypatch.setattr(row_audiences, "AT_ONCE", 2)
    rows = _rows(conn, table)
    audiences = RowAudiences(table, Audience("id", ("id",), False))
    audiences.learn(conn, rows)
    assert [audiences.of(row) for row in rows] == [("1",), ("2",), ("3",), ("4",), ("5",)]
    audiences.learn(conn, rows[:1])
    assert audiences.of(rows[0]) == ("1",)
    assert audiences.known(rows[4]) is None
