"""Whether a group could pass now: the control that a batch which failed alone is held against, and captured changes
that could not be drained.

A batch or a table may be at fault only where others pass. While Postgres refuses every group (a full disk, a standby, a
trigger or a lock on our own tables, sessions that are ended again and again), a batch that is tried alone fails as
well, and proves nothing. So a group without a batch is tried on the same session: it writes a record of every kind to
our tables and is rolled back. Its records are of no table, so that one which is at fault can't refuse them. It touches
no table of the application, and no session sees it.
"""

from __future__ import annotations

from typing import Any

import psycopg

from anabranch.merge import RowVersion
from anabranch.store.group import records, versions
from anabranch.store.inbox.undertaken import undertake
from anabranch.store.session.engine import Session

POSITION = 2**62
"""Beyond every real one, so that no group's row is in its way."""
_BATCH = "0" * 26
_NODE = "control"
_HASH = bytes(16)
_NO_TABLE = 0
WRITABLE = "select pg_catalog.current_setting('transaction_read_only') = 'off'"


def passes(conn: Session, database_id: int) -> bool:
    """Whether a group without a batch passes. The session is outside of any transaction before and after it, or closed
    where it was lost.

    A failure is an answer, and its error is not reported here: the group that failed before has reported it.
    """
    try:
        [(writable,)] = conn.execute(WRITABLE).fetchall()
        if writable:
            _write(conn, database_id)
    except psycopg.Error:
        writable = False
    try:
        conn.rollback()
    except psycopg.Error:
        # Lost between the answer and here.
        return False
    return bool(writable)


def _write(conn: psycopg.Connection[Any], database_id: int) -> None:
    """A record of every kind that a group has."""
    # Of all databases' controls, each has a row of its own: none waits for another one's.
    key = str(database_id)
    row = records.LogRow(_BATCH, 0, _NODE, _NO_TABLE, key, 4, b"", (), _HASH)
    records.write_log(conn, database_id, POSITION, [row])
    versions.insert_versions(conn, [versions.VersionRow(_NO_TABLE, key, RowVersion(POSITION, _NODE, _BATCH))])
    conflict = records.ConflictRow(_BATCH, 0, _NO_TABLE, key, _BATCH, b"", _BATCH, _NODE, _BATCH, _NODE)
    records.write_conflicts(conn, database_id, POSITION, [conflict])
    batch = records.BatchRow(_BATCH, _NODE, _NODE, _HASH * 2, 1, 0, POSITION, b"")
    records.write_batches(conn, database_id, POSITION, POSITION, [batch])
    records.write_group(conn, database_id, POSITION, records.GroupRow(0, 0, _HASH, []))
    undertake(conn, database_id, [])
