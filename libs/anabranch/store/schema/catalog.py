"""Databases, their synced tables and what is known of both, and the releases that the schema serves."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Identity,
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

DATABASES = Table(
    "databases",
    METADATA,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("name", BYTE_ORDERED, unique=True, nullable=False),
    Column("schema_name", BYTE_ORDERED, unique=True, nullable=False),
    Column("epoch", BYTE_ORDERED, nullable=False),
    Column("floor_ms", BigInteger, nullable=False, server_default=text("0")),
    Column("schema_version", BigInteger, nullable=False, server_default=text("1")),
    Column("policy", JSONB, nullable=False, server_default="{}"),
    Column(
        "seal_key",
        BYTEA,
        nullable=False,
        comment="secret of the seals in position tokens, page tokens and resume tokens",
    ),
    Column("created_ms", BigInteger, nullable=False),
    Column(
        "system_identifier",
        BigInteger,
        nullable=False,
        server_default=text("((pg_catalog.pg_control_system()).system_identifier)"),
        comment="the Postgres cluster in which the epoch began: a contradiction found in another one is a rewind",
    ),
    Column(
        "audience_rules",
        JSONB,
        nullable=False,
        server_default="{}",
        comment="where principals have their audiences from: claims, membership queries; those for writing where they "
        "are others",
    ),
    Column(
        "ddl_version",
        BigInteger,
        nullable=False,
        server_default=text("1"),
        comment="the number of the last schema change, as applications are told of it; 1 before the first",
    ),
)
"""One row for each schema that is synced as a unit."""

SCHEMA_CHANGES = Table(
    "schema_changes",
    METADATA,
    of_database(),
    Column("version", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("noticed_ms", BigInteger, nullable=False),
    Column("role", Text, nullable=False, server_default=text("''"), comment="who ran the DDL; empty where not known"),
    Column("application", Text, nullable=False, server_default=text("''")),
    Column("command", Text, nullable=False, server_default=text("''"), comment="the statement, cut; empty: not known"),
    Column("change", BYTEA, nullable=False, comment="the serialized anabranch.v1.SchemaChange"),
    Column(
        "tables",
        JSONB,
        nullable=False,
        comment="by number of each table that was changed, came or went: how it was before, and is after",
    ),
    PrimaryKeyConstraint("database_id", "version"),
    UniqueConstraint("database_id", "position", name="schema_changes_position_key"),
    comment="each change of synced tables by DDL, at its position of the log",
)
"""Schema changes, in their order."""

CAPTURED_SHAPES = Table(
    "captured_shapes",
    METADATA,
    Column("table_id", Integer, ForeignKey("anabranch.synced_tables.id", ondelete="CASCADE"), nullable=False),
    Column("before_id", BigInteger, nullable=False),
    Column("shape", JSONB, nullable=False),
    PrimaryKeyConstraint("table_id", "before_id"),
    comment="columns of a table that was altered since: those of its captured changes with smaller numbers than "
    "before_id, and than those of no other row of the table here",
)
"""How captured rows are to be read that are older than a schema change."""

SYNCED_TABLES = Table(
    "synced_tables",
    METADATA,
    Column("id", Integer, Identity(always=True), primary_key=True),
    of_database(),
    Column("name", BYTE_ORDERED, nullable=False),
    Column(
        "columns",
        JSONB,
        nullable=False,
        comment="the columns as the catalog had them at schema_version, in the table's order",
    ),
    Column("key_columns", ARRAY(BYTE_ORDERED), nullable=False),
    Column("policy", JSONB, nullable=False, server_default="{}"),
    Column(
        "audience",
        Text,
        comment="SQL over the row that gives the audiences that may see it; NULL: every device sees every row",
    ),
    Column("registered_ms", BigInteger, nullable=False),
    Column(
        "first_position",
        BigInteger,
        nullable=False,
        comment="the head when the table was registered: older rows are in no log",
    ),
    Column(
        "capture_off_ms",
        BigInteger,
        comment="since when direct writes are not captured, on purpose; NULL: they are",
    ),
    Column(
        "torn_ms",
        BigInteger,
        comment="since when captured changes that can't be read are dropped: not synced until registered anew; "
        "NULL: all is well",
    ),
    Column("audience_columns", ARRAY(BYTE_ORDERED), comment="the columns that the expression reads"),
    Column(
        "audience_is_list",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="whether the expression gives text[], and not text",
    ),
    Column(
        "sql_name",
        BYTE_ORDERED,
        comment="the table's name in its schema where it was renamed since; NULL: its name",
    ),
    Column(
        "relation",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="the oid for which columns' numbers were read; another table of the name is matched by names",
    ),
    Column(
        "column_numbers",
        ARRAY(SmallInteger),
        nullable=False,
        server_default="{}",
        comment="the columns' numbers in pg_attribute at registration; a schema change keeps them in columns, which "
        "may not have them before: a release before this one reads columns, and knows none",
    ),
    Column(
        "former_columns",
        JSONB,
        nullable=False,
        server_default="[]",
        comment="columns that it had: of queued batches and of older files",
    ),
    Column(
        "changed_position",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="the position of the schema change that made it what it is; 0: as registered",
    ),
    Column(
        "shape",
        JSONB,
        comment="anabranch.shape_of the table as its columns were read; NULL: not known, as the release before does "
        "not write it. refused: a hash of a later one by which it can't be synced, and why",
    ),
    UniqueConstraint("database_id", "name", name="synced_tables_name_key"),
)
"""The tables that are registered: each registration has its own number."""

TABLE_SUMS = Table(
    "table_sums",
    METADATA,
    Column("table_id", Integer, ForeignKey(SYNCED_TABLES.c.id, ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("row_hash", BYTEA, nullable=False),
    postgresql_with={"fillfactor": 50},
)
"""Count and hash of each synced table's rows at its last group."""

