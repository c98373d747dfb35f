"""The dead letters of each node, as it last told of them.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
works_from = "0009"

TABLES = """
create table anabranch.node_dead_letters (
    database_id integer not null,
    node_id     text collate "C" not null,
    told_ms     bigint not null,
    total       bigint not null,
    counts      jsonb not null,
    primary key (database_id, node_id),
    foreign key (database_id, node_id) references anabranch.nodes (database_id, node_id) on delete cascade
);
comment on table anabranch.node_dead_letters is
    'nodes that hold dead letters, as each last told: apart from anabranch.nodes, whose rows change with every call';
comment on column anabranch.node_dead_letters.counts is
    'a list of {reason, table, count}, the most frequent first; total counts all';
"""


def upgrade() -> None:
    """Make the table."""
    op.execute(TABLES)


def downgrade() -> None:
    """Drop it."""
    op.execute("drop table anabranch.node_dead_letters")
