"""Whether a group could pass now: the control that a batch which failed alone is held against.

A batch may be at fault only where others pass. While Postgres refuses every group (a full disk, a standby, a trigger
or a lock on our own tables, sessions that are ended again and again), a batch that is tried alone fails as well, and
shows nothing. So a group without a batch is tried on the same session: it writes a record of every kind to our tables
and is rolled back. It touches no table of the application, and nobody sees it.
"""

from __future__ import annotations

from typing import Any

import psycopg

from anabranch.merge import RowVersion
from anabranch.store import group_records as records
from anabranch.store.engine import Session

POSITION = 2**62
"""Beyond every real one, so that no group's row is in its way."""
_BATCH = "0" * 26
_NODE = "control"
_HASH = bytes(16)
WRITABLE = """
select pg_catalog.current_setting('transaction_read_only') = 'off',
       (select t.id from anabranch.synced_tables t where t.database_id = %(db)s order by t.id limit 1)
"""


def passes(conn: Session, database_id: int) -> bool:
    """Whether a group without a batch passes. The session is outside of any transaction before and after it, or closed
    where it was lost.

    Every failure is an answer: what it says has been told by the group that failed before.
    """
    try:
        row = conn.execute(WRITABLE, {"db": database_id}).fetchone()
        assert row is not None
        writable, table_id = row
        if writable:
            _write(conn, database_id, table_id)
    except psycopg.Error:
        writable = False
    try:
        conn.rollback()
    except psycopg.Error:
        # Lost between the answer and here.
        return False
    return bool(writable)


def _write(conn: psycopg.Connection[Any], database_id: int, table_id: int | None) -> None:
    """A record of every kind that a group has."""
    if table_id is not None:
        row = records.LogRow(_BATCH, 0, _NODE, table_id, _BATCH, 4, b"", (), _HASH)
        records.write_log(conn, database_id, POSITION, [row])
        records.insert_versions(conn, [records.VersionRow(table_id, _BATCH, RowVersion(POSITION, _NODE, _BATCH))])
        records.write_conflicts(
            conn,
            database_id,
            POSITION,
            [records.ConflictRow(_BATCH, 0, table_id, _BATCH, _BATCH, b"", _BATCH, _NODE, _BATCH, _NODE)],
        )
    batch = records.BatchRow(_BATCH, _NODE, _NODE, _HASH * 2, 1, 0, POSITION, b"")
    records.write_batches(conn, database_id, POSITION, POSITION, [batch])
    records.write_group(conn, database_id, POSITION, records.GroupRow(0, 0, _HASH, []))
