"""Rows as a scenario expects them, against rows as they are."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.scenario.cells import accepted, encoded, to_text
from anabranch.scenario.naming import by_sql_name
from anabranch.scenario.node import Node
from anabranch.scenario.tables_seen import shape_differences, tables_of
from anabranch.scenario.world import FellShortError, World
from anabranch.store.cells.binary_cells import quote
from anabranch.values import Column, Kind, Table
from anabranch.values.canonical import RowEncoder
from anabranch.values.sqlite import RowCodec

_MOST_SHOWN = 3
_LONGEST_SHOWN = 500
_TYPES = """
select a.attname, format_type(a.atttypid, a.atttypmod) from pg_attribute a
where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""
_JSON_TYPES = frozenset({"json", "jsonb"})

Found = Sequence[Mapping[str, Any]]
_Row = tuple[bytes | None, Sequence[Any] | None]
_NONE: _Row = (None, None)
Wanted = Sequence[Mapping[str, frozenset[Any] | set[Any]]]


def match(wanted: Wanted, found: Found, names: Sequence[str]) -> list[str]:
    """Faults in words: every wanted row must match a found row of its own, and none may be left. ``wanted`` holds for
    each named column the values that match; ``names`` describes each wanted row."""
    taken: dict[int, int] = {}

    def place(i: int, tried: set[int]) -> bool:
        for j, row in enumerate(found):
            if j in tried or any(c not in row or row[c] not in forms for c, forms in wanted[i].items()):
                continue
            tried.add(j)
            if j not in taken or place(taken[j], tried):
                taken[j] = i
                return True
        return False

    missing = [names[i] for i in range(len(wanted)) if not place(i, set())]
    left = [str(dict(row)) for j, row in enumerate(found) if j not in taken]
    told = [f"no row {name}" for name in missing[:_MOST_SHOWN]] + [f"not expected: {row}" for row in left[:_MOST_SHOWN]]
    more = len(missing) + len(left) - len(told)
    return [*told, f"and {more} more"] if told and more else told


def check_server(world: World, table: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Compare the server's rows, by Postgres's own text of each value."""
    relation = world.relation(table)
    types: dict[str, str] = dict(world.conn.execute(_TYPES, (relation,)).fetchall())
    if not types:
        return [f"the server has no table {table}"]
    columns = list(dict.fromkeys(c for row in rows for c in row))
    unknown = [c for c in columns if c not in types]
    if unknown:
        return [f"the server's {table} has no column {unknown[0]}"]
    resolved = world.ids.resolve(list(rows))
    wanted = [_stored_texts(world, types, row) for row in resolved]
    shown = columns or list(types)
    selected = ", ".join(f"{quote(c)}::text" for c in shown)
    rows_there = world.conn.execute(f"select {selected} from {relation}".encode()).fetchall()
    found = [dict(zip(shown, row, strict=True)) for row in rows_there]
    return match(wanted, found, [str(row) for row in rows])


def _stored_texts(world: World, types: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, set[str | None]]:
    if not row:
        return {}
    selected = ", ".join(f"(%s::text)::{types[c].replace('%', '%%')}::text" for c in row)
    texts = [to_text(v, Kind.JSON if types[c] in _JSON_TYPES and v is not None else None) for c, v in row.items()]
    stored = world.conn.execute(f"select {selected}".encode(), texts).fetchone()
    return {c: {text} for c, text in zip(row, stored or (), strict=True)}


def device_cells(node: Node, table: Table) -> list[tuple[Any, ...]]:
    """The rows that a node shows, as cells. Raises FellShortError where it does not have the table and its columns."""
    columns = ", ".join(quote(c.sql_name) for c in table.columns)
    try:
        with node.reader() as conn:
            stored = conn.execute(f"SELECT {columns} FROM {quote(table.sql_name)}").fetchall()
    except sqlite3.OperationalError as error:
        raise FellShortError(f"{node.name} can't show {table.sql_name}: {error}") from None
    load = RowCodec(table).load
    return [load(row) for row in stored]


def check_node(world: World, node: Node, name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Compare the rows that a node shows, by their canonical encoding."""
    table = world.table(name, node)
    if table is None:
        return [f"there is no synced table {name}"]
    named = by_sql_name(table)
    unknown = [c for row in rows for c in row if c not in named]
    if unknown:
        return [f"{name} has no column {unknown[0]}"]
    wanted = []
    for row in world.ids.resolve(list(rows)):
        columns = [named[c] for c in row]
        forms = accepted(world.conn, columns, list(row.values())) if columns else []
        wanted.append(dict(zip(row, forms, strict=True)))
    shown = list(dict.fromkeys(c for row in rows for c in row)) or list(named)
    cells = [dict(zip(named, row, strict=True)) for row in device_cells(node, table)]
    found = [_Encoded(named, shown, row) for row in cells]
    return match(wanted, found, [str(row) for row in rows])


class _Encoded(dict[str, bytes]):
    """A row's encodings by column; messages show its cells."""

    def __init__(self, columns: Mapping[str, Column], shown: Sequence[str], row: Mapping[str, Any]) -> None:
        super().__init__({c: encoded(columns[c], row[c]) for c in shown})
        self.cells = {c: row[c] for c in shown}


def check_same(world: World, node: Node) -> list[str]:
    """Compare every table, row and column of a node with what the server has and the node may see, by the canonical
    encoding."""
    wrong = shape_differences(world, node)
    if wrong:
        return wrong
    return [
        text
        for seen in tables_of(world, node)
        for text in differences(seen.here, device_cells(node, seen.here), seen.wanted(world, node))
    ]


def differences(table: Table, here: Sequence[Sequence[Any]], there: Sequence[Sequence[Any]]) -> list[str]:
    """Differences between rows of a table ``here`` and on the server, by the canonical encoding, in words."""
    mine, theirs = _by_key(table, here), _by_key(table, there)
    name = table.sql_name
    out = [] if len(mine) == len(here) else [f"{name}: a key is there twice"]
    keys = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key, _NONE)[0] != theirs.get(key, _NONE)[0]]
    for key in keys[:_MOST_SHOWN]:
        shown, stored = (_row_text(rows.get(key, _NONE)[1]) for rows in (mine, theirs))
        out.append(f"{name} {key}: {shown} there, {stored} on the server")
    if len(keys) > _MOST_SHOWN:
        out.append(f"and {len(keys) - _MOST_SHOWN} more rows of {name}")
    return out


def _row_text(row: Sequence[Any] | None) -> str:
    text = "no row" if row is None else str(tuple(row))
    return text if len(text) < _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _by_key(table: Table, rows: Sequence[Sequence[Any]]) -> dict[str, _Row]:
    encode = RowEncoder(table).encode
    return {json.dumps([str(row[i]) for i in table.key_index]): (encode(row), row) for row in rows}
