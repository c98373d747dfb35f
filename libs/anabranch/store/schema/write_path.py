"""The tables of the write path: what waits for the resolver, and what became of it."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB

from anabranch.store.schema.metadata import BYTE_ORDERED, METADATA, Xid8, of_database

INBOX = Table(
    "inbox",
    METADATA,
    of_database(),
    Column("batch_id", BYTE_ORDERED, nullable=False),
    Column("arrival", BigInteger, Identity(always=True, cache=1000), nullable=False),
    Column("node_id", BYTE_ORDERED, nullable=False),
    Column("principal", BYTE_ORDERED, nullable=False),
    Column("basis", BigInteger, nullable=False),
    Column("prev", BYTE_ORDERED),
    Column("payload", BYTEA, nullable=False),
    Column("payload_sha256", BYTEA, nullable=False),
    Column("traceparent", Text),
    Column("arrived_ms", BigInteger, nullable=False),
    Column("park_deadline_ms", BigInteger),
    Column("waits_for_batch", BYTE_ORDERED),
    Column("waits_for_table", Integer),
    Column("waits_for_key", BYTE_ORDERED, comment="as in row_versions"),
    Column("attempts", SmallInteger, nullable=False, server_default=text("0")),
    Column(
        "refusal",
        SmallInteger,
        comment="an anabranch.v1.Reason: ingest found the batch invalid, the resolver only records it",
    ),
    Column("refusal_message", Text),
    Column(
        "failure",
        BYTE_ORDERED,
        comment="how the batch failed the last time that it was alone and others passed: an SQLSTATE, lost, program or "
        "killed; killed and a number: so many batches were in work when a resolver was killed, and this was one of "
        "them",
    ),
    Column(
        "read_audiences",
        ARRAY(Text),
        comment="what the claims gave with which the batch was sent; NULL: nothing",
    ),
    Column("write_audiences", ARRAY(Text), comment="the same for writing; NULL: as read_audiences"),
    Column("claims", Text, comment="the claims as JSON, where batches are applied under row-level security; else NULL"),
    PrimaryKeyConstraint("database_id", "batch_id"),
    Index("inbox_ready", "database_id", "principal", "arrival", postgresql_where=text("park_deadline_ms is null")),
    Index("inbox_parked", "database_id", "park_deadline_ms", postgresql_where=text("park_deadline_ms is not null")),
    Index(
        "inbox_parked_of", "database_id", "principal", "park_deadline_ms", postgresql_where=text("park_deadline_ms > 0")
    ),
    Index(
        "inbox_waits_for_batch", "database_id", "waits_for_batch", postgresql_where=text("waits_for_batch is not null")
    ),
    Index(
        "inbox_waits_for_row", "waits_for_table", "waits_for_key", postgresql_where=text("waits_for_key is not null")
    ),
    Index("inbox_node", "database_id", "node_id", "batch_id"),
    postgresql_with={
        "fillfactor": 80,
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_threshold": 2000,
        "autovacuum_analyze_scale_factor": 0.05,
    },
)
"""Batches that wait for their verdict."""

UNDERTAKEN = Table(
    "undertaken",
    METADATA,
    of_database(),
    Column(
        "owner",
        Integer,
        nullable=False,
        comment="the process: while it lives, it holds the advisory lock of that number",
    ),
    Column("batches", ARRAY(BYTE_ORDERED), nullable=False),
    PrimaryKeyConstraint("database_id"),
    comment="the batches that a resolver is trying: written before the group begins, and deleted with its commit",
)
"""The batches that each database's resolver has set out to decide, where that is written down."""

