"""The values that Postgres surely refuses in a column, by its catalog at this moment, so that a device can refuse them
where they are written.

Only refusals that nothing can prevent on the way: where a BEFORE trigger may fill a column, the refusal of NULL is not
sure, and of a domain only the type below it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from anabranch.store.session.steps import Statement, Steps


class Sure(NamedTuple):
    """``refuses_null``: a NULL is refused from any writer. ``base_type``: of a domain the type under it, with its
    modifiers; else "". ``labels``: of an enum, or of an array of one, in their order."""

    refuses_null: bool
    base_type: str
    labels: tuple[str, ...]


_SURE = """
with columns as (
    select c.relname, a.attname, t.oid as type_oid, t.typtype, t.typcategory, t.typelem,
           a.attnotnull and t.typtype <> 'd' and not exists (
               select from pg_trigger g
               where (g.tgrelid = c.oid or g.tgrelid in (select p.relid from pg_partition_tree(c.oid) p))
                 and not g.tgisinternal and g.tgenabled <> 'D'
                 -- For each row, before it is written, of inserts or updates.
                 and g.tgtype & 1 = 1 and g.tgtype & 2 = 2 and g.tgtype & 20 <> 0
           ) as refuses_null
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    join pg_type t on t.oid = a.atttypid
    where n.nspname = %(schema_name)s and c.relname = any(%(names)s::text[]) and c.relkind in ('r', 'p')
)
select k.relname::text, k.attname::text, k.refuses_null,
       coalesce((
           with recursive under (oid, modifier, typtype) as (
               select t.typbasetype, t.typtypmod, b.typtype
               from pg_type t join pg_type b on b.oid = t.typbasetype where t.oid = k.type_oid and t.typtype = 'd'
               union all
               select t.typbasetype, t.typtypmod, b.typtype
               from under u join pg_type t on t.oid = u.oid join pg_type b on b.oid = t.typbasetype
               where u.typtype = 'd'
           )
           select format_type(u.oid, u.modifier) from under u where u.typtype <> 'd'
       ), ''),
       array(
           select e.enumlabel::text from pg_enum e
           where e.enumtypid = case when k.typcategory = 'A' then k.typelem else k.type_oid end
           order by e.enumsortorder
       )
from columns k
"""


def sure_refusals(schema_name: str, names: Iterable[str]) -> Steps[dict[tuple[str, str], Sure]]:
    """The sure refusals by table and column. Tables and columns that no longer exist are left out."""
    rows = yield Statement(_SURE, {"schema_name": schema_name, "names": sorted(names)})
    return {(table, column): Sure(null, base, tuple(labels)) for table, column, null, base, labels in rows}
