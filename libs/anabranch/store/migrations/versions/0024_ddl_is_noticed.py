"""DDL of synced tables is noticed inside the transaction that runs it, and stands in order with what is captured.

Revision ID: 0024
Revises: 0023
"""

from __future__ import annotations

from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
works_from = "0009"

COLUMN = """
alter table anabranch.synced_tables add column shape jsonb;
comment on column anabranch.synced_tables.shape is
    'anabranch.shape_of the table as its columns were read; NULL: not known, as the release before does not write it';
comment on column anabranch.captured.type is
    '1 insert, 2 update (of the key as well), 3 delete; 4: a marker, the table was altered here';
comment on column anabranch.captured.new is
    'record_send of the row after, text in UTF-8; NULL for a delete. Of a marker: JSON in UTF-8'
"""

INDEX = "create index captured_markers on anabranch.captured (database_id, id) where type = 4"

# All of a type that may change while it keeps its number, as far as values depend on it. NULL for a type of the
# system's, and for a base type. No composite type contains itself, so the way down ends.
DEEP = """
create function anabranch.deep_of(type oid) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    one record;
    inner_one jsonb;
begin
    if type < 16384 then
        return null;
    end if;
    select t.typtype, t.typbasetype, t.typtypmod, t.typelem, t.typlen, t.typrelid, t.typnotnull,
           t.typdefault is not null as has_default
    into one from pg_type t where t.oid = type;
    if one.typtype = 'e' then
        return jsonb_build_object('enum', coalesce((
            select jsonb_agg(jsonb_build_array(e.oid::int8, e.enumlabel) order by e.enumsortorder)
            from pg_enum e where e.enumtypid = type), '[]'));
    elsif one.typtype = 'd' then
        return jsonb_strip_nulls(jsonb_build_object(
            'domain', format_type(one.typbasetype, one.typtypmod), 'nn', nullif(one.typnotnull, false),
            'def', nullif(one.has_default, false), 'of', anabranch.deep_of(one.typbasetype)));
    elsif one.typtype = 'c' then
        return jsonb_build_object('row', coalesce((
            select jsonb_agg(jsonb_build_array(a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
                                               anabranch.deep_of(a.atttypid)) order by a.attnum)
            from pg_attribute a where a.attrelid = one.typrelid and a.attnum > 0 and not a.attisdropped), '[]'));
    elsif one.typtype = 'b' and one.typelem <> 0 and one.typlen = -1 then
        inner_one := anabranch.deep_of(one.typelem);
        return case when inner_one is not null then jsonb_build_object('array', inner_one) end;
    elsif one.typtype in ('r', 'm') then
        select anabranch.deep_of(r.rngsubtype) into inner_one from pg_range r
        where r.rngtypid = type or r.rngmultitypid = type;
        return case when inner_one is not null then jsonb_build_object('range', inner_one) end;
    end if;
    return null;
end
$$;
"""

# The constants that rows have which were there before their columns, as our own sessions print them.
MISSING = """
create function anabranch.missing_of(relation oid) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, YMD' set intervalstyle = 'postgres' set timezone = 'UTC' set bytea_output = 'hex'
set extra_float_digits = 1
as $$
select jsonb_object_agg(a.attnum, (a.attmissingval::text::text[])[1])
from pg_attribute a where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped and a.atthasmissing
$$;
"""

SHAPE = """
create function anabranch.shape_of(relation oid) returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
select jsonb_build_object(
    'columns', coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
        'n', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'oid', a.atttypid::int8,
        'mod', nullif(a.atttypmod, -1), 'nn', nullif(a.attnotnull, false), 'gen', nullif(a.attgenerated::text, ''),
        'id', nullif(a.attidentity::text, ''), 'def', md5(pg_get_expr(d.adbin, d.adrelid)),
        'textual', case when a.atttypid >= 10000
                             or a.atttypid in (1033, 1034, 3642, 3644, 71, 75, 81, 83, 210, 270, 272, 273)
                        then nullif(not anabranch.has_binary(a.atttypid), false) end,
        'deep', case when a.atttypid >= 16384 then anabranch.deep_of(a.atttypid) end
    )) order by a.attnum), '[]'),
    'key', coalesce((select to_jsonb((i.indkey::int2[])[0:i.indnkeyatts - 1]) from pg_index i
                     where i.indrelid = $1 and i.indisprimary), '[]'))
    || case when bool_or(a.atthasmissing) then jsonb_build_object('missing', anabranch.missing_of($1))
            else '{}' end
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.atthasdef
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
$$;
"""


def upgrade() -> None:
    """Make the functions."""
    take_tables(["synced_tables", "captured"])
    for statement in (COLUMN, INDEX, DEEP, MISSING, SHAPE):
        op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    op.execute("drop function anabranch.shape_of(oid), anabranch.missing_of(oid), anabranch.deep_of(oid)")
    op.execute("drop index anabranch.captured_markers")
    op.execute("alter table anabranch.synced_tables drop column shape")
