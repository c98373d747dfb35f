"""How a batch failed alone is kept beside how often, so that its verdict can say so.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
works_from = "0009"

COLUMN = """
alter table anabranch.inbox add column failure text collate "C";
comment on column anabranch.inbox.failure is
    'how the batch failed the last time that it was alone and others passed: an SQLSTATE, lost or program';
"""


def upgrade() -> None:
    """Make the column."""
    op.execute(COLUMN)


def downgrade() -> None:
    """Drop it."""
    op.execute("alter table anabranch.inbox drop column failure")
