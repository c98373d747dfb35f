"""A principal's parked batches are found without those of others.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
works_from = "0009"

# By its condition only a statement that names it is planned with this index: those that look for what is due, whoever's
# it is, keep theirs, also where they are planned while the inbox is empty.
INDEX = """
create index inbox_parked_of on anabranch.inbox (database_id, principal, park_deadline_ms)
    where park_deadline_ms > 0
"""


def upgrade() -> None:
    """Make the index."""
    op.execute(INDEX)


def downgrade() -> None:
    """Drop it."""
    op.execute("drop index anabranch.inbox_parked_of")