AUDIENCE_SUMS = Table(
    "audience_sums",
    METADATA,
    Column("table_id", Integer, ForeignKey(SYNCED_TABLES.c.id, ondelete="CASCADE"), nullable=False),
    Column("audience", BYTE_ORDERED, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("row_hash", BYTEA, nullable=False),
    PrimaryKeyConstraint("table_id", "audience"),
    postgresql_with={"fillfactor": 50},
    comment="count and hash of the rows of each audience of a restricted table, at the last group that changed them",
)
"""Count and hash of each audience's rows of restricted tables."""

FORMER_TABLES = Table(
    "former_tables",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    of_database(),
    Column("name", BYTE_ORDERED, nullable=False),
    Column("columns", JSONB, nullable=False),
    Column("key_columns", ARRAY(BYTE_ORDERED), nullable=False),
    Column("last_position", BigInteger, nullable=False),
    Column("audience", Text, comment="who saw which rows; NULL: every device saw every row"),
    Column(
        "sql_name",
        BYTE_ORDERED,
        comment="the table's last name in its schema where that was another one; NULL: its name",
    ),
    Column("former_columns", JSONB, nullable=False, server_default="[]", comment="columns that it had before"),
    Index("former_tables_database", "database_id", "last_position"),
    comment="registrations that have ended, with their columns: changes of theirs up to last_position may be in the "
    "log",
)
"""Registrations that have ended."""

EPOCHS = Table(
    "epochs",
    METADATA,
    of_database(),
    Column("epoch", BYTE_ORDERED, nullable=False),
    Column("ended_position", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("database_id", "epoch"),
    comment="epochs that ended because history was rewound: what a node lost of one moves no epoch a second time",
)
"""Epochs of databases that have ended."""

CLAIMS = Table(
    "claims",
    METADATA,
    Column(
        "database_id", Integer, ForeignKey(DATABASES.c.id, ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    comment="a row for each database: who locks it commits the database's groups, or keeps them away",
)
"""The claims of databases, as rows to lock."""

LEADS = Table(
    "leads",
    METADATA,
    Column("name", BYTE_ORDERED, primary_key=True),
    comment="always empty: the janitor that sweeps locks the whole table",
)
"""The lead among janitors, as a table to lock."""

CODE_REVISIONS = Table(
    "code_revisions",
    METADATA,
    Column("revision", BYTE_ORDERED, primary_key=True),
    comment="revisions of the releases that can work with the schema as it is: every upgrade writes them, every "
    "service asks",
)
"""The releases that can work with this schema."""
