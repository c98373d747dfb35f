"""Nodes tell which schema version their app was built for.

Revision ID: 0025
Revises: 0024
"""

from __future__ import annotations

from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
works_from = "0009"

COLUMN = """
alter table anabranch.nodes add column app_version bigint not null default 0;
comment on column anabranch.nodes.app_version is
    'the schema version that the node''s app was built for, as it last told; 0: it follows today''s'
"""


def upgrade() -> None:
    """Make the column."""
    take_tables(["nodes"])
    op.execute(COLUMN)


def downgrade() -> None:
    """Drop it."""
    op.execute("alter table anabranch.nodes drop column app_version")
