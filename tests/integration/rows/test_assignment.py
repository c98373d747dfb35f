"""Every value goes into its column as an assignment would take it: refused or stored as by a plain INSERT of a typed
parameter, and never cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import psycopg
import pytest

from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table
from anabranch.store.group.rows import TableSql
from anabranch.store.session.engine import Session
from anabranch.values import Cell, Kind

BASES: dict[str, list[Cell]] = {
    "bit(3)": ["101", "10111", "1", ""],
    "bit varying(3)": ["101", "10111", "", "1"],
    "character(3)": ["ab", "abcd", "abc  ", "ab  c"],
    "character varying(3)": ["ab", "abcd", "abc  ", "ab  c"],
    "numeric(4,1)": ["12.3", "12.34", "1234.5", "NaN", "999.96"],
    "interval second(0)": ["1 day 00:00:01.6", "00:00:01.4"],
    "interval year": ["1 year 2 mons"],
    "bit": ["1", "11"],
    "character": ["a", "ab"],
    "integer": [1, 2**40],
    "smallint": [1, 70_000],
    "timestamp(1) without time zone": [1_000_000_055_000, 0],
    "timestamp(0) with time zone": [1_000_000_555_000],
    "time(0) without time zone": [1_500_000, 86_399_999_999],
    "bytea": [b"abc"],
    "uuid": ["6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d", "no uuid"],
    "jsonb": ['{"a": 1}', "{"],
    "app.three": ["one", "none"],
    "app.shape": ["(abc,101)", "(abcd,101)", "(abc,10111)"],
    "app.reach": ['["a","b"]', '["a","bcde"]'],
    "aclitem": ["postgres=r/postgres", "nobody-here=r"],
}
TYPES = """
create type app.three as enum ('one', 'two');
create domain app.narrow as varchar(3);
create type app.shape as (a varchar(3), b bit(3));
create type app.reach as range (subtype = app.narrow);
"""
SHAPES = ("plain", "domain", "domain over a domain", "array", "array of a domain", "domain over an array")


def _declared(base: str, shape: str) -> tuple[str, str]:
    """The statement that makes the type, and its name."""
    inner, outer = "app.inner_one", "app.outer_one"
    match shape:
        case "plain":
            return "", base
        case "domain":
            return f"create domain {outer} as {base};", outer
        case "domain over a domain":
            return f"create domain {inner} as {base}; create domain {outer} as {inner};", outer
        case "array":
            return "", f"{base}[]"
        case "array of a domain":
            return f"create domain {inner} as {base};", f"{inner}[]"
    return f"create domain {outer} as {base}[];", outer


MOMENT = "(timestamp{} '1970-01-01 00:00:00+00' + %s * interval '1 microsecond')"
REFERENCES = {
    "timestamp(1) without time zone": MOMENT.format(""),
    "timestamp(0) with time zone": MOMENT.format("tz"),
    "time(0) without time zone": "('00:00'::time + %s * interval '1 microsecond')",
    "integer": "%s::int8",
    "smallint": "%s::int8",
    "bytea": "%s::bytea",
}
"""How a parameter is given the type without its modifier, where that is no text."""
Outcome = tuple[str, str]


def _outcome(conn: Session, write: Callable[[], object]) -> Outcome:
    """A SQLSTATE, or what is stored as text; the row is gone again."""
    try:
        with conn.transaction(force_rollback=True):
            write()
            [(stored,)] = conn.execute("select concat(v) from app.one").fetchall()
            return "stored", str(stored)
    except psycopg.Error as error:
        return "refused", error.sqlstate or ""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("base", BASES)
def test_a_value_is_refused_or_stored_as_by_a_plain_insert(conn: Session, base: str, shape: str) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute(TYPES.encode())
        make, declared = _declared(base, shape)
        conn.execute(f"{make}create table app.one (k text primary key, v {declared})".encode())
        [(bare,)] = conn.execute("select format_type(%s::regtype, -1)", (base,)).fetchall()
        add_table(conn, "app", "one", now_ms=0)
        sql = TableSql("app", load_database(conn, "app").tables["one"])
        given = REFERENCES.get(base, f"%s::text::{bare}")
        for value in BASES[base]:
            cell: Cell = value
            reference = given
            if "array" in shape:
                cell, reference = (value,), f"array[{given}]"
                if sql.table.by_name["v"].kind is Kind.LITERAL:
                    [(cell,)] = conn.execute(b"select array[%s::text]::text", (value,)).fetchall()
            plain = _outcome(conn, partial(_insert, conn, reference, value))
            assert _outcome(conn, partial(_ours, sql, conn, cell)) == plain, value
            assert _outcome(conn, partial(_updated, sql, conn, cell)) == plain, value


def _insert(conn: Session, reference: str, value: Cell) -> None:
    conn.execute(f"insert into app.one values ('k', {reference})".encode(), (value,))


def _ours(sql: TableSql, conn: Session, cell: Cell) -> None:
    sql.insert(conn, ["k", "v"], [["k", cell]])()


def _updated(sql: TableSql, conn: Session, cell: Cell) -> None:
    conn.execute("insert into app.one values ('k', null)")
    sql.update(conn, ["v"], [("k",)], [(cell,)])()


def test_values_that_do_not_fit_are_among_them(conn: Session) -> None:
    """The reference refuses, and would cut where it were an explicit cast."""
    with conn.transaction(force_rollback=True):
        conn.execute("create domain app.flags as bit(3); create table app.one (k text primary key, v app.flags)")
        assert _outcome(conn, lambda: conn.execute("insert into app.one values ('k', '10111'::text::\"bit\")")) == (
            "refused",
            "22026",
        )
        assert _outcome(conn, lambda: conn.execute("insert into app.one values ('k', '10111'::app.flags)")) != (
            "stored",
            "10111",
        )


def test_keys_under_domains_are_compared_without_their_checks(conn: Session) -> None:
    """The domain of a key is checked where a row is written: a look-up of a key that it refuses finds none."""
    with conn.transaction(force_rollback=True):
        conn.execute(
            "create domain app.word as varchar(3) check (value <> 'no'); "
            "create table app.one (k app.word primary key, v text)"
        )
        add_table(conn, "app", "one", now_ms=0)
        sql = TableSql("app", load_database(conn, "app").tables["one"])
        assert list(sql.insert(conn, ["k", "v"], [["yes", "v"]])()) == ["yes"]
        for key in ("no", "longer"):
            assert sql.read(conn, [(key,)])() == {}
            assert sql.lock(conn, [(key,)])().rows == {}
            assert sql.update(conn, ["v"], [(key,)], [("x",)])() == {}
            assert sql.delete(conn, [(key,)])() == set()
            with pytest.raises(psycopg.DataError if key == "longer" else psycopg.IntegrityError), conn.transaction():
                sql.insert(conn, ["k", "v"], [[key, "v"]])()
        assert list(sql.read(conn, [("yes",)])()) == ["yes"]
