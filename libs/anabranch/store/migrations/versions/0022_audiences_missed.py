"""Databases whose membership queries failed for a group are known, so that what it changed counts once they work again.

Revision ID: 0022
Revises: 0021
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
works_from = "0009"

TABLE = """
create table anabranch.audiences_missed (
    database_id integer primary key references anabranch.databases (id) on delete cascade
);
comment on table anabranch.audiences_missed is
    'databases whose membership queries failed since all of their principals were evaluated'
"""


def upgrade() -> None:
    """Make the table."""
    op.execute(TABLE)


def downgrade() -> None:
    """Drop it."""
    op.execute("drop table anabranch.audiences_missed")
