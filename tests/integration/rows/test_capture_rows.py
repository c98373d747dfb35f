"""The images that the capture triggers wrote are read back as any other reader reads the rows, for every type."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.store.capture.rows import UndecodableError, decode
from anabranch.store.catalog.sums import scan_rows
from anabranch.store.session.engine import Session, SessionOptions, connect
from anabranch.values import Cell, Table

Register = Callable[[str, str], Table]

TYPES = {
    "smallint": ["1", "-32768"],
    "integer": ["2147483647"],
    "bigint": ["-9223372036854775808"],
    "numeric": ["NaN", "1e-40", "Infinity", "0.00"],
    "numeric(10,2)": ["1.5"],
    "real": ["1e-45", "NaN", "-0"],
    "double precision": ["Infinity", "-0", "5e-324"],
    "money": ["12.34"],
    "boolean": ["t"],
    "text": ["", "NULL", "😀", "e\u0301"],
    "varchar(9)": ["a b"],
    "char(5)": ["ab"],
    '"char"': ["x"],
    "name": ["n"],
    "bytea": ["\\x00ff"],
    "date": ["infinity", "4713-01-01 BC"],
    "time": ["24:00:00"],
    "timetz": ["12:00:00+05:30"],
    "timestamp": ["-infinity", "294276-12-31 23:59:59.999999"],
    "timestamptz": ["infinity", "0044-03-15 12:00:00+00 BC"],
    "interval": ["1 year -2 days 03:04:05.000006"],
    "uuid": ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "json": ["null", '{"a" : 1, "a": 2}'],
    "jsonb": ["null", '{"b": [1.50, null]}'],
    "jsonpath": ["$.a[*]"],
    "inet": ["10.0.0.1/8", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit(3)": ["101"],
    "varbit": ["", "1"],
    "point": ["(1,2)"],
    "int4range": ["[1,5)", "empty"],
    "tsvector": ["'a':1A 'b'"],
    "tsquery": ["'a' & 'b'"],
    "pg_lsn": ["16/B374D848"],
    "int[]": ["{}", "{1,NULL}", "[0:1]={1,2}"],
    "text[]": ['{NULL,"NULL",""}', "{{a,b},{c,d}}"],
    "app.mood": ["glad"],
    "app.mood[]": ["{glad,NULL}"],
    "app.pair": ['(1,"a b")'],
    "app.small": ["7"],
}


def test_every_type_comes_back_as_it_is_read(conn: Session, rows_url: str, register: Register) -> None:
    """Also to a session that knows nothing of the table, while somebody keeps everybody from it."""
    conn.execute(
        "create type app.mood as enum ('glad', 'sad'); create type app.pair as (n int, t text);"
        "create domain app.small as int check (value < 10)"
    )
    columns = ", ".join(f"c{i} {name}" for i, name in enumerate(TYPES))
    table = register("kinds", f"create table app.kinds (id int primary key, {columns})")
    longest = max(map(len, TYPES.values()))
    names = ", ".join(f"c{i}" for i in range(len(TYPES)))
    for row in range(longest + 1):
        values = [values[row] if row < len(values) else None for values in TYPES.values()]
        casts = ", ".join(f"%s::text::{name}" for name in TYPES)
        conn.execute(f"insert into app.kinds (id, {names}) values ({row}, {casts})".encode(), values)
    images = [
        row[0]
        for row in conn.execute(
            "select new from anabranch.captured where table_id = %s and type <> 4 order by id", (table.id,)
        ).fetchall()
    ]
    with conn.transaction():
        stored = sorted((row for rows in scan_rows(conn, "app", table) for row in rows), key=lambda row: str(row[0]))
        decoded = decode(conn, "app", table, images)
    assert len(decoded) == longest + 1
    assert [shown(row) for row in decoded] == [shown(row) for row in stored]
    options = SessionOptions(lock_timeout_ms=100)
    with (
        connect(rows_url, application_name="somebody") as somebody,
        connect(rows_url, application_name="cold", autocommit=True, options=options) as cold,
    ):
        somebody.execute("lock table app.kinds in access exclusive mode")
        for _ in range(2):
            with cold.transaction():
                assert [shown(row) for row in decode(cold, "app", table, images)] == [shown(row) for row in stored]
        assert cold.execute("select to_regtype('pg_temp.anabranch_image')").fetchone() == (None,)


def test_what_reads_a_locked_table_takes_no_prepared_statement_from_its_session(
    conn: Session, rows_url: str, register: Register
) -> None:
    """The driver forgets all of them where something is dropped, and has the server forget those that came since."""
    table = register("held", "create table app.held (id text primary key)")
    conn.execute("insert into app.held values ('a')")
    images = [
        row[0]
        for row in conn.execute("select new from anabranch.captured where table_id = %s and type <> 4", (table.id,))
    ]
    with (
        connect(rows_url, application_name="somebody") as somebody,
        connect(rows_url, application_name="cold") as cold,
    ):
        somebody.execute("lock table app.held in access exclusive mode")
        cold.prepare_threshold = 0
        with cold.pipeline():
            assert decode(cold, "app", table, images) == [["a"]]
            dropped = cold.execute("select to_regtype('pg_temp.anabranch_image')")
            assert dropped.fetchone() == (None,)
            for _ in range(2):
                assert cold.execute("select 1 + 1").fetchone() == (2,)
        cold.rollback()


def shown(row: list[Cell]) -> list[str]:
    """Cells by what they print: NaN and -0.0 by their kind."""
    return [repr(cell) for cell in row]


def test_images_from_before_a_column_was_added_or_widened(conn: Session, register: Register) -> None:
    table = register("older", "create table app.older (id text primary key, n int, v varchar(3))")
    conn.execute("insert into app.older values ('a', -5, 'abc')")
    conn.execute("alter table app.older add column more date default '2020-01-01'")
    conn.execute("insert into app.older values ('b', 6, 'd')")
    conn.execute("alter table app.older alter column n type bigint, alter column v type text, drop column more")
    conn.execute("insert into app.older values ('c', 7, 'e')")
    found = conn.execute(
        "select new from anabranch.captured where table_id = %s and type <> 4 order by id", (table.id,)
    ).fetchall()
    with conn.transaction():
        rows = decode(conn, "app", table, [image for (image,) in found])
    assert rows == [["a", -5, "abc"], ["b", 6, "d"], ["c", 7, "e"]]


@pytest.mark.parametrize(
    "change", ["drop column n", "rename column n to m", "alter column n type text", "rename to elsewhere{}"]
)
def test_images_of_a_drifted_table_are_refused(conn: Session, register: Register, change: str) -> None:
    name = f"drifted{abs(hash(change)) % 10**9}"
    table = register(name, f"create table app.{name} (id text primary key, n int)")
    conn.execute(f"insert into app.{name} values ('a', 1)".encode())
    found = conn.execute("select new from anabranch.captured where table_id = %s and type <> 4", (table.id,)).fetchall()
    conn.execute(f"alter table app.{name} {change.format(name)}".encode())
    with conn.transaction(force_rollback=True), pytest.raises(UndecodableError):
        decode(conn, "app", table, [image for (image,) in found])
