"""Ask Postgres which rows would break a constraint, for many rows at once and before they are written.

An answer is a suspicion: other rows of the same group may add the missing row, or remove the row that is in the way.
Values are tuples of cells in the order of the constraint's columns; the answers are places in the given sequence.

The look-ups are scalar subqueries with a LIMIT: probes by key, whatever the statistics say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.store.catalog.relation import ForeignKey, UniqueKey
from anabranch.store.cells.binary_cells import carried_type, quote
from anabranch.store.group.rows_statements import Sent, sent_as
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Column, Table
from anabranch.values.postgres_binary import text, text_array

CHECKS = b"""
select r.relname::text, pg_get_expr(c.conbin, c.conrelid),
       array(select a.attname::text from pg_catalog.pg_attribute a
             where a.attrelid = c.conrelid and a.attnum = any(c.conkey) and a.attnum > 0 order by a.attnum),
       coalesce(0 = any(c.conkey), true)
from pg_catalog.pg_constraint c
join pg_catalog.pg_class r on r.oid = c.conrelid join pg_catalog.pg_namespace n on n.oid = r.relnamespace
where n.nspname = $1::text and r.relname = any($2::text[]) and c.contype = 'c'
  and not exists (
      select from pg_catalog.pg_depend d
      left join pg_catalog.pg_operator o on d.refclassid = 'pg_operator'::regclass and o.oid = d.refobjid
      join pg_catalog.pg_proc p on p.oid = case d.refclassid when 'pg_proc'::regclass then d.refobjid else o.oprcode end
      where d.classid = 'pg_constraint'::regclass and d.objid = c.oid and p.provolatile = 'v')
order by r.relname, c.conname
"""
"""$1 schema, $2 tables. The checks over a table's own columns, with the columns' names, and whether they name the whole
row. The constraints of domains and generated columns are not among them, nor is a check with a volatile function: that
function may write, so it may run only where a row is written."""

Places = Callable[[], list[int]]
"""Returns the answer: places in the sequence that was asked about."""


@dataclass(frozen=True, slots=True)
class Checks:
    """A table's checks, and the columns that they look at."""

    expressions: tuple[str, ...]
    columns: tuple[str, ...]


def without_parent(
    conn: Connection, key: ForeignKey, columns: Sequence[Column], to: Table | None, values: Sequence[Sequence[Cell]]
) -> Places:
    """The places of ``values`` (of the referring ``columns``, none NULL) that no row of the referred table has. ``to``:
    this table where it is synced."""
    sent = sent_as(columns, _turned(values), "c")
    name, to_columns = (key.to_table, key.to_columns) if to is None else (to.sql_name, to.in_sql(key.to_columns))
    where = " and ".join(
        f"{one.held_in('p', to_column)} = {one.expression}" for to_column, one in zip(to_columns, sent, strict=True)
    )
    table = f"{quote(key.to_schema)}.{quote(name)}"
    return _places(conn, sent, f"(select true from {table} as p where {where} limit 1) is null", values)


def with_children(
    conn: Connection, key: ForeignKey, schema_name: str, table: Table, to: Table, values: Sequence[Sequence[Cell]]
) -> Places:
    """The places of ``values`` (of the referred columns of ``to``) that a row of ``table`` refers to."""
    sent = sent_as([to.by_name[name] for name in key.to_columns], _turned(values), "c")
    where = " and ".join(
        f"{one.held_in('r', name)} = {one.expression}"
        for name, one in zip(table.in_sql(key.columns), sent, strict=True)
    )
    from_table = f"{quote(schema_name)}.{quote(table.sql_name)}"
    return _places(conn, sent, f"(select true from {from_table} as r where {where} limit 1)", values)


def taken_values(
    conn: Connection,
    schema_name: str,
    table: Table,
    unique: UniqueKey,
    keys: Sequence[Sequence[Cell]],
    values: Sequence[Sequence[Cell]],
) -> Places:
    """The places of ``values`` (of the columns of ``unique``, none NULL) that a row of ``table`` has whose key is
    another than that of ``keys`` at the same place."""
    sent = sent_as([table.by_name[name] for name in unique.columns], _turned(values), "c")
    own = sent_as([table.by_name[name] for name in table.key_columns], _turned(keys), "k")
    same = " and ".join(one.condition for one in sent)
    other = " or ".join(f"{one.held_in('t', one.column.sql_name)} <> {one.expression}" for one in own)
    where = f"(select true from {quote(schema_name)}.{quote(table.sql_name)} as t where {same} and ({other}) limit 1)"
    return _places(conn, [*sent, *own], where, [[*v, *k] for v, k in zip(values, keys, strict=True)])


def checks(conn: Connection, schema_name: str, tables: Sequence[Table]) -> dict[str, Checks]:
    """The checks of those tables that have any, by name."""
    called = {table.sql_name: table for table in tables}
    expressions: dict[str, list[str]] = {}
    columns: dict[str, set[str]] = {}
    for name, expression, of, whole in run(conn, CHECKS, [text(schema_name), text_array(list(called), "table")]):
        expressions.setdefault(name, []).append(expression)
        columns.setdefault(name, set()).update(called[name].by_sql_name if whole else of)
    return {
        called[name].name: Checks(
            tuple(found), tuple(c.name for c in called[name].columns if c.sql_name in columns[name])
        )
        for name, found in expressions.items()
    }


def unchecked(conn: Connection, table: Table, checks: Checks, rows: Sequence[Sequence[Cell]]) -> Places:
    """The places of ``rows`` (cells of the checks' columns) for which a check is false. Reading the answer raises
    psycopg.Error where an expression can't be judged so (it may name the table, or fail on a value)."""
    sent = sent_as([table.by_name[name] for name in checks.columns], _turned(rows), "c")
    columns = ", ".join(f"v.{one.alias}::{carried_type(one.column)} as {quote(one.column.sql_name)}" for one in sent)
    false = " or ".join(f"not ({expression})" for expression in checks.expressions)
    condition = f"(select true from (select {columns}) as {quote(table.sql_name)} where {false} limit 1)"
    return _places(conn, sent, condition, rows)


def _places(conn: Connection, sent: Sequence[Sent], condition: str, rows: Sequence[Sequence[Cell]]) -> Places:
    arrays = ", ".join(f"${i}::{one.sender.array_type}" for i, one in enumerate(sent, 1))
    names = ", ".join(one.alias for one in sent)
    statement = f"select v.i from unnest({arrays}) with ordinality as v ({names}, i) where {condition}"
    parameters = [one.sender.build(cells) for one, cells in zip(sent, _turned(rows), strict=True)]
    cursor = run(conn, statement.encode(), parameters)
    return lambda: [row[0] - 1 for row in cursor.fetchall()]


def _turned(rows: Sequence[Sequence[Cell]]) -> list[Sequence[Cell]]:
    return list(zip(*rows, strict=True))
