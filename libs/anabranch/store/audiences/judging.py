"""Whether an audience expression can be kept: Postgres says so, by an index on it.

An index takes what an audience needs: one expression over one row's columns, immutable, without aggregates and
sub-selects. It is made on an empty temporary table that is like the synced one, in a savepoint that is undone. What is
kept is the expression as Postgres prints it there, with every name in full, so that it means the same in any session.

It runs in sessions of the services, with their rights. So it has nothing that others than the system could replace:
functions, operators and types of the application's are refused, and columns of such types.
"""

from __future__ import annotations

from typing import Any

import psycopg

from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.queries import OUR_PATH, search_path
from anabranch.store.catalog.refusals import Refused, TableRefusal
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session import binary

Connection = psycopg.Connection[Any]

_INDEX = '"_DB_audience"'
_PATH = "select pg_catalog.set_config('search_path', %s, true)"
_TYPES = {25: False, 1043: False, 1009: True, 1015: True}
"""The types that an expression may have (text, varchar, and arrays of them), and whether it is a list."""
_TYPE_NAME = "select pg_catalog.format_type(%s::int8::oid, null)"
# Domains are what is below them: their checks run where a row is written only.
_OF_OTHERS = f"""
select distinct pg_catalog.pg_describe_object(d.refclassid, d.refobjid, 0)
from pg_catalog.pg_depend d
where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = 'pg_temp.{_INDEX}'::regclass
  and d.refclassid in ('pg_catalog.pg_proc'::regclass, 'pg_catalog.pg_operator'::regclass,
                       'pg_catalog.pg_type'::regclass)
union
select 'column ' || k.attname || ' of type ' || pg_catalog.format_type(k.type, null)
from (
    with recursive down (attname, type) as (
        select a.attname::text, a.atttypid
        from pg_catalog.pg_depend d
        join pg_catalog.pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
        where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = 'pg_temp.{_INDEX}'::regclass
          and d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjsubid > 0
        union
        select n.attname, case t.typtype when 'd' then t.typbasetype else t.typelem end
        from down n join pg_catalog.pg_type t on t.oid = n.type
        where t.typtype = 'd' or t.typcategory = 'A' and t.typelem <> 0
    )
    select attname, type from down
) k
join pg_catalog.pg_type t on t.oid = k.type
where t.typtype <> 'd' and t.typcategory <> 'A' and t.typnamespace <> 'pg_catalog'::regnamespace
order by 1
"""
_MADE = f"""
select i.indnatts, i.indpred is not null, coalesce(i.indexprs::text ~ ':varattno 0 ', false),
       coalesce(k.collisdeterministic, true),
       coalesce(pg_catalog.pg_get_expr(i.indexprs, i.indrelid), pg_catalog.pg_get_indexdef(i.indexrelid, 1, false)),
       array(select c.attname::text from pg_catalog.pg_depend d
             join pg_catalog.pg_attribute c on c.attrelid = d.refobjid and c.attnum = d.refobjsubid
             where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = i.indexrelid
               and d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid = i.indrelid and d.refobjsubid > 0
             group by c.attnum, c.attname order by c.attnum)
from pg_catalog.pg_index i
join pg_catalog.pg_attribute a on a.attrelid = i.indexrelid and a.attnum = 1
left join pg_catalog.pg_collation k on k.oid = a.attcollation
where i.indexrelid = 'pg_temp.{_INDEX}'::regclass
"""


def judge_expression(conn: Connection, schema_name: str, table: str, expression: str) -> Audience | Refused:
    """The audience of a table of the schema, or why it can't be one. A lock that keeps nobody from reading or writing
    is taken on the table, and given back where the caller has no transaction open.

    Raises:
        psycopg.OperationalError: it can't be judged now.
    """
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(_PATH, (search_path(schema_name),))
            temporary = f"pg_temp.{quote(table)}"
            conn.execute(f"create temp table {quote(table)} (like {quote(schema_name)}.{quote(table)})".encode())
            return _judged(conn, temporary, expression)
    except psycopg.errors.InvalidObjectDefinition as error:
        return Refused(TableRefusal.AUDIENCE_NOT_IMMUTABLE, f"the audience expression is not immutable: {_told(error)}")
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        text = f"Postgres does not take the audience expression: {_told(error)}"
        return Refused(TableRefusal.AUDIENCE_EXPRESSION, text)


def _judged(conn: Connection, temporary: str, expression: str) -> Audience | Refused:
    # By the protocol that takes one statement only.
    cursor = binary.cursor(conn)
    cursor.execute(f"select (\n{expression}\n) from {temporary} limit 0".encode(), [], binary=True)
    described = cursor.description
    if described is None or len(described) != 1:
        return _refused(TableRefusal.AUDIENCE_EXPRESSION, "is not one expression")
    number = described[0].type_code
    if number not in _TYPES:
        [(name,)] = conn.execute(_TYPE_NAME, (number,)).fetchall()
        return _refused(TableRefusal.AUDIENCE_TYPE, f"has type {name}, and not text or text[]")
    # A cast to the type that it has changes nothing, and gives a literal alone its type.
    cast = "text[]" if _TYPES[number] else "text"
    binary.run(conn, f"create index {_INDEX} on {temporary} (((\n{expression}\n)::{cast}))".encode(), [])
    conn.execute(_PATH, (OUR_PATH,))
    [(parts, is_partial, whole, deterministic, printed, columns)] = conn.execute(_MADE).fetchall()
    if parts != 1 or is_partial:
        return _refused(TableRefusal.AUDIENCE_EXPRESSION, "is not one expression")
    if whole:
        return _refused(TableRefusal.AUDIENCE_EXPRESSION, "takes the whole row: name the columns that it needs")
    if others := [name for (name,) in conn.execute(_OF_OTHERS).fetchall()]:
        text = f"has what is not the system's own: {', '.join(others)}"
        return _refused(TableRefusal.AUDIENCE_FUNCTION, text)
    if not deterministic:
        text = 'has a collation by which different texts are equal: add another one, as in (…) collate "C"'
        return _refused(TableRefusal.AUDIENCE_TYPE, text)
    return Audience(printed, tuple(columns), _TYPES[number])


def _refused(reason: TableRefusal, text: str) -> Refused:
    return Refused(reason, f"the audience expression {text}")


def _told(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error)
