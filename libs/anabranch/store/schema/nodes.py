"""Nodes, what they last told, and the keys of callers."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB

from anabranch.store.schema.catalog import DATABASES
from anabranch.store.schema.metadata import BYTE_ORDERED, METADATA, of_database

NODES = Table(
    "nodes",
    METADATA,
    of_database(),
    Column("node_id", BYTE_ORDERED, nullable=False),
    Column("name", Text, nullable=False),
    Column("principal", BYTE_ORDERED, nullable=False),
    Column(
        "epoch",
        BYTE_ORDERED,
        nullable=False,
        comment="the database's epoch when token was given: after a rewind any token is taken once",
    ),
    Column("token", BYTEA, nullable=False),
    Column("previous_token", BYTEA),
    Column(
        "last_call",
        ARRAY(BYTE_ORDERED),
        nullable=False,
        server_default="{}",
        comment="batch ids of the call that was answered with token: naming one proves that its answer was lost",
    ),
    Column("last_seen_ms", BigInteger, nullable=False),
    Column("acknowledged", BigInteger, nullable=False, server_default=text("0")),
    Column("last_accepted", BYTE_ORDERED, comment="the greatest id among the accepted batches of the node"),
    Column(
        "pulled",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="a pull has put acknowledged where the node will follow the log from: a call of a node that has read "
        "nothing yet leaves it there",
    ),
    Column(
        "missing",
        BYTE_ORDERED,
        comment="the earliest batch of the node that had not come when a later one, which names it, was decided; NULL "
        "where there is none, and it may have come since",
    ),
    Column(
        "app_version",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="the schema version that the node's app was built for, as it last told; 0: it follows today's",
    ),
    PrimaryKeyConstraint("database_id", "node_id"),
    postgresql_with={"fillfactor": 50},
)
"""The nodes of each database: whose they are, their tokens, and how far they have read."""

NODE_DEAD_LETTERS = Table(
    "node_dead_letters",
    METADATA,
    Column("database_id", Integer, nullable=False),
    Column("node_id", BYTE_ORDERED, nullable=False),
    Column("told_ms", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column(
        "counts",
        JSONB,
        nullable=False,
        comment="a list of {reason, table, count}, the most frequent first; total counts all",
    ),
    PrimaryKeyConstraint("database_id", "node_id"),
    ForeignKeyConstraint(["database_id", "node_id"], [NODES.c.database_id, NODES.c.node_id], ondelete="CASCADE"),
    comment="nodes that hold dead letters, as each last told: apart from anabranch.nodes, whose rows change with every "
    "call",
)
"""The dead letters of each node that has, or had, some."""

PRINCIPALS = Table(
    "principals",
    METADATA,
    of_database(),
    Column("principal", BYTE_ORDERED, nullable=False),
    Column("memberships", ARRAY(Text), nullable=False),
    Column("write_memberships", ARRAY(Text), comment="those for writing; NULL: as memberships"),
    Column("seen_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("database_id", "principal"),
    comment="principals that have called, with the audiences that membership queries give them at the head",
)
"""Principals, with what membership queries give them."""

AUDIENCE_CHANGES = Table(
    "audience_changes",
    METADATA,
    Column("database_id", Integer, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("principal", BYTE_ORDERED, nullable=False),
    Column("gained", ARRAY(Text), nullable=False),
    Column("lost", ARRAY(Text), nullable=False),
    PrimaryKeyConstraint("database_id", "position", "principal"),
    Index("audience_changes_principal", "database_id", "principal", "position"),
    comment="how a group changed what membership queries give a principal for reading",
)
"""Changes of principals' audiences by groups."""

AUDIENCES_MISSED = Table(
    "audiences_missed",
    METADATA,
    Column("database_id", Integer, ForeignKey(DATABASES.c.id, ondelete="CASCADE"), primary_key=True),
    comment="databases whose membership queries failed since all of their principals were evaluated",
)
"""Databases in which some principals may have other audiences than their queries give."""

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", BYTE_ORDERED, primary_key=True),
    Column("secret_hash", BYTEA, nullable=False),
    Column("subject", BYTE_ORDERED, nullable=False),
    Column(
        "database_id",
        Integer,
        ForeignKey(DATABASES.c.id, ondelete="CASCADE"),
        comment="the only database that the key opens; NULL opens all",
    ),
    Column("role", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Column("revoked_ms", BigInteger),
    CheckConstraint("role in ('device', 'admin')", name="api_keys_role_check"),
)
"""The API keys of callers, by the hashes of their secrets."""
