"""Audiences as the server's rows and a story's rules give them, found by SQL written for this alone: none of the code
by which the product decides who sees what.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anabranch.scenario.node import Node
from anabranch.scenario.setting import SetSpec
from anabranch.scenario.world import World
from anabranch.store.catalog.sums import sum_to_bytes
from anabranch.store.cells.binary_cells import quote, read_expression, row_loader
from anabranch.store.session import binary
from anabranch.values import Table
from anabranch.values.canonical import RowEncoder, table_sum

Sum = tuple[int, bytes]
"""Count, and hash in 16 bytes."""

_PRINCIPAL = re.compile(r"(?<![:\w]):principal\b")
_CLAIMED = r"""
select r.prefix || ':' || (e.value #>> '{}')
from jsonb_each_text(%(rules)s::jsonb) r(claim, prefix)
cross join lateral (
    select coalesce(%(claims)s::jsonb -> r.claim, %(claims)s::jsonb #> string_to_array(r.claim, '.'))
) c(value)
cross join lateral jsonb_array_elements(
    case jsonb_typeof(c.value) when 'array' then c.value else jsonb_build_array(c.value) end
) e(value)
where jsonb_typeof(e.value) = 'string' or (jsonb_typeof(e.value) = 'number' and e.value #>> '{}' ~ '^-?[0-9]+$')
"""
# Whatever type the expression has (``coalesce`` makes a bare literal a text): a text is a list of one; NULL and what is
# empty are nobody's.
_OF_ROW = """
select x.value from jsonb_array_elements_text(
    case jsonb_typeof(a.value) when 'array' then a.value when 'string' then jsonb_build_array(a.value) else '[]' end
) x(value) where x.value <> ''
"""
_REMEMBER = "select set_config('anabranch_scenario.audiences', %s, true)"
_REMEMBERED = "current_setting('anabranch_scenario.audiences')::jsonb"
_KEPT = """
select t.name, s.audience, s.row_count, s.row_hash from anabranch.audience_sums s
join anabranch.synced_tables t on t.id = s.table_id join anabranch.databases d on d.id = t.database_id
where d.name = %s and s.row_count <> 0
"""


def expression_of(world: World, table: str) -> str | None:
    """The audience expression of a table, by its identity, with the names that its columns had at registration; None
    where everybody sees its rows."""
    return world.audience_of.get(table)


def restricted_tables(world: World) -> dict[str, Table]:
    """The synced tables that have an audience expression, by identity."""
    return {name: table for name, table in world.database.tables.items() if expression_of(world, name) is not None}


def read_set(world: World, node: Node) -> set[str]:
    """The audiences whose rows a node may see: those of its principal that it has chosen."""
    given = world.scenario.audiences
    found = set() if given is None else _set(world, given, node)
    chosen = world.people.spec(node.name).audiences
    return found if chosen is None else found & set(world.ids.resolve(chosen))


def _set(world: World, given: SetSpec, node: Node) -> set[str]:
    principal, claims = world.people.principal(node.name), world.people.claims(node.name)
    with world.conn.transaction():
        _search(world)
        told = {"rules": json.dumps(given.claims), "claims": json.dumps(claims)}
        rows = world.conn.execute(_CLAIMED, told).fetchall()
        for query in given.memberships:
            asked = _PRINCIPAL.sub("%(principal)s::text", query.replace("%", "%%"))
            rows += world.conn.execute(asked.encode(), {"principal": principal}).fetchall()
    return {audience for (audience,) in rows if audience}


def server_cells(world: World, table: Table) -> Sequence[Sequence[Any]]:
    """The rows that the server has, as cells."""
    return _cells(world, table, _selected(world, table))


def visible_cells(world: World, node: Node, table: Table) -> Sequence[Sequence[Any]]:
    """The rows of a table that a node may see, as cells."""
    expression = expression_of(world, table.name)
    if expression is None:
        return server_cells(world, table)
    statement = f"{_selected(world, table)} {_audience(table, expression)}"
    statement += f" where exists (select from ({_OF_ROW}) o(audience) where {_REMEMBERED} ? o.audience)"
    audiences = sorted(read_set(world, node))
    with world.conn.transaction():
        _search(world)
        world.conn.execute(_REMEMBER, (json.dumps(audiences),))
        return _cells(world, table, statement)


def audience_sums(world: World, table: Table) -> dict[str, Sum]:
    """The sum of each audience's rows of a restricted table, from the rows themselves; none of an audience without."""
    expression = expression_of(world, table.name)
    if expression is None:
        return {}
    source = f"{_relation(world, table)} {_audience(table, expression)}"
    with world.conn.transaction():
        _search(world)
        found = world.conn.execute(
            f"select distinct o.audience from {source}, lateral ({_OF_ROW}) o(audience)".encode()
        )
        sums = {}
        for (audience,) in found.fetchall():
            world.conn.execute(_REMEMBER, (json.dumps([audience]),))
            condition = f"exists (select from ({_OF_ROW}) o(audience) where {_REMEMBERED} ? o.audience)"
            rows = _cells(world, table, f"select {_columns(table)} from {source} where {condition}")
            sums[audience] = _sum(table, rows)
    return sums


def visible_sum(world: World, node: Node, table: Table) -> Sum:
    """The sum of the rows of a table that a node may see."""
    return _sum(table, visible_cells(world, node, table))


def _sum(table: Table, rows: Sequence[Sequence[Any]]) -> Sum:
    count, total = table_sum(RowEncoder(table), rows)
    return count, sum_to_bytes(total)


def kept_sums(world: World) -> dict[str, dict[str, Sum]]:
    """The sums of audiences that the server keeps, by table; without those of no rows."""
    found: dict[str, dict[str, Sum]] = defaultdict(dict)
    for table, audience, count, total in world.conn.execute(_KEPT, (world.name,)).fetchall():
        found[table][audience] = (count, bytes(total))
    return found


def sum_differences(what: str, found: Mapping[str, Sum], wanted: Mapping[str, Sum]) -> Iterator[str]:
    """How the sums of one table's audiences differ, in words; no sum is that of no rows."""
    for audience in sorted(found.keys() | wanted.keys()):
        here, there = found.get(audience, (0, bytes(16))), wanted.get(audience, (0, bytes(16)))
        if here != there:
            shown, stored = (f"{count} {total.hex()}" for count, total in (here, there))
            yield f"{what} for {audience!r} is {shown}, its rows on the server's {stored}"


def _search(world: World) -> None:
    world.conn.execute(f"set local search_path to {world.name}, public".encode())


def _relation(world: World, table: Table) -> str:
    return f"{world.relation(table.sql_name)} t"


def _audience(table: Table, expression: str) -> str:
    """A join that adds the value of an expression, which has the names that the columns were registered by."""
    columns = ", ".join(f"t.{quote(column.sql_name)} as {quote(column.name)}" for column in table.columns)
    row = f"(select {columns}) {quote(table.name)}"
    return f"cross join lateral (select to_jsonb(coalesce({expression})) from {row}) a(value)"


def _columns(table: Table) -> str:
    return ", ".join(read_expression(column, "t") for column in table.columns)


def _selected(world: World, table: Table) -> str:
    return f"select {_columns(table)} from {_relation(world, table)}"


def _cells(world: World, table: Table, statement: str) -> Sequence[Sequence[Any]]:
    cursor = binary.cursor(world.conn)
    cursor.execute(statement.encode(), prepare=False, binary=True)
    return row_loader(table.columns)(cursor.fetchall())
