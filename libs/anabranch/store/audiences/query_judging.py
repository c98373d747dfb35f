"""Whether a membership query can be kept, which tables it reads, and which of them are traced.

The query is made a temporary view, in a savepoint that is undone: so it is one SELECT, and the view's rule names every
relation and every function. Then Postgres plans it. What is run later is the query as Postgres prints it, with every
name in full, and without anything that others than the system could replace: no view, no function of the application's.
Over changed rows it is run as it was given, with CTEs for its tables, and the search path has nothing but the system's
own.

A table is *traced* where the query's result without some of its rows is never more than with them, so that a changed
row changes only what the query gives when it reads that row alone: the plan then has nothing but scans, joins that keep
what matches, and what puts results together. And the table stands in the query once, under a name that a CTE takes:
that is how the query is run over changed rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psycopg

from anabranch.store.audiences.queries import OUR_PATH, PRINCIPAL, PRINCIPALS, for_principals, search_path
from anabranch.store.audiences.rules import Membership, names_then
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.refusals import Refused, TableRefusal
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session import binary

Connection = psycopg.Connection[Any]

_VIEW = '"_DB_query"'
_MARK = "'_DB_principal'::text"
"""The principal in the view, as Postgres prints it again."""
_PATH = "select pg_catalog.set_config('search_path', %s, true)"
_COLUMNS = f"""
select a.atttypid::int8, pg_catalog.format_type(a.atttypid, a.atttypmod) from pg_catalog.pg_attribute a
where a.attrelid = 'pg_temp.{_VIEW}'::regclass and a.attnum > 0
"""
_RULE = f"""
select r.ev_action::text, pg_catalog.pg_get_viewdef('pg_temp.{_VIEW}'::regclass) from pg_catalog.pg_rewrite r
where r.ev_class = 'pg_temp.{_VIEW}'::regclass and r.rulename = '_RETURN'
"""
# Before release 16 the view's own number stands in its rule.
_READS = f"""
select n.nspname::text, c.relname::text, c.relkind::text, count(*)
from pg_catalog.regexp_matches(%s, ':rtekind 0 :relid (\\d+) ', 'g') m
join pg_catalog.pg_class c on c.oid = m[1]::oid and c.oid <> 'pg_temp.{_VIEW}'::regclass
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
group by 1, 2, 3 order by 1, 2
"""
# Of the system's own functions the stable ones are taken, which print values by the session's settings, but not those
# that tell of the time, the session or the catalog.
_FUNCTIONS = """
select distinct p.proname::text,
       case when p.pronamespace <> 'pg_catalog'::regnamespace then 'is not the system''s own'
            when p.provolatile = 'v' then 'is volatile' else 'may read what no group changes' end
from pg_catalog.regexp_matches(%s, ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\\d+) ', 'g') m
join pg_catalog.pg_proc p on p.oid = m[1]::oid
where p.pronamespace <> 'pg_catalog'::regnamespace or p.provolatile = 'v'
   or p.provolatile = 's' and (p.pronargs = 0
                               or p.proname ~ '^(age|current_.*|pg_.*|has_.*|to_reg.*|.*_to_xml.*|txid_.*|obj_.*)$')
