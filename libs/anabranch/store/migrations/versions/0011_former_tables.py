"""The shape of a table that was synced stays known as long as the log may have changes of it.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
works_from = "0009"

TABLES = """
create table anabranch.former_tables (
    id            integer primary key,
    database_id   integer not null references anabranch.databases (id) on delete cascade,
    name          text collate "C" not null,
    columns       jsonb not null,
    key_columns   text[] collate "C" not null,
    last_position bigint not null
);
comment on table anabranch.former_tables is
    'registrations that have ended, with their columns: changes of theirs up to last_position may be in the log';
create index former_tables_database on anabranch.former_tables (database_id, last_position);
"""


def upgrade() -> None:
    """Make the table."""
    op.execute(TABLES)


def downgrade() -> None:
    """Drop it."""
    op.execute("drop table anabranch.former_tables")
