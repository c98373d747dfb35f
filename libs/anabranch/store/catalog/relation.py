"""Tables as Postgres's catalog has them: read in sets, held as plain values, judged elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anabranch.store.session.steps import Statement, Steps
from anabranch.values import Column, postgres_types
from anabranch.values.postgres_types import TypeRow, Types


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A primary key, unique constraint or unique index over plain columns: of their identities in a ``Database``, else
    of their names in SQL. ``nulls_distinct`` False: NULLs are equal. ``immediate`` False: it may be judged at the end
    of a transaction."""

    name: str
    columns: tuple[str, ...]
    primary: bool
    nulls_distinct: bool = True
    immediate: bool = True


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key. ``on_delete`` and ``on_update`` are pg_constraint's letters: a no action, r restrict, c
    cascade, n set null, d set default; ``match`` is s (simple) or f (full). In a ``Database`` ``columns`` are
    identities, and so are ``to_table`` and ``to_columns`` where ``synced``; else all are names in SQL."""

    name: str
    columns: tuple[str, ...]
    to_schema: str
    to_table: str
    to_columns: tuple[str, ...]
    on_delete: str = "a"
    on_update: str = "a"
    match: str = "s"
    deferred: bool = False
    valid: bool = True
    """False (``not valid``): rows that were there before it may refer to nothing."""
    synced: bool = False
    """Whether it refers to a synced table of the same database; told in a ``Database`` only."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """The constraints of a table that can be checked before a write; the primary key is in ``unique``, too."""

    primary_key: UniqueKey | None = None
    unique: tuple[UniqueKey, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as pg_attribute has it. ``number`` is its own as long as the table is there; ``identity`` is "", a
    (always) or d (by default); ``generated`` "", s (stored) or v (virtual); ``modifier`` is the type's, -1 for none;
    ``default`` is the expression's text."""

    number: int
    name: str
    type_oid: int
    postgres_type: str
    modifier: int
    not_null: bool
    identity: str
    generated: str
    default: str | None
    deterministic: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, or another relation of that name. ``kind`` is pg_class's letter (r table, p partitioned, v view,
    ...), ``persistence`` too (p permanent, u unlogged, t temporary)."""

    oid: int
    schema_name: str
    name: str
    kind: str
    persistence: str
    columns: tuple[RelationColumn, ...]
    key_columns: tuple[str, ...]
    constraints: Constraints
    subscriptions: tuple[str, ...]
    rules: tuple[str, ...]
    is_partition: bool
    parents: tuple[str, ...]
    children: tuple[str, ...]
    row_security: bool
    row_security_forced: bool
    row_security_active: bool
    missing_privileges: tuple[str, ...]
    owned: bool
    role: str

    def snapshot(self, known: Types) -> tuple[Column, ...]:
        """The columns as a synced table has them. An identity that is always generated counts as generated:
        no client may write it."""
        return tuple(_column(c, known) for c in self.columns)


def _column(column: RelationColumn, known: Types) -> Column:
    kind, element_kind = postgres_types.kinds_of(known, column.type_oid)
    written_by_postgres = column.generated != "" or column.identity == "a"
    default = column.default is not None or column.identity != "" or postgres_types.has_default(known, column.type_oid)
    return Column(
        name=column.name,
        kind=kind,
        element_kind=element_kind,
        postgres_type=column.postgres_type,
        not_null=column.not_null or postgres_types.not_null(known, column.type_oid),
        generated=written_by_postgres,
        has_default=default and not written_by_postgres,
        number=column.number,
    )


_RELATION = """
select c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relispartition,
       c.relrowsecurity, c.relrowsecurity and c.relforcerowsecurity,
       case when c.relkind in ('r', 'p') then row_security_active(c.oid) else false end,
       array(select s.subname::text from pg_subscription_rel r join pg_subscription s on s.oid = r.srsubid
             where r.srrelid = c.oid order by s.subname),
       array(select r.rulename::text from pg_rewrite r
             where r.ev_class = c.oid and c.relkind in ('r', 'p') order by r.rulename),
       array(select i.inhparent::regclass::text from pg_inherits i where i.inhrelid = c.oid
             order by i.inhseqno),
       array(select i.inhrelid::regclass::text from pg_inherits i where i.inhparent = c.oid order by 1),
       array(select p from unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as p
             where c.relkind in ('r', 'p') and not has_table_privilege(c.oid, p)),
       pg_has_role(c.relowner, 'USAGE'), current_user::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %(schema_name)s and c.relname = any(%(names)s::text[]) and c.relkind not in ('i', 'I', 't')
