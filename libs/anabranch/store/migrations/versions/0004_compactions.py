"""Published runs of the compactor.

Revision ID: 0004
Revises: 0002
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = """
create table anabranch.compactions (
    database_id   integer not null references anabranch.databases (id) on delete cascade,
    run_id        text collate "C" not null,
    epoch         text collate "C" not null,
    from_position bigint not null,
    to_position   bigint not null,
    changes       bigint not null,
    root          text not null,
    manifest      jsonb not null,
    published_ms  bigint not null,
    constraint compactions_pkey primary key (database_id, run_id),
    constraint compactions_range_check check (to_position > from_position),
    constraint compactions_from_key unique (database_id, epoch, from_position)
);
comment on table anabranch.compactions is
    'a row publishes a run: the log of (from_position, to_position] was proven equal to the files of its manifest';
comment on constraint compactions_from_key on anabranch.compactions is
    'of two runs over the same stretch one is published';
"""


def upgrade() -> None:
    """Make the table."""
    op.execute(TABLES)


def downgrade() -> None:
    """Drop the table; the files stay."""
    op.execute("drop table anabranch.compactions")
