"""Indexes and triggers of the app's own on synced tables that are altered: kept where they fit, dropped where not."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from anabranch.client.events import State
from anabranch.client.file import layout
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, quote
from anabranch.client.schema.make import REFUSALS, is_refusal

_EXPLAINED = count()


@dataclass(frozen=True, slots=True)
class Own:
    """An index or a trigger of the app's."""

    type: str
    name: str
    table: str
    sql: str

    @property
    def told(self) -> str:
        return f"the {self.type} {self.name}"


def _of_app(conn: sqlite3.Connection, table: str) -> list[Own]:
    rows = conn.execute(
        """SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name = ? COLLATE NOCASE
           AND type IN ('index', 'trigger') AND sql IS NOT NULL AND substr(name, 1, ?) != ? ORDER BY rowid""",
        (table, len(layout.PREFIX), layout.PREFIX),
    )
    return [Own(*row) for row in rows.fetchall()]


def taken_down(conn: sqlite3.Connection, table: str, *types: str) -> list[Own]:
    """Drop the app's indexes and triggers on a table, by its name in SQL, or those of ``types`` alone; return them."""
    own = [one for one in _of_app(conn, table) if not types or one.type in types]
    for one in own:
        conn.execute(f"DROP {one.type} {quote(one.name)}")
    return own


def put_up(tx: Tx, own: Sequence[Own]) -> list[str]:
    """Create indexes and triggers of the app's again; return those that fit no longer, in words."""
    return [one.told for one in own if not _puts_up(tx, one)]


def _puts_up(tx: Tx, one: Own) -> bool:
    try:
        with tx.savepoint():
            tx.conn.execute(one.sql)
    except REFUSALS as error:
        if not is_refusal(error):
            raise
        return False
    return True


def tell_not_kept(tx: Tx, not_kept: Sequence[str], table: str | None = None) -> None:
    """Tell that these indexes and triggers of the app's were dropped, if there are any."""
    if not_kept:
        reason = f"{', '.join(not_kept)} of the app's own named what the server has taken away"
        tx.events.append(State("not_kept", reason, table))


def drop_broken_triggers(tx: Tx) -> None:
    """Drop those triggers of the app's on synced tables without which these could be written and with which they can't:
    they name what is gone. This is told."""
    dropped: list[str] = []
    for table in tx.tables.values():
        triggers = [one for one in _of_app(tx.conn, table.sql_name) if one.type == "trigger"]
        if not triggers or _can_be_written(tx.conn, table):
            continue
        for one in triggers:
            tx.conn.execute(f"DROP TRIGGER {quote(one.name)}")
        for one in triggers:
            if _puts_up(tx, one):
                if _can_be_written(tx.conn, table):
                    continue
                tx.conn.execute(f"DROP TRIGGER {quote(one.name)}")
            dropped.append(one.told)
    tell_not_kept(tx, dropped)


def _can_be_written(conn: sqlite3.Connection, table: DeviceTable) -> bool:
    """Whether SQLite can compile writes to a table; what a trigger of the app's may not write is another matter."""
    for sql, parameters in ((table.upsert_sql, len(table.readers)), (table.delete_sql, len(table.table.key_columns))):
        try:
            # A statement of the same text would be one that was compiled before, which EXPLAIN does not notice.
            conn.execute(f"EXPLAIN {sql} -- {next(_EXPLAINED)}", [None] * parameters).fetchall()
        except sqlite3.OperationalError as error:
            if is_refusal(error):
                return False
            raise
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_AUTH:
                raise
    return True