"""

_COLUMNS = """
select a.attrelid::int8, a.attnum, a.attname, a.atttypid::int8, format_type(a.atttypid, a.atttypmod), a.atttypmod,
       a.attnotnull, a.attidentity::text, a.attgenerated::text,
       case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end,
       coalesce(k.collisdeterministic, true)
from pg_attribute a
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
left join pg_collation k on k.oid = a.attcollation
where a.attrelid = any(%(oids)s::int8[]::oid[]) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
"""

# Down from the columns' types to their elements and base types, which decide how a value is carried.
_TYPES = """
with recursive needed (oid) as (
    select unnest(%(oids)s::int8[])::oid
    union
    select made_of.oid
    from needed join pg_type t on t.oid = needed.oid
    cross join lateral (values (case when t.typcategory = 'A' then t.typelem else 0 end), (t.typbasetype))
               as made_of (oid)
    where made_of.oid <> 0
)
select t.oid::int8, n.nspname, t.typname, t.typtype::text, t.typcategory::text,
       case when t.typcategory = 'A' then t.typelem else 0 end::int8, t.typbasetype::int8, t.typtypmod,
       t.typnotnull, t.typdefault is not null
from needed join pg_type t on t.oid = needed.oid join pg_namespace n on n.oid = t.typnamespace
"""

_UNIQUE = """
select n.nspname, c.relname, x.relname,
       array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality as k (attnum, place)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where k.place <= i.indnkeyatts order by k.place),
       i.indisprimary, i.indimmediate,
       -- Postgres 14 has no such column yet.
       coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)
from pg_index i
join pg_class c on c.oid = i.indrelid join pg_class x on x.oid = i.indexrelid
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = any(%(schema_names)s::text[]) and c.relkind in ('r', 'p')
  and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
order by n.nspname, c.relname, not i.indisprimary, x.relname
"""

_FOREIGN = """
select n.nspname, c.relname, f.conname,
       array(select a.attname::text from unnest(f.conkey) with ordinality as k (attnum, place)
             join pg_attribute a on a.attrelid = f.conrelid and a.attnum = k.attnum order by k.place),
       tn.nspname, tc.relname,
       array(select a.attname::text from unnest(f.confkey) with ordinality as k (attnum, place)
             join pg_attribute a on a.attrelid = f.confrelid and a.attnum = k.attnum order by k.place),
       f.confdeltype::text, f.confupdtype::text, f.confmatchtype::text, f.condeferred,
       f.convalidated
from pg_constraint f
join pg_class c on c.oid = f.conrelid join pg_namespace n on n.oid = c.relnamespace
join pg_class tc on tc.oid = f.confrelid join pg_namespace tn on tn.oid = tc.relnamespace
where f.contype = 'f' and n.nspname = any(%(schema_names)s::text[]) and c.relkind in ('r', 'p')
order by n.nspname, c.relname, f.conname
"""


# Down from each column's domain to the type below all domains.
_BASES = """
with recursive down (schema_name, relation, name, oid) as (
    select n.nspname, c.relname, a.attname, t.typbasetype
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid join pg_type t on t.oid = a.atttypid
    where n.nspname = any(%(schema_names)s::text[]) and c.relkind in ('r', 'p') and a.attnum > 0
      and not a.attisdropped and t.typtype = 'd'
    union all
    select d.schema_name, d.relation, d.name, t.typbasetype
    from down d join pg_type t on t.oid = d.oid where t.typtype = 'd'
)
select d.schema_name, d.relation, d.name, format_type(d.oid, -1)
from down d join pg_type t on t.oid = d.oid where t.typtype <> 'd'
"""


def base_types_of(schema_names: Iterable[str]) -> Steps[dict[tuple[str, str], dict[str, str]]]:
    """By (schema, table) and column, the types without modifiers below the columns' domains."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    rows = yield Statement(_BASES, {"schema_names": sorted(schema_names)})
    for schema_name, table, column, base in rows:
        found.setdefault((schema_name, table), {})[column] = base
    return found


