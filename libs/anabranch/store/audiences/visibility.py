"""Whether policies hide rows that audiences show: the log is filtered by audiences alone, so that these must be as
strict as the policies that pulls and writes meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from anabranch.store.catalog.databases import Database
from anabranch.store.cells.binary_cells import quote
from anabranch.store.group.acting import ONESELF, act_as, act_as_oneself

Connection = psycopg.Connection[Any]

AT_ONCE = 1_000
"""Keys that are read at a time."""
_SHOWN, _PASSED = '"anabranch shown"', '"anabranch passed"'


def first_hidden(
    conn: Connection, database: Database, table: str, audiences: Sequence[str], claims: str
) -> tuple[str, ...] | None:
    """The key, as texts, of the first row of ``table`` that ``audiences`` show and that the policies hide from the role
    of the rules with these ``claims`` (JSON); None where there is none. Without an audience expression every row is
    shown. Must be called inside a transaction that sees one moment.

    Raises:
        psycopg.Error: a policy can't be evaluated, or the role may not read the table.
    """
    synced = database.tables[table]
    key = [quote(name) for name in synced.in_sql(synced.key_columns)]
    texts = ", ".join(f"{name}::text" for name in key)
    relation = f"{quote(database.schema_name)}.{quote(synced.sql_name)}"
    restricted = database.restricted.get(table)
    where = f" where {restricted.meets('%(audiences)s::text[]')}" if restricted is not None else ""
    select = f"select {texts} from {relation}{where} order by {', '.join(key)}".encode()
    parameters = {"audiences": list(audiences)}
    # A cursor's declaration takes no parameters: they are put in by the driver.
    declaring = psycopg.ClientCursor(conn)
    declaring.execute(f"declare {_SHOWN} no scroll cursor for ".encode() + select, parameters)
    acting = (database.audience_rules.rls_role, claims)
    act_as(conn, *acting)
    declaring.execute(f"declare {_PASSED} no scroll cursor for ".encode() + select, parameters)
    # Both are in one order, and what passes the policies is a part of what is shown.
    passed = _keys(conn, _PASSED, acting)
    expected = next(passed, None)
    hidden = None
    for shown in _keys(conn, _SHOWN, ONESELF):
        if shown != expected:
            hidden = shown
            break
        expected = next(passed, None)
    act_as_oneself(conn)
    conn.execute(f"close {_SHOWN}".encode())
    conn.execute(f"close {_PASSED}".encode())
    return hidden


def _keys(conn: Connection, cursor: str, acting: tuple[str, str]) -> Iterator[tuple[str, ...]]:
    """The keys of a cursor. Policies ask who reads while they run, and not when the cursor is declared."""
    rows: Sequence[Sequence[str]] = ((),)
    while rows:
        act_as(conn, *acting)
        rows = conn.execute(f"fetch {AT_ONCE} from {cursor}".encode()).fetchall()
        yield from map(tuple, rows)
