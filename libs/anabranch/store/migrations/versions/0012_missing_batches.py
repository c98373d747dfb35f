"""A node whose batch is decided without the one that it names as the one before: that one may still come, and bring
rows that later batches wait for.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
works_from = "0009"

COLUMN = """
alter table anabranch.nodes add column missing text collate "C";
comment on column anabranch.nodes.missing is
    'the earliest batch of the node that had not come when a later one, which names it, was decided; NULL where there '
    'is none, and it may have come since';
"""


def upgrade() -> None:
    """Make the column."""
    op.execute(COLUMN)


def downgrade() -> None:
    """Drop it."""
    op.execute("alter table anabranch.nodes drop column missing")
