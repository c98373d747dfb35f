"""Epochs that have ended, and the Postgres cluster that a database lives in.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# A copy of the rows (pg_dump) brings the identifier of the cluster that it is from; a copy of the files keeps it.
TABLES = """
alter table anabranch.databases
    add column system_identifier bigint not null default ((pg_catalog.pg_control_system()).system_identifier);
comment on column anabranch.databases.system_identifier is
    'the Postgres cluster in which the epoch began: a contradiction found in another one is a rewind';

create table anabranch.epochs (
    database_id    integer not null references anabranch.databases (id) on delete cascade,
    epoch          text collate "C" not null,
    ended_position bigint not null,
    ended_ms       bigint not null,
    constraint epochs_pkey primary key (database_id, epoch)
);
comment on table anabranch.epochs is
    'epochs that ended because history was rewound: what a node lost of one moves no epoch a second time';
"""


def upgrade() -> None:
    """Make them."""
    op.execute(TABLES)


def downgrade() -> None:
    """Drop them."""
    op.execute("drop table anabranch.epochs; alter table anabranch.databases drop column system_identifier")
