"""A node that has pulled, and has read nothing else yet, holds the log from its pull on, whatever it writes meanwhile.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
works_from = "0009"

COLUMN = """
alter table anabranch.nodes add column pulled bool not null default false;
comment on column anabranch.nodes.pulled is
    'a pull has put acknowledged where the node will follow the log from: a call of a node that has read nothing yet '
    'leaves it there';
"""


def upgrade() -> None:
    """Make the column."""
    op.execute(COLUMN)


def downgrade() -> None:
    """Drop it."""
    op.execute("alter table anabranch.nodes drop column pulled")
