"""The most that the server takes, declared once: ingest enforces it, Describe reports it, clients split by it; and how
long either side trusts a silent connection.

A batch beyond a limit is rejected ``LIMIT_EXCEEDED``; a request beyond one fails. Only the standard library.
"""

from __future__ import annotations

MAX_BATCH_BYTES = 32 * 1024 * 1024
"""Bytes of one batch's payload. One larger than a request travels in parts over ``SendStream``. Nor may its values grow
by more, where Postgres prints them (``values.growth``)."""
MAX_BATCH_MUTATIONS = 10_000
"""Mutations of one batch."""
MAX_BATCH_ROWS = 50_000
"""Rows of one batch, over all its mutations."""
MAX_COLUMNS = 1_600
"""Columns of one mutation: the most that a table of Postgres can have."""
MAX_EXPLAIN_BYTES = 1024 * 1024
"""Bytes of a payload that a dry run takes."""
MAX_EXPLAIN_ROWS = 1_000
"""Rows of one: it holds locks on them that a group would wait for."""
MAX_NAME_BYTES = 63
"""UTF-8 bytes of a database's, table's or column's name: the most that an identifier of Postgres can have."""
MAX_KEY_BYTES = 2_600
"""UTF-8 bytes of the text (``schema.key_text``) of a key that a device inserts: an index of Postgres takes that many,
however little they can be compressed. A longer key that SQL has written is valid (``store.cells.index_keys``)."""
MAX_SUBJECT_BYTES = 255
"""UTF-8 bytes of an API key's subject: it stands in an index of the inbox."""
MAX_AUDIENCE_BYTES = 1_000
"""UTF-8 bytes of an audience; a longer one is nobody's."""
MAX_DEAD_LETTER_COUNTS = 50
"""Reasons and tables by which a node counts its dead letters in one report."""
MAX_NODE_NAME_BYTES = 255
"""UTF-8 bytes of a node's name."""
MAX_VALUE_BYTES = 16 * 1024 * 1024
"""Bytes of one value as it travels. Nor may it grow by more, where Postgres prints it."""

BATCH_EXPIRY_MS = 7 * 24 * 3600 * 1000
"""How long a device keeps a batch that it can't send, and the server one that waits for a row which an earlier batch of
its node may still bring."""

MAX_REQUEST_ENVELOPES = 1_000
"""Envelopes of one request."""
MAX_REQUEST_BYTES = 4_000_000
"""Bytes of one request; below the 4 MiB that a gRPC channel takes by default."""
MAX_UNANSWERED_IDS = 10_000
"""Batch ids that one request names as unanswered. Naming one of each lost call is enough."""

DEVICE_PING_AFTER_MS = 10_000
"""A device whose call is open and has brought nothing for so long pings the server."""
SERVER_PING_AFTER_MS = 20_000
"""The server pings a client whose connection has brought nothing for so long."""
PING_ANSWER_MS = 20_000
"""A peer that does not answer a ping for so long counts as gone: a lost network gives no error. Long enough for a slow
network, on which a ping waits behind much data."""
LEAST_PING_INTERVAL_MS = 5_000
"""The server treats more frequent pings as abuse; a device's pings are rarer."""
