"""The grant that a group's role lacks, for code that the owner of a synced table has attached to it."""

from __future__ import annotations

from typing import LiteralString, NamedTuple

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.binary import Connection, run
from anabranch.values.postgres_binary import text

_TABLE = ("table", "select, insert, update, delete, truncate")
_RIGHTS = {
    "table": _TABLE,
    "view": _TABLE,
    "materialized view": _TABLE,
    "foreign table": _TABLE,
    "sequence": ("sequence", "usage, select"),
    "schema": ("schema", "usage"),
}
"""By the kind that Postgres names: that of GRANT, and what a group may need."""

_OF_APPLICATION: LiteralString = (
    "n.nspname <> 'anabranch' and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'"
)
# The message names no schema: of relations of that name those count that the role lacks rights to.
_RELATION = f"""
select n.nspname::text, c.relname::text
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relname = $1::text and {_OF_APPLICATION} and case c.relkind
    when 'S' then not pg_catalog.has_sequence_privilege(c.oid, 'USAGE')
    when 'i' then false when 'I' then false when 't' then false when 'c' then false
    else not (pg_catalog.has_table_privilege(c.oid, 'SELECT') and pg_catalog.has_table_privilege(c.oid, 'INSERT')
              and pg_catalog.has_table_privilege(c.oid, 'UPDATE') and pg_catalog.has_table_privilege(c.oid, 'DELETE')
              and pg_catalog.has_table_privilege(c.oid, 'TRUNCATE'))
    end
order by 1 limit 2
""".encode()
_SCHEMA = (
    f"select n.nspname::text from pg_catalog.pg_namespace n where n.nspname = $1::text and {_OF_APPLICATION}".encode()
)


class Missing(NamedTuple):
    """``schema_name``: where the object is. ``grant``: the statement that gives the role the rights to it."""

    schema_name: str
    grant: str


def missing(conn: Connection, kind: str, name: str) -> Missing | None:
    """The grant for an object that the session's role was denied; None where it is not the application's, is one of
    several of that name, or of a kind of which nothing is known.

    Raises:
        psycopg.Error: the session is lost.
    """
    if kind not in _RIGHTS:
        return None
    found = run(conn, _SCHEMA if kind == "schema" else _RELATION, [text(name)]).fetchall()
    if len(found) != 1:
        return None
    [names] = found
    what, rights = _RIGHTS[kind]
    grant = f"grant {rights} on {what} {'.'.join(map(quote, names))} to {quote(conn.info.user)}"
    return Missing(names[0], grant)
