"""The tables of schema ``anabranch`` as the migrations leave them, declared as one SQLAlchemy MetaData.

Nothing is made from it: migrations make the schema, in SQL, and a test holds that the two say the same. Statements of
SQLAlchemy's Core are written with it, by commands alone: services load no SQLAlchemy.
"""

from __future__ import annotations

# All of them here, so that whoever imports a part has the whole of METADATA.
from anabranch.store.schema.catalog import (
    AUDIENCE_SUMS,
    CLAIMS,
    CODE_REVISIONS,
    DATABASES,
    EPOCHS,
    FORMER_TABLES,
    LEADS,
    SYNCED_TABLES,
    TABLE_SUMS,
)
from anabranch.store.schema.log import COMPACTIONS, CONFLICTS, GROUPS, LOG
from anabranch.store.schema.metadata import METADATA
from anabranch.store.schema.nodes import API_KEYS, AUDIENCE_CHANGES, NODE_DEAD_LETTERS, NODES, PRINCIPALS
from anabranch.store.schema.write_path import BATCHES, CAPTURED, INBOX, ROW_VERSIONS, UNDERTAKEN

__all__ = [
    "API_KEYS",
    "AUDIENCE_CHANGES",
    "AUDIENCE_SUMS",
    "BATCHES",
    "CAPTURED",
    "CLAIMS",
    "CODE_REVISIONS",
    "COMPACTIONS",
    "CONFLICTS",
    "DATABASES",
    "EPOCHS",
    "FORMER_TABLES",
    "GROUPS",
    "INBOX",
    "LEADS",
    "LOG",
    "METADATA",
    "NODES",
    "NODE_DEAD_LETTERS",
    "PRINCIPALS",
    "ROW_VERSIONS",
    "SYNCED_TABLES",
    "TABLE_SUMS",
    "UNDERTAKEN",
]