def constraints_of(schema_names: Iterable[str]) -> Steps[dict[tuple[str, str], Constraints]]:
    """The constraints of every table in the schemas, by (schema, table); a table without any is left out."""
    parameters = {"schema_names": sorted(schema_names)}
    unique: dict[tuple[str, str], list[UniqueKey]] = {}
    for schema_name, table, name, columns, primary, immediate, nulls_equal in (yield Statement(_UNIQUE, parameters)):
        key = UniqueKey(name, tuple(columns), primary, nulls_distinct=not nulls_equal, immediate=immediate)
        unique.setdefault((schema_name, table), []).append(key)
    foreign: dict[tuple[str, str], list[ForeignKey]] = {}
    for schema_name, table, name, columns, *to, on_delete, on_update, match, deferred, valid in (
        yield Statement(_FOREIGN, parameters)
    ):
        key_to = ForeignKey(
            name, tuple(columns), to[0], to[1], tuple(to[2]), on_delete, on_update, match, deferred, valid
        )
        foreign.setdefault((schema_name, table), []).append(key_to)
    return {
        name: Constraints(
            primary_key=next((k for k in unique.get(name, []) if k.primary), None),
            unique=tuple(unique.get(name, ())),
            foreign_keys=tuple(foreign.get(name, ())),
        )
        for name in {*unique, *foreign}
    }


def types_of(oids: Iterable[int]) -> Steps[dict[int, TypeRow]]:
    """The types with these numbers, and all that they are made of."""
    rows = yield Statement(_TYPES, {"oids": sorted(set(oids))})
    return {row[0]: TypeRow(*row) for row in rows}


def relations_of(schema_name: str, names: Iterable[str]) -> Steps[tuple[dict[str, Relation], dict[int, TypeRow]]]:
    """The relations called ``names`` in the schema, and the types of their columns. A name without a relation is
    left out."""
    found = yield Statement(_RELATION, {"schema_name": schema_name, "names": sorted(set(names))})
    columns: dict[int, list[RelationColumn]] = {}
    rows = yield Statement(_COLUMNS, {"oids": [row[0] for row in found]})
    for oid, *column in rows:
        columns.setdefault(oid, []).append(RelationColumn(*column))
    constraints = yield from constraints_of([schema_name])
    known = yield from types_of(c.type_oid for of_table in columns.values() for c in of_table)
    return {row[2]: _relation(row, columns.get(row[0], []), constraints) for row in found}, known


def _relation(
    row: tuple[Any, ...], columns: list[RelationColumn], constraints: dict[tuple[str, str], Constraints]
) -> Relation:
    oid, schema_name, name, kind, persistence, is_partition, secured, forced, active, subscriptions, rules, *rest = row
    parents, children, missing_privileges, owned, role = rest
    own = constraints.get((schema_name, name), Constraints())
    return Relation(
        oid=oid,
        schema_name=schema_name,
        name=name,
        kind=kind,
        persistence=persistence,
        columns=tuple(columns),
        key_columns=own.primary_key.columns if own.primary_key else (),
        constraints=own,
        subscriptions=tuple(subscriptions),
        rules=tuple(rules),
        is_partition=is_partition,
        parents=tuple(parents),
        children=tuple(children),
        row_security=secured,
        row_security_forced=forced,
        row_security_active=active,
        missing_privileges=tuple(missing_privileges),
        owned=owned,
        role=role,
    )
