"""The grant that a role lacks, for code that the owner of a synced table has attached to it.

Most of this code runs as the role that groups are committed as. A function that is SECURITY DEFINER runs as its owner,
and what a view reads is read as the owner of the view. An error of missing rights names no role: it may be any of these
that lacks rights to the object.
"""

from __future__ import annotations

from typing import LiteralString, NamedTuple

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.binary import Connection, run
from anabranch.store.writers.schema_rights import SCHEMA_RIGHTS, SEQUENCE_RIGHTS, TABLE_RIGHTS, is_reserved
from anabranch.values.postgres_binary import text

_RELATIONS = {
    "table": ("rp", f"{TABLE_RIGHTS} on table"),
    "view": ("v", f"{TABLE_RIGHTS} on table"),
    "materialized view": ("m", f"{TABLE_RIGHTS} on table"),
    "foreign table": ("f", f"{TABLE_RIGHTS} on table"),
    "sequence": ("S", f"{SEQUENCE_RIGHTS} on sequence"),
}
"""By the kind that Postgres names: its letters in the catalog, and what GRANT gives of it to a group."""

_ROLES: LiteralString = """
with roles(id, name, place) as (
    select r.oid, r.rolname::text, '' from pg_catalog.pg_roles r where r.rolname = session_user
  union
    select r.oid, r.rolname::text, n.nspname::text
    from (
        select f.proowner as owner, f.pronamespace as place from pg_catalog.pg_proc f where f.prosecdef
      union
        select v.relowner, v.relnamespace from pg_catalog.pg_class v where v.relkind = 'v'
    ) code
    join pg_catalog.pg_roles r on r.oid = code.owner join pg_catalog.pg_namespace n on n.oid = code.place
)
"""
# The message names no schema: of all relations of that name those count that a role lacks rights to.
_LACKING_RELATIONS = f"""{_ROLES}
select o.name, o.place, n.nspname::text, c.relname::text
from roles o cross join pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relname = $1::text and pg_catalog.strpos($2::text, c.relkind::text) > 0 and not case c.relkind
    when 'S' then pg_catalog.has_sequence_privilege(o.id, c.oid, 'USAGE')
    else pg_catalog.has_table_privilege(o.id, c.oid, 'SELECT') and pg_catalog.has_table_privilege(o.id, c.oid, 'INSERT')
         and pg_catalog.has_table_privilege(o.id, c.oid, 'UPDATE')
         and pg_catalog.has_table_privilege(o.id, c.oid, 'DELETE')
         and pg_catalog.has_table_privilege(o.id, c.oid, 'TRUNCATE')
    end
""".encode()
_LACKING_SCHEMAS = f"""{_ROLES}
select o.name, o.place, n.nspname::text
from roles o cross join pg_catalog.pg_namespace n
where n.nspname = $1::text and not pg_catalog.has_schema_privilege(o.id, n.oid, 'USAGE')
""".encode()


class Missing(NamedTuple):
    """``roles``: those that may have been denied the object, in order; none where it is another one. ``schema_name``:
    where the object is, and ``grant``: the statement that gives the role the rights to it; "" where role or object may
    be one of several."""

    roles: tuple[str, ...] = ()
    schema_name: str = ""
    grant: str = ""


def missing(conn: Connection, kind: str, name: str) -> Missing:
    """The roles that may have been denied an object, and the grant that the one lacks.

    Raises:
        psycopg.Error: the session is lost.
    """
    if kind == "schema":
        rows, rights = run(conn, _LACKING_SCHEMAS, [text(name)]).fetchall(), f"{SCHEMA_RIGHTS} on schema"
    elif kind in _RELATIONS:
        letters, rights = _RELATIONS[kind]
        rows = run(conn, _LACKING_RELATIONS, [text(name), text(letters)]).fetchall()
    else:
        return Missing()
    of_application = [row for row in rows if not is_reserved(row[1]) and not is_reserved(row[2])]
    roles, objects = {role for role, *_ in of_application}, {tuple(names) for _, _, *names in of_application}
    if len(roles) != 1 or len(objects) != 1:
        return Missing(tuple(sorted(roles)))
    [role], [names] = roles, objects
    return Missing((role,), names[0], f"grant {rights} {'.'.join(map(quote, names))} to {quote(role)}")
