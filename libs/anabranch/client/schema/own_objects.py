"""Indexes and triggers of the app's own on synced tables that are altered: kept where they fit, dropped where not; and
views of its own that name columns which go, which are kept."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from anabranch.client.events import State
from anabranch.client.file import layout
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, quote
from anabranch.client.schema.make import REFUSALS, is_refusal

_EXPLAINED = count()


@dataclass(frozen=True, slots=True)
class Own:
    """An index, a trigger or a view of the app's."""

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


def all_taken_down(conn: sqlite3.Connection, names: Collection[str]) -> list[Own]:
    """Drop all of the app's views, indexes and triggers that have one of ``names`` in double quotes, and the triggers
    of these views; return them."""
    if not names:
        return []
    rows = conn.execute(
        """SELECT type, name, tbl_name, sql FROM sqlite_master WHERE type IN ('view', 'index', 'trigger')
           AND sql IS NOT NULL AND substr(name, 1, ?) != ? ORDER BY type = 'view', rowid""",
        (len(layout.PREFIX), layout.PREFIX),
    )
    found, quoted = [Own(*row) for row in rows.fetchall()], _quoted(names)
    views = {one.name for one in found if one.type == "view" and quoted.search(one.sql)}
    own = [one for one in found if quoted.search(one.sql) or one.table in views]
    for one in own:
        conn.execute(f"DROP {one.type} {quote(one.name)}")
    return own


def _quoted(names: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(quote(name)) for name in names), re.IGNORECASE)


def reworded(own: Sequence[Own], names: Mapping[str, str]) -> list[Own]:
    """These with other names in the place of those that they have in double quotes. They get brackets: SQLite takes
    what stands in double quotes for a text where it finds no such column, and so would give texts for values."""
    if not names:
        return list(own)
    quoted, others = _quoted(names), {quote(name).lower(): _bracketed(other) for name, other in names.items()}
    return [replace(one, sql=quoted.sub(lambda found: others[found[0].lower()], one.sql)) for one in own]


def _bracketed(name: str) -> str:
    return quote(name) if "]" in name else f"[{name}]"


def put_up(tx: Tx, own: Sequence[Own]) -> list[str]:
    """Create indexes, triggers and views of the app's again; return those that fit no longer, in words."""
    # Views fit always, and may have triggers.
    in_order = sorted(own, key=lambda one: one.type != "view")
    return [one.told for one in in_order if not _puts_up(tx, one)]


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
