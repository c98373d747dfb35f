"""The log and what is committed with it: groups, effects, values that lost; and the log's way into files."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB

from anabranch.store.schema.metadata import BYTE_ORDERED, METADATA, of_database

GROUPS = Table(
    "groups",
    METADATA,
    of_database(),
    Column("position", BigInteger, nullable=False),
    Column("batches", Integer, nullable=False),
    Column("changes", Integer, nullable=False),
    Column("chain", BYTEA, nullable=False),
    Column(
        "sums",
        ARRAY(BYTEA),
        nullable=False,
        comment="serialized anabranch.v1.TableSum of each table that the group changed, after it",
    ),
    Column(
        "claimed",
        Boolean,
        nullable=False,
        server_default=text("anabranch.claimed_otherwise()"),
        comment="true: who made the group had locked the row of its database in claims",
    ),
    PrimaryKeyConstraint("database_id", "position"),
)
"""Batches that were committed together, by their position."""

# Its partitions are made and dropped while services run (store.log.partitions), so none is declared.
LOG = Table(
    "log",
    METADATA,
    Column("database_id", Integer, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("batch_id", BYTE_ORDERED, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("node_id", BYTE_ORDERED, nullable=False),
    Column("table_id", Integer, nullable=False),
    Column("key", BYTE_ORDERED, nullable=False),
    Column("type", SmallInteger, nullable=False),
    Column("effect", BYTEA, nullable=False, comment="the serialized anabranch.v1.Effect"),
    Column("changed", ARRAY(BYTE_ORDERED), nullable=False, server_default="{}"),
    Column(
        "effect_hash",
        BYTEA,
        nullable=False,
        comment="BLAKE2b-128 of the effect's canonical encoding (anabranch.values.canonical)",
    ),
    Column("audience_before", ARRAY(Text)),
    Column("audience_after", ARRAY(Text)),
    PrimaryKeyConstraint("database_id", "position", "batch_id", "ordinal"),
    postgresql_partition_by="RANGE (position)",
)
"""All effects, in the order in which devices read them."""

CONFLICTS = Table(
    "conflicts",
    METADATA,
    of_database(),
    Column("position", BigInteger, nullable=False),
    Column("batch_id", BYTE_ORDERED, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("table_id", Integer, nullable=False),
    Column("key", BYTE_ORDERED, nullable=False),
    Column("column_name", BYTE_ORDERED, nullable=False),
    Column("losing_value", BYTEA, nullable=False, comment="the serialized anabranch.v1.Value"),
    Column("losing_batch", BYTE_ORDERED, nullable=False),
    Column("losing_node", BYTE_ORDERED, nullable=False),
    Column("winning_batch", BYTE_ORDERED, nullable=False),
    Column("winning_node", BYTE_ORDERED, nullable=False),
    Column("audience_before", ARRAY(Text)),
    Column("audience_after", ARRAY(Text)),
    Column(
        "cause",
        SmallInteger,
        nullable=False,
        server_default=text("0"),
        comment="the number of an anabranch.v1.LossCause",
    ),
    PrimaryKeyConstraint("database_id", "position", "batch_id", "ordinal"),
    Index("conflicts_row", "table_id", text('"left"(key, 500)'), "position", "batch_id", "ordinal"),
)
"""Values that lost, whose they were, and to whom they lost."""

COMPACTIONS = Table(
    "compactions",
    METADATA,
    of_database(),
    Column("run_id", BYTE_ORDERED, nullable=False),
    Column("epoch", BYTE_ORDERED, nullable=False),
    Column("from_position", BigInteger, nullable=False),
    Column("to_position", BigInteger, nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("root", Text, nullable=False),
    Column("manifest", JSONB, nullable=False),
    Column("published_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("database_id", "run_id"),
    CheckConstraint("to_position > from_position", name="compactions_range_check"),
    UniqueConstraint("database_id", "epoch", "from_position", name="compactions_from_key"),
    comment="a row publishes a run: the log of (from_position, to_position] was proven equal to the files of its "
    "manifest",
)
"""The compactor's published runs."""
