"""The conflicts of one row are found without reading those of all others.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# Other filters look at so many entries of the primary key a page: conflicts are few beside the log, and each further
# index would be paid for in the group commit.
INDEX = "create index conflicts_row on anabranch.conflicts (table_id, key, position, batch_id, ordinal)"


def upgrade() -> None:
    """Make the index."""
    op.execute(INDEX)


def downgrade() -> None:
    """Drop it."""
    op.execute("drop index anabranch.conflicts_row")