order by 1
"""
_TEXTS = {25, 1043}
_NOT_MONOTONE = (
    "{AGGREF",
    "{WINDOWFUNC",
    ":hasDistinctOn true",
    ":hasRecursive true",
    ":limitCount {",
    ":limitOffset {",
)
"""Parts of a rule by which more rows may give less."""
_JOINS = frozenset({"Nested Loop", "Hash Join", "Merge Join"})
_KEEPS = frozenset({"Inner", "Semi", "Right Semi"})
_MONOTONE = _JOINS | {
    "Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Bitmap Index Scan", "BitmapAnd", "BitmapOr",
    "Tid Scan", "Tid Range Scan", "Function Scan", "Values Scan", "Subquery Scan", "CTE Scan", "Result", "ProjectSet",
    "Hash", "Append", "Merge Append", "Sort", "Incremental Sort", "Unique", "Aggregate", "Group", "Materialize",
    "Memoize", "Gather", "Gather Merge",
}  # fmt: skip
"""Nodes of a plan whose result never has less where one of those below has more; aggregates stand in the rule."""
_EXPLAIN = f"""
explain (format json, verbose) {{shadow}}select 1 from unnest('{{{{a}}}}'::text[]) as {PRINCIPALS} (principal)
cross join lateral (
{{query}}
) as "_DB_given" (audience) where "_DB_given".audience <> {PRINCIPAL}
"""


def judge_query(conn: Connection, database: Database, query: str) -> Membership | list[Refused]:
    """The query as it is kept, or every reason why it can't be. Its text is kept without a semicolon at its end.

    Raises:
        psycopg.OperationalError: it can't be judged now.
    """
    text = query.strip().removesuffix(";").rstrip()
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(_PATH, (search_path(database.schema_name),))
            return _judged(conn, database, text)
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
        told = error.diag.message_primary or str(error)
        return [Refused(TableRefusal.MEMBERSHIP_QUERY, f"Postgres does not take the membership query `{text}`: {told}")]


def _judged(conn: Connection, database: Database, query: str) -> Membership | list[Refused]:
    # By the protocol that takes one statement only.
    statement = f"create temp view {_VIEW} as\n{for_principals(query, _MARK)}"
    binary.run(conn, statement.encode(), [])
    conn.execute(_PATH, (OUR_PATH,))
    [(rule, printed)] = conn.execute(_RULE).fetchall()
    found = conn.execute(_READS, (rule,)).fetchall()
    conn.execute(_PATH, (search_path(database.schema_name),))
    if refused := [*_refusals(conn, query, rule), *_not_synced(database, query, found)]:
        return refused
    reads = {name: count for _, name, _, count in found}
    # A cast that some principals' names don't take fails here, for a constant, and not in a group.
    _plan(conn, for_principals(query, "'no such principal'::text"), "")
    plan = _plan(conn, for_principals(query), "")
    traced = frozenset[str]()
    if not any(part in rule for part in _NOT_MONOTONE) and _is_monotone(plan):
        once = [name for name, count in reads.items() if count == 1]
        scans = _scans(plan)
        traced = frozenset(
            name
            for name in once
            if scans[database.schema_name, name] == 1 and _is_shadowed(conn, database, reads, query, name)
        )
    in_full = printed.strip().removesuffix(";").replace(_MARK, ":principal")
    tables = {name: database.by_sql_name[name] for name in reads}
    return Membership(
        query,
        tuple(sorted(table.name for table in tables.values())),
        frozenset(tables[name].name for name in traced),
        in_full,
        {table.name: names_then(table) for table in tables.values()},
    )


def _refusals(conn: Connection, query: str, rule: str) -> Iterator[Refused]:
    about = f"the membership query `{query}`"
    columns = conn.execute(_COLUMNS).fetchall()
    if [number in _TEXTS for number, _ in columns] != [True]:
        types = ", ".join(name for _, name in columns)
        yield Refused(TableRefusal.MEMBERSHIP_QUERY, f"{about} gives ({types}), and not one column of type text")
    for name, why in conn.execute(_FUNCTIONS, (rule,)).fetchall():
        yield Refused(TableRefusal.MEMBERSHIP_QUERY, f"{about} calls function {name}, which {why}")
    if "{SQLVALUEFUNCTION" in rule:
        text = f"{about} depends on the time or on the session, and is evaluated only when a table changes"
        yield Refused(TableRefusal.MEMBERSHIP_QUERY, text)
    if "{COERCETODOMAIN" in rule:
        yield Refused(TableRefusal.MEMBERSHIP_QUERY, f"{about} casts to a domain, whose checks are the application's")
    if ":hasForUpdate true" in rule or "{TABLESAMPLECLAUSE" in rule:
        yield Refused(TableRefusal.MEMBERSHIP_QUERY, f"{about} locks rows, or takes a sample of them")


def _not_synced(database: Database, query: str, found: Iterable[tuple[str, str, str, int]]) -> Iterator[Refused]:
    for schema, name, kind, _ in found:
        if kind in "vm":
            text = f"the membership query `{query}` reads view {quote(schema)}.{quote(name)}: name its tables"
            yield Refused(TableRefusal.MEMBERSHIP_TABLE, text)
        elif schema != database.schema_name or name not in database.by_sql_name:
            text = f"the membership query `{query}` reads {quote(schema)}.{quote(name)}, which is no synced table of "
            yield Refused(TableRefusal.MEMBERSHIP_TABLE, f'{text}"{database.name}"')


def _plan(conn: Connection, query: str, shadow: str) -> dict[str, Any]:
    cursor = binary.run(conn, _EXPLAIN.format(query=query, shadow=shadow).encode(), [])
    [([found],)] = cursor.fetchall()
    plan: dict[str, Any] = found["Plan"]
    return plan


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _is_monotone(plan: Mapping[str, Any]) -> bool:
    return all(
        node["Node Type"] in _MONOTONE
        and node.get("Join Type", "Inner") in _KEEPS
        and (
            node.get("Parent Relationship") not in ("InitPlan", "SubPlan")
            or node.get("Subplan Name", "").startswith("CTE ")
        )
        for node in _nodes(plan)
    )


def _is_shadowed(conn: Connection, database: Database, reads: Iterable[str], query: str, table: str) -> bool:
    """Whether CTEs of its tables' names take the tables' places in the query as it was given, and it names nothing else
    of the application: so it can be run with nothing but the system's own in the search path."""
    schema = quote(database.schema_name)
    shadows = ", ".join(
        f"{quote(name)} as "
        + (
            f"materialized (select * from {schema}.{quote(name)} where false)"
            if name == table
            else f"not materialized (select * from {schema}.{quote(name)})"
        )
        for name in reads
    )
    try:
        with conn.transaction():
            conn.execute(_PATH, (OUR_PATH,))
            plan = _plan(conn, for_principals(query), f"with {shadows} ")
            conn.execute(_PATH, (search_path(database.schema_name),))
    except psycopg.ProgrammingError:
        return False
    return not _scans(plan)[database.schema_name, table]


def _scans(plan: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    return Counter((node["Schema"], node["Relation Name"]) for node in _nodes(plan) if "Relation Name" in node)