BATCHES = Table(
    "batches",
    METADATA,
    of_database(),
    Column("batch_id", BYTE_ORDERED, nullable=False),
    Column("node_id", BYTE_ORDERED, nullable=False),
    Column("principal", BYTE_ORDERED, nullable=False),
    Column("payload_sha256", BYTEA, nullable=False),
    Column(
        "status",
        SmallInteger,
        nullable=False,
        comment="an anabranch.v1.VerdictStatus: 1 applied, 2 rejected",
    ),
    Column("reason", SmallInteger, nullable=False, server_default=text("0")),
    Column("position", BigInteger, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("verdict", BYTEA, nullable=False, comment="the serialized anabranch.v1.Verdict"),
    Column("decided_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("database_id", "batch_id"),
    Index(
        "batches_accepted",
        "database_id",
        "node_id",
        "batch_id",
        postgresql_include=["position"],
        postgresql_where=text("status = 1"),
    ),
)
"""Batches that were decided, with their verdicts."""

CAPTURED = Table(
    "captured",
    METADATA,
    Column(
        "id",
        BigInteger,
        Identity(always=True),
        nullable=False,
        comment="for one row the order of the statements that changed it; inside one statement old and new say what "
        "came first",
    ),
    Column("database_id", Integer, nullable=False),
    Column(
        "table_id",
        Integer,
        nullable=False,
        comment="the registration: its columns are the first ones of every record, in their order, whatever was added "
        "since",
    ),
    Column("xid", Xid8, nullable=False),
    Column(
        "type",
        SmallInteger,
        nullable=False,
        comment="1 insert, 2 update (of the key as well), 3 delete; 4: a marker, the table was altered here",
    ),
    Column(
        "depth",
        SmallInteger,
        nullable=False,
        comment="pg_trigger_depth() of the trigger that wrote the row: 1 for a plain statement",
    ),
    Column("old", BYTEA, comment="record_send of the row before, text in UTF-8; NULL for an insert"),
    Column(
        "new",
        BYTEA,
        comment="record_send of the row after, text in UTF-8; NULL for a delete. Of a marker: JSON in UTF-8",
    ),
    Column("role", Text),
    Column("application", Text),
    PrimaryKeyConstraint("database_id", "id"),
    Index("captured_markers", "database_id", "id", postgresql_where=text("type = 4")),
    postgresql_with={
        "autovacuum_vacuum_scale_factor": 0.02,
        "autovacuum_vacuum_threshold": 2000,
        "autovacuum_vacuum_insert_scale_factor": 0.05,
        "autovacuum_analyze_scale_factor": 0.05,
    },
    comment="changes that the log lacks yet. Rows appear with the writer's commit: lower ids may appear after higher "
    "ones",
)
"""Changes by SQL that triggers wrote down and that are not drained yet."""

ROW_VERSIONS = Table(
    "row_versions",
    METADATA,
    Column("table_id", Integer, nullable=False),
    Column(
        "key",
        BYTE_ORDERED,
        nullable=False,
        comment="the key's text; where it has more than 2,600 bytes its SHA-256 in hexadecimal and 2,600 dots",
    ),
    Column("last_position", BigInteger, nullable=False),
    Column("last_node", BYTE_ORDERED, nullable=False),
    Column("last_batch", BYTE_ORDERED, nullable=False),
    Column("other_position", BigInteger, nullable=False, server_default=text("0")),
    Column("insert_position", BigInteger, nullable=False, server_default=text("0")),
    Column("insert_place", BigInteger, nullable=False, server_default=text("0")),
    Column("insert_node", BYTE_ORDERED, nullable=False, server_default=""),
    Column("insert_batch", BYTE_ORDERED, nullable=False, server_default=""),
    Column("tombstone_batch", BYTE_ORDERED),
    Column(
        "stamps",
        JSONB,
        nullable=False,
        server_default="{}",
        comment="column -> [place, batch, node, position], for the columns that an update wrote",
    ),
    Column(
        "overtaken",
        JSONB,
        nullable=False,
        server_default="{}",
        comment="node -> greatest id of its batches that wrote the row, for nodes that are no longer the last writer",
    ),
    Column("audience", ARRAY(Text), comment="of a tombstone: the audiences that the row had at last"),
    PrimaryKeyConstraint("table_id", "key"),
    postgresql_with={"fillfactor": 80},
)
"""The last writers of each row and of its columns; tombstones as well."""
