"""Set statements on a synced table: one statement for any number of rows, and exactly the rows that were named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg import errors

from anabranch.store.group.rows import TableSql
from anabranch.store.group.rows_statements import Statements
from anabranch.store.session import binary
from anabranch.store.session.engine import Session, connect
from anabranch.values import Cell, Column, Kind, Table, key_text

Register = Callable[[str, str], Table]
ODD_NAMES = [
    "select",
    'q"q',
    "'; drop table x; --",
    "Mixed Case",
    "7.5",
    "%s %(a)s :b $1",
    "😀",
    "a.b",
    "x" * 63,
    "back\\slash",
    "{}",
    "é" * 31,
]


@pytest.fixture(scope="module")
def items(register: Register) -> Table:
    return register(
        "items",
        """create table app.items (
            id text primary key, n integer not null, note text default 'none',
            code text constraint items_code_key unique,
            parent text constraint items_parent_fkey references app.items deferrable initially immediate,
            constraint items_n_check check (n >= 0))""",
    )


@pytest.fixture
def sql(conn: Session, items: Table) -> TableSql:
    conn.execute("truncate app.items")
    return TableSql("app", items)


def all_rows(conn: Session, table: str = "items") -> list[tuple[object, ...]]:
    return conn.execute(f"select * from app.{table} order by 1, 2".encode()).fetchall()


def test_columns_that_are_not_given_get_their_defaults(conn: Session, sql: TableSql) -> None:
    stored = sql.insert(conn, ("n", "id"), [[2, "b"], [1, "a"]])()
    assert stored == {"a": ["a", 1, "none", None, None], "b": ["b", 2, "none", None, None]}
    assert sql.insert(conn, ("id", "n", "note"), [["c", 3, None]])() == {"c": ["c", 3, None, None, None]}


def test_an_update_changes_the_named_columns_of_the_named_rows(conn: Session, sql: TableSql) -> None:
    sql.insert(conn, ("id", "n"), [[str(i), i] for i in range(10)])()
    changed = sql.update(conn, ["note", "n"], [("7",), ("3",)], [("seven", 70), ("three", 30)])()
    assert changed == {"3": ["3", 30, "three", None, None], "7": ["7", 70, "seven", None, None]}
    expected = [(str(i), i, "none", None, None) for i in range(10)]
    expected[3], expected[7] = ("3", 30, "three", None, None), ("7", 70, "seven", None, None)
    assert all_rows(conn) == expected
    assert sql.update(conn, [], [("7",)], [()], defaults=["note"])() == {"7": ["7", 70, "none", None, None]}


def test_rows_that_are_not_there_are_missing_from_the_result(conn: Session, sql: TableSql) -> None:
    sql.insert(conn, ("id", "n"), [["a", 1]])()
    assert set(sql.update(conn, ["n"], [("a",), ("gone",)], [(5,), (6,)])()) == {"a"}
    assert sql.delete(conn, [("a",), ("gone",)])() == {"a"}
    assert sql.read(conn, [("a",)])() == {}


def test_a_key_named_twice_is_refused_before_anything_is_sent(conn: Session, sql: TableSql) -> None:
    sql.insert(conn, ("id", "n"), [["a", 1]])()
    with conn.transaction():
        for call in (
            lambda: sql.update(conn, ["n"], [("a",), ("a",)], [(5,), (6,)])(),
            lambda: sql.insert(conn, ("n", "id"), [[5, "b"], [6, "b"]])(),
            lambda: sql.delete(conn, [("a",), ("a",)])(),
            lambda: sql.lock(conn, [("a",), ("a",)])(),
            lambda: sql.read(conn, [("a",), ("a",)])(),
        ):
            with pytest.raises(ValueError, match="named twice"):
                call()
        assert conn.execute("select n from app.items").fetchall() == [(1,)]


def test_nothing_to_do_sends_nothing(sql: TableSql, rows_url: str) -> None:
    closed = connect(rows_url, application_name="closed")
    closed.close()
    assert sql.insert(closed, ("id", "n"), [])() == {}
    assert sql.update(closed, ["n"], [], [])() == {}
    assert sql.delete(closed, [])() == set()
    assert sql.read(closed, [])() == {}
    locked = sql.lock(closed, [])()
    assert locked.rows == {}
    assert locked.busy == set()


def test_keys_and_values_must_pair(conn: Session, sql: TableSql) -> None:
    with pytest.raises(ValueError, match="2 keys for 1 rows"):
        sql.update(conn, ["n"], [("a",), ("b",)], [(1,)])()
    with pytest.raises(ValueError, match="no column"):
        sql.update(conn, [], [("a",)], [()])()


@pytest.mark.parametrize(
    ("rows", "sqlstate", "constraint"),
    [
        ([["b", 1, None, None], ["a", 1, None, None]], "23505", "items_pkey"),
        ([["b", 1, "x", None], ["c", 1, "x", None]], "23505", "items_code_key"),
        ([["b", 1, None, "nobody"]], "23503", "items_parent_fkey"),
        ([["b", -1, None, None]], "23514", "items_n_check"),
        ([["b", None, None, None]], "23502", None),
    ],
)
def test_what_postgres_refuses_names_itself(
    conn: Session, sql: TableSql, rows: list[list[Cell]], sqlstate: str, constraint: str | None
) -> None:
    sql.insert(conn, ("id", "n"), [["a", 1]])()
    with pytest.raises(errors.IntegrityError) as refused:
        sql.insert(conn, ("id", "n", "code", "parent"), rows)()
    assert (refused.value.sqlstate, refused.value.diag.constraint_name) == (sqlstate, constraint)
    if sqlstate == "23502":
        assert refused.value.diag.column_name == "n"
    assert len(all_rows(conn)) == 1


def test_a_row_may_lean_on_one_of_the_same_statement(conn: Session, sql: TableSql) -> None:
    sql.insert(conn, ("id", "n", "parent"), [["child", 1, "mother"], ["mother", 2, None]])()
    assert set(sql.read(conn, [("child",), ("mother",)])()) == {"child", "mother"}


def test_busy_rows_are_told_from_absent_ones(conn: Session, sql: TableSql, rows_url: str) -> None:
    sql.insert(conn, ("id", "n"), [["free", 1], ["held", 2], ["deleted", 3]])()
    with connect(rows_url, application_name="other") as other:
        other.execute("update app.items set n = 9 where id = 'held'")
        other.execute("delete from app.items where id = 'deleted'")
        other.execute("insert into app.items (id, n) values ('unseen', 1)")
        with conn.transaction():
            locked = sql.lock(conn, [("held",), ("free",), ("absent",), ("deleted",), ("unseen",)])()
            assert locked.rows == {"free": ["free", 1, "none", None, None]}
            assert locked.busy == {"held", "deleted"}
        other.commit()
        with conn.transaction():
            locked = sql.lock(conn, [("held",), ("free",), ("absent",), ("deleted",), ("unseen",)])()
            assert {key: row[1] for key, row in locked.rows.items()} == {"held": 9, "free": 1, "unseen": 1}
            assert locked.busy == set()
            # And they are locked: the other one does not get them now.
            with pytest.raises(errors.LockNotAvailable):
                other.execute("select from app.items where id = 'free' for update nowait")
            other.rollback()


def test_names_that_need_quoting(conn: Session, register: Register) -> None:
    quoted = ['"' + name.replace('"', '""') + '"' for name in ODD_NAMES]
    for name, table_name in zip(ODD_NAMES, quoted, strict=True):
        columns = ", ".join(f"{q} text" for q in quoted)
        table = register(
            name, f'create table app.{table_name} ({columns}, "an int" integer, primary key ({quoted[0]}, {quoted[1]}))'
        )
        sql = TableSql("app", table)
        row: list[Cell] = [f"value of {n}" for n in ODD_NAMES] + [7]
        key = (row[0], row[1])
        text = key_text(key)
        assert sql.insert(conn, table.column_names, [row])() == {text: row}
        row[-2] = "'; drop table x; --"
        row[2] = '%s " $1'
        assert sql.update(conn, [ODD_NAMES[-1], ODD_NAMES[2]], [key], [(row[-2], row[2])])() == {text: row}
        assert sql.lock(conn, [key])().rows == {text: row}
        assert sql.read(conn, [key])() == {text: row}
        assert sql.delete(conn, [key, ("x", "y")])() == {text}


def test_a_schema_that_needs_quoting(conn: Session) -> None:
    conn.execute('create schema "sch""ema.x"')
    conn.execute('create table "sch""ema.x".t (id integer primary key)')
    sql = TableSql('sch"ema.x', Table("t", (Column("id", Kind.INT64, "integer"),), ("id",)))
    assert sql.insert(conn, ("id",), [[5]])() == {"5": [5]}


@pytest.mark.parametrize(
    ("types", "keys"),
    [
        (["text", "text"], [("1", "07"), ("1", "7"), ("10", "7"), ('a"', "b"), ("a", '"b')]),
        (["bigint"], [(-(2**63),), (7,), (2**63 - 1,)]),
        (["smallint"], [(7,), (-1,)]),
        (["uuid"], [("6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d",)]),
        (["bytea"], [(b"\x00\xff",), (b"",)]),
        (["boolean", "integer"], [(True, 1), (False, 1)]),
        (["date"], [(-1,), (0,)]),
        (["timestamp with time zone"], [(-1,), (1_700_000_000_000_001,)]),
        (["timestamp without time zone", "text"], [(-1, "x")]),
        (["time without time zone"], [(1,)]),
        (["app.colour"], [("red",), ("it's",)]),
        (["app.number"], [(5,)]),
        (["character varying(10)"], [("abc ",), ("abc",)]),
    ],
)
def test_keys_of_every_type(conn: Session, register: Register, types: list[str], keys: list[tuple[Cell, ...]]) -> None:
    conn.execute("create schema if not exists app")
    if types[0].startswith("app.") and not conn.execute("select to_regtype('app.colour')").fetchone()[0]:  # type: ignore[index]
        conn.execute("create type app.colour as enum ('red', 'it''s')")
        conn.execute("create domain app.number as integer")
    name = "key_" + "_".join(types).replace(" ", "_")
    columns = ", ".join(f'"k{i}" {type_name}' for i, type_name in enumerate(types))
    names = [f"k{i}" for i in range(len(types))]
    # The key's order is not the table's.
    table = register(name, f'create table app."{name}" (v text, {columns}, primary key ({", ".join(reversed(names))}))')
    sql = TableSql("app", table)
    turned = [tuple(reversed(key)) for key in keys]
    texts = {key_text(key) for key in turned}
    assert set(sql.insert(conn, ("v", *names), [["x", *key] for key in keys])()) == texts
    assert len(texts) == len(keys)
    updated = sql.update(conn, ["v"], turned, [(f"of {key_text(key)}",) for key in turned])()
    assert {key: row[0] for key, row in updated.items()} == {text: f"of {text}" for text in texts}
    assert set(sql.lock(conn, turned)().rows) == texts
    assert set(sql.read(conn, turned)()) == texts
    assert sql.delete(conn, turned[:1])() == {key_text(turned[0])}
    assert set(sql.read(conn, turned)()) == texts - {key_text(turned[0])}


def test_numbers_that_postgres_gives_out_may_be_given(conn: Session, register: Register) -> None:
    table = register(
        "numbered",
        """create table app.numbered (id integer generated by default as identity primary key, always integer
           generated always as identity, twice integer generated always as (id * 2) stored)""",
    )
    sql = TableSql("app", table)
    assert sql.insert(conn, ("id", "always"), [[40, 50]])() == {"40": [40, 50, 80]}
    assert sql.insert(conn, ("id",), [[41]])() == {"41": [41, 1, 82]}


def test_keys_go_by_the_index_on_a_table_that_was_never_analyzed(conn: Session, register: Register) -> None:
    table = register("big", "create table app.big (a text, b integer, v text, primary key (a, b))")
    statement, parameters = Statements("app", table).lock([["x"], [1]])
    conn.execute("insert into app.big select 'x', i, 'v' from generate_series(1, 3000) i")
    plan = "\n".join(row[0] for row in binary.cursor(conn).execute(b"explain " + statement, parameters))
    assert "Index Scan using big_pkey" in plan
    assert "Seq Scan" not in plan
