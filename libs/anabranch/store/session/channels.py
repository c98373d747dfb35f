"""Names that processes share in Postgres: notification channels and advisory locks. Where a notification is lost,
polling finds the same news."""

from __future__ import annotations

INBOX_CHANNEL = "anabranch_inbox"
"""Batches were appended. Payload: the database's number."""

GROUPS_CHANNEL = "anabranch_groups"
"""A group was committed. Payload: ``<database number>:<position>:<batch id>,<batch id>…``; a group with more
ids than fit into 7,500 bytes sends several, with the same position. Where the group was traced, the last one ends in
``;`` and its traceparent."""

CATALOG_CHANNEL = "anabranch_catalog"
"""A database or its registered tables changed. Payload: the database's number."""

CLAIM_LOCK_CLASS = 0x616E6162
"""First key of the advisory lock by which a resolver claims a database; the second is the database's
number."""

REGISTRATION_LOCK_CLASS = 0x616E6172
"""First key of the session-level advisory lock that is held while a table with foreign writers is registered; the
second is a hash of database and table."""

JANITOR_LOCK_CLASS = 0x616E616A
"""First key of the advisory lock by which one janitor sweeps; the second is 0."""

MIGRATION_LOCK = 0x616E61626D696772
"""The advisory lock under which migrations run."""
