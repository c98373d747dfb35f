"""A database is claimed by the lock of a row, and a janitor leads by that of a table: an advisory lock is for any role.

A resolver of a release before claims otherwise, and must not commit beside one that claims a row. It does not name the
new column of groups, so that the column's default refuses its groups from now on; its batches wait for a newer one. All
else of such a release works as before.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
works_from = "0009"

TABLES = """
create table anabranch.claims (
    database_id integer primary key references anabranch.databases (id) on delete cascade
);
comment on table anabranch.claims is
    'a row for each database: who locks it commits the database''s groups, or keeps them away';
insert into anabranch.claims (database_id) select id from anabranch.databases;

create table anabranch.leads (name text collate "C" primary key);
comment on table anabranch.leads is 'always empty: the janitor that sweeps locks the whole table';
"""

# A constant first: it is given to all groups that are there, without rewriting the table.
FENCE = """
create function anabranch.claimed_otherwise() returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'groups are committed by a newer release: this one does not claim databases as that one does'
        using errcode = 'object_not_in_prerequisite_state';
end
$$;
alter table anabranch.groups add column claimed boolean not null default true;
alter table anabranch.groups alter column claimed set default anabranch.claimed_otherwise();
comment on column anabranch.groups.claimed is
    'true: who made the group had locked the row of its database in claims';
"""


def upgrade() -> None:
    """Make the tables; from the end of the migration on groups are committed under rows' locks alone."""
    # Groups that are under way have read this table: they end first.
    take_tables(["databases", "groups"])
    op.execute(TABLES)
    op.execute(FENCE)


def downgrade() -> None:
    """Take the new column, and claim as before."""
    op.execute("alter table anabranch.groups drop column claimed")
    op.execute("drop function anabranch.claimed_otherwise()")
    op.execute("drop table anabranch.claims")
    op.execute("drop table anabranch.leads")
