"""Channels of notifications that processes share in Postgres. Where a notification is lost, polling finds the same
news; any role may send one, so that each is read as one that may be false (``listening``)."""

from __future__ import annotations

INBOX_CHANNEL = "anabranch_inbox"
"""Batches were appended. Payload: the database's number."""

GROUPS_CHANNEL = "anabranch_groups"
"""A group was committed. Payload: ``<database number>:<position>:<batch id>,<batch id>…``; a group with more
ids than fit into 7,500 bytes sends several, with the same position. Where the group was traced, the last one ends in
``;`` and its traceparent."""

CATALOG_CHANNEL = "anabranch_catalog"
"""A database or its registered tables changed. Payload: the database's number."""

KEYS_CHANNEL = "anabranch_keys"
"""An API key was revoked. Payload: none; whoever hears it looks at the keys that it knows."""
