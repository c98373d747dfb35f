"""Which releases can work with the schema as it is, so that a release can tell although a newer one has migrated it.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
# Releases before this one ask for exactly their own revision.
works_from = "0008"

TABLE = """
create table anabranch.code_revisions (
    revision text collate "C" not null,
    constraint code_revisions_pkey primary key (revision)
);
comment on table anabranch.code_revisions is
    'revisions of the releases that can work with the schema as it is: every upgrade writes them, every service asks';
"""


def upgrade() -> None:
    """Make the table; ``store.migrate`` fills it, once all migrations have run."""
    op.execute(TABLE)


def downgrade() -> None:
    """Drop it."""
    op.execute("drop table anabranch.code_revisions")
