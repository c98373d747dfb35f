"""A resolver writes down which batches it is about to try, so that what kills it is known to the next one.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
works_from = "0009"

TABLE = """
create table anabranch.undertaken (
    database_id integer primary key references anabranch.databases (id) on delete cascade,
    owner       integer not null,
    batches     text[] collate "C" not null
);
comment on table anabranch.undertaken is
    'the batches that a resolver is trying: written before the group begins, and deleted with its commit';
comment on column anabranch.undertaken.owner is
    'the process: while it lives, it holds the advisory lock of that number';
comment on column anabranch.inbox.failure is
    'how the batch failed the last time that it was alone and others passed: an SQLSTATE, lost, program or killed; '
    'killed and a number: so many batches were in work when a resolver was killed, and this was one of them';
"""
COMMENT_BEFORE = """
comment on column anabranch.inbox.failure is
    'how the batch failed the last time that it was alone and others passed: an SQLSTATE, lost or program';
"""


def upgrade() -> None:
    """Make the table."""
    op.execute(TABLE)


def downgrade() -> None:
    """Drop it."""
    op.execute("drop table anabranch.undertaken")
    op.execute(COMMENT_BEFORE)
