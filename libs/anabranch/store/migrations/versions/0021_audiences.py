"""Audiences: which principals see which rows.

Revision ID: 0021
Revises: 0020
"""

from __future__ import annotations

from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
works_from = "0009"

# The columns that an audience may be asked of beside the log's: the inbox has what a token's claims gave its batch, a
# tombstone whom its row was for, a conflict whom its row was for before and after; a registration that has ended has
# its expression, so that nobody adds its table anew without one by mistake.
COLUMNS = """
alter table anabranch.databases add audience_rules jsonb not null default '{}';
alter table anabranch.synced_tables
    add audience_columns text[] collate "C",
    add audience_is_list boolean not null default false;
alter table anabranch.inbox add read_audiences text[], add write_audiences text[], add claims text;
alter table anabranch.row_versions add audience text[];
alter table anabranch.former_tables add audience text;
alter table anabranch.conflicts add audience_before text[], add audience_after text[];
comment on column anabranch.databases.audience_rules is
    'where principals have their audiences from: claims, membership queries; those for writing where they are others';
comment on column anabranch.synced_tables.audience is
    'SQL over the row that gives the audiences that may see it; NULL: every device sees every row';
comment on column anabranch.synced_tables.audience_columns is 'the columns that the expression reads';
comment on column anabranch.synced_tables.audience_is_list is 'whether the expression gives text[], and not text';
comment on column anabranch.inbox.read_audiences is
    'what the claims gave with which the batch was sent; NULL: nothing';
comment on column anabranch.inbox.write_audiences is 'the same for writing; NULL: as read_audiences';
comment on column anabranch.inbox.claims is
    'the claims as JSON, where batches are applied under row-level security; else NULL';
comment on column anabranch.former_tables.audience is 'who saw which rows; NULL: every device saw every row';
comment on column anabranch.row_versions.audience is 'of a tombstone: the audiences that the row had at last';
"""
TABLES = """
create table anabranch.principals (
    database_id       integer not null references anabranch.databases (id) on delete cascade,
    principal         text collate "C" not null,
    memberships       text[] not null,
    write_memberships text[],
    seen_ms           bigint not null,
    primary key (database_id, principal)
);
comment on table anabranch.principals is
    'principals that have called, with the audiences that membership queries give them at the head';
comment on column anabranch.principals.write_memberships is 'those for writing; NULL: as memberships';
create table anabranch.audience_changes (
    database_id integer not null,
    position    bigint not null,
    principal   text collate "C" not null,
    gained      text[] not null,
    lost        text[] not null,
    primary key (database_id, position, principal)
);
create index audience_changes_principal on anabranch.audience_changes (database_id, principal, position);
comment on table anabranch.audience_changes is
    'how a group changed what membership queries give a principal for reading';
create table anabranch.audience_sums (
    table_id  integer not null references anabranch.synced_tables (id) on delete cascade,
    audience  text collate "C" not null,
    position  bigint not null,
    row_count bigint not null,
    row_hash  bytea not null,
    primary key (table_id, audience)
) with (fillfactor = 50);
comment on table anabranch.audience_sums is
    'count and hash of the rows of each audience of a restricted table, at the last group that changed them';
"""


def upgrade() -> None:
    """Make the columns and tables."""
    take_tables(["databases", "synced_tables", "former_tables", "inbox", "row_versions", "conflicts"])
    op.execute(COLUMNS)
    op.execute(TABLES)


def downgrade() -> None:
    """Drop them."""
    op.execute(
        """
        drop table anabranch.audience_sums;
        drop table anabranch.audience_changes;
        drop table anabranch.principals;
        alter table anabranch.conflicts drop audience_before, drop audience_after;
        alter table anabranch.former_tables drop audience;
        alter table anabranch.row_versions drop audience;
        alter table anabranch.inbox drop read_audiences, drop write_audiences, drop claims;
        alter table anabranch.synced_tables drop audience_columns, drop audience_is_list;
        alter table anabranch.databases drop audience_rules;
        """
    )
