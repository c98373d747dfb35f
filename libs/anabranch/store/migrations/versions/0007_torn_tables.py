"""Tables of which the log lacks direct writes are known by everybody.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COLUMN = """
alter table anabranch.synced_tables add column torn_ms bigint;
comment on column anabranch.synced_tables.torn_ms is
    'since when captured changes that can''t be read are dropped: not synced until registered anew; NULL: all is well';
"""


def upgrade() -> None:
    """Make the column."""
    op.execute(COLUMN)


def downgrade() -> None:
    """Drop it."""
    op.execute("alter table anabranch.synced_tables drop column torn_ms")
