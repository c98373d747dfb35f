"""A table of the file altered from one form to another by SQLite's ALTER TABLE, or made anew beside it where SQLite
does not do that.

What costs what: a column that is added, and names that change, cost the same for any number of rows. A column that
goes, or is emptied, costs a pass over the rows; so does an initial value that no DEFAULT tells exactly.

SQLite refuses to rename or drop a column while anything in the file's schema names what is not there: a view of the
app's, an index on the column, a trigger. So a table is altered in the first of these ways that works:

1. as it is, after the app's indexes on columns that go were dropped;
2. while SQLite tolerates what it can't make sense of (PRAGMA writable_schema, which some builds never allow), with the
   app's indexes and triggers on the table put back afterwards;
3. copied into a new table.

What the app's views, indexes and triggers call by a name that another column gets in the same change, they mean the
other by afterwards: a column of another kind is a new one of the old name. SQLite writes into them what a column is
called on its way; that is undone (``own_objects.reworded``). Indexes and triggers of the app's that name what is gone
by then are dropped: a trigger that can't be compiled would refuse every write, the sync's too. Views stay.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from anabranch.client.file import guards, layout
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, quote
from anabranch.client.logs import get_logger
from anabranch.client.schema.make import REFUSALS, is_refusal
from anabranch.client.schema.own_objects import all_taken_down, put_up, reworded, taken_down
from anabranch.values import Column, Kind
from anabranch.values.sqlite import declared_type, storer

log = get_logger(__name__)

_COPY = f"{layout.PREFIX}copy"
_MOVED = f"{layout.PREFIX}moved"


@dataclass(frozen=True)
class _Steps:
    """The steps that turn the table ``old`` into ``new``, by identities: names in SQL before and after."""

    old: DeviceTable
    new: DeviceTable

    @property
    def _before(self) -> dict[str, str]:
        return {c.name: c.sql_name for c in (*self.old.table.columns, *self.old.gone)}

    @property
    def _after(self) -> dict[str, Column]:
        return {c.name: c for c in (*self.new.table.columns, *self.new.gone)}

    @property
    def dropped(self) -> list[str]:
        """The columns that go, by their names before."""
        after = self._after
        return [sql_name for name, sql_name in self._before.items() if name not in after]

    @property
    def renamed(self) -> list[tuple[str, str]]:
        """Columns' names before and after, where they differ."""
        after = self._after
        pairs = [(sql_name, after[name].sql_name) for name, sql_name in self._before.items() if name in after]
        return [(old, new) for old, new in pairs if old != new]

    @property
    def leaving(self) -> list[str]:
        """The columns, by their names before, that can't keep these until others have theirs."""
        pairs = self.renamed
        wanted = {after.lower() for _, after in pairs} | {column.sql_name.lower() for column in self.added}
        return [name for name in (*(before for before, _ in pairs), *self.dropped) if name.lower() in wanted]

    @property
    def going(self) -> dict[str, str]:
        """The names before of the columns that go, by those that they have once others have theirs."""
        leaving = self.leaving
        return {_on_its_way(name) if name in leaving else name: name for name in self.dropped}

    @property
    def emptied(self) -> list[str]:
        """The columns whose every value goes, by their names after."""
        here = self.old.table.index
        return [c.sql_name for c in self.new.gone if c.name in here]

    @property
    def added(self) -> list[Column]:
        before = self._before
        return [column for name, column in self._after.items() if name not in before]

    @property
    def kept(self) -> list[tuple[str, str]]:
        """The names, before and after, of the columns whose values stay."""
        before, gone = self._before, {c.name for c in self.new.gone}
        return [
            (before[name], column.sql_name)
            for name, column in self._after.items()
            if name in before and name not in gone
        ]

    def initial(self, column: Column) -> Any:
        """The stored value that the rows have in a column which is added."""
        if column.name not in self.new.table.index or not column.initial or column.initial[0] is None:
            return None
        store = storer(column)
        return column.initial[0] if store is None else store(column.initial[0])

    def fills(self) -> bool:
        """Whether values of rows are written, for which triggers of the app's would fire: these run for what somebody
        writes, and may refuse it."""
        return bool(self.emptied) or any(_is_filled(column, self.initial(column)) for column in self.added)

    def is_none(self) -> bool:
        """Whether there is nothing to do."""
        same_name = self.old.sql_name == self.new.sql_name
        return same_name and not (self.dropped or self.renamed or self.emptied or self.added)


def is_same(old: DeviceTable, new: DeviceTable) -> bool:
    """Whether two tables are the same ones to SQLite."""
    return _Steps(old, new).is_none()


def alter_table(tx: Tx, old: DeviceTable, new: DeviceTable) -> list[str]:
    """Alter the table; return what of the app's own was dropped, in words.

    Raises:
        sqlite3.OperationalError, sqlite3.IntegrityError: SQLite can't hold the new one (``make.is_refusal``): as names
            that differ in nothing but upper and lower case. Nothing was done.
        sqlite3.Error: the file can't be written; the transaction, or a part of it, is to be undone.
    """
    steps = _Steps(old, new)
    if steps.is_none():
        return []
    names = [name.lower() for name in _names(new)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise sqlite3.OperationalError(f"duplicate column name: {twice[0]}")
    ways = (_as_it_is, _tolerantly, _by_copy)
    for way in ways:
        try:
            with tx.savepoint():
                guards.take(tx.conn, old.sql_name)
                not_kept = way(tx, steps)
                guards.put(tx.conn, new.sql_name)
            return not_kept
        except REFUSALS as error:
            if not is_refusal(error) or way is ways[-1]:
                raise
            log.info("table_altered_otherwise", table=old.sql_name, error=str(error))
    raise AssertionError("the last way has returned or raised")


def _names(table: DeviceTable) -> list[str]:
    return [column.sql_name for column in (*table.table.columns, *table.gone)]


def _as_it_is(tx: Tx, steps: _Steps) -> list[str]:
    conn, not_kept = tx.conn, []
    _rename(conn, steps)
    own = all_taken_down(conn, steps.going)
    for name in _indexes_on(conn, steps):
        conn.execute(f"DROP INDEX {quote(name)}")
        not_kept.append(f"the index {name}")
    own += taken_down(conn, steps.new.sql_name, "trigger") if steps.fills() else []
    _drop_and_add(conn, steps)
    return not_kept + put_up(tx, reworded(own, steps.going))


def _tolerantly(tx: Tx, steps: _Steps) -> list[str]:
    conn = tx.conn
    with _leaving_views(conn):
        # While they are there, so that they get the new names.
        _rename(conn, steps)
        own = all_taken_down(conn, steps.going) + taken_down(conn, steps.new.sql_name)
        _drop_and_add(conn, steps)
    return put_up(tx, reworded(own, steps.going))


def _by_copy(tx: Tx, steps: _Steps) -> list[str]:
    conn, old, new = tx.conn, steps.old, steps.new
    own = all_taken_down(conn, steps.dropped) + taken_down(conn, old.sql_name)
    added = [column for column in steps.added if steps.initial(column) is not None]
    before = ", ".join([*(quote(name) for name, _ in steps.kept), *("?" * len(added))])
    after = ", ".join([*(quote(name) for _, name in steps.kept), *(quote(column.sql_name) for column in added)])
    conn.execute(new.create_sql(_COPY))
    conn.execute(
        f"INSERT INTO {quote(_COPY)} ({after}) SELECT {before} FROM {old.quoted}", [steps.initial(c) for c in added]
    )
    conn.execute(f"DROP TABLE {old.quoted}")
    # Without this, the renaming would look for the table in views and triggers that name it.
    conn.execute("PRAGMA legacy_alter_table = ON")
    try:
        conn.execute(f"ALTER TABLE {quote(_COPY)} RENAME TO {new.quoted}")
    finally:
        conn.execute("PRAGMA legacy_alter_table = OFF")
    return put_up(tx, reworded(own, {name: name for name in steps.dropped}))


def _rename(conn: sqlite3.Connection, steps: _Steps) -> None:
    """Give table and columns their names; a name that another column still has, which goes or gets another one, is
    taken from that first."""
    old, new = steps.old, steps.new
    if old.sql_name != new.sql_name:
        if old.sql_name.lower() == new.sql_name.lower():
            conn.execute(f"ALTER TABLE {old.quoted} RENAME TO {quote(_MOVED)}")
            conn.execute(f"ALTER TABLE {quote(_MOVED)} RENAME TO {new.quoted}")
        else:
            conn.execute(f"ALTER TABLE {old.quoted} RENAME TO {new.quoted}")
    leaving = steps.leaving
    for name in leaving:
        conn.execute(f"ALTER TABLE {new.quoted} RENAME COLUMN {quote(name)} TO {quote(_on_its_way(name))}")
    for before, after in steps.renamed:
        name = _on_its_way(before) if before in leaving else before
        conn.execute(f"ALTER TABLE {new.quoted} RENAME COLUMN {quote(name)} TO {quote(after)}")


def _on_its_way(name: str) -> str:
    return f"{layout.PREFIX}leaving:{name}"


def _drop_and_add(conn: sqlite3.Connection, steps: _Steps) -> None:
    table = steps.new.quoted
    for name in steps.going:
        conn.execute(f"ALTER TABLE {table} DROP COLUMN {quote(name)}")
    for name in steps.emptied:
        conn.execute(f"UPDATE {table} SET {quote(name)} = NULL WHERE {quote(name)} IS NOT NULL")
    for column in steps.added:
        _add(conn, table, column, steps.initial(column))


def _add(conn: sqlite3.Connection, table: str, column: Column, stored: Any) -> None:
    declared = f"{quote(column.sql_name)} {declared_type(column.kind)}".rstrip()
    default = None if stored is None else _default(column, stored)
    told = "" if default is None else f" DEFAULT {default}"
    conn.execute(f"ALTER TABLE {table} ADD COLUMN {declared}{told}")
    if _is_filled(column, stored):
        conn.execute(f"UPDATE {table} SET {quote(column.sql_name)} = ?", (stored,))


def _is_filled(column: Column, stored: Any) -> bool:
    """Whether the initial value of a column is written to every row."""
    return stored is not None and _default(column, stored) is None


def _default(column: Column, stored: Any) -> str | None:
    """The SQL by which SQLite takes exactly this value for what rows have that do not have the column; None where no
    constant is that value. Every insert of ours names all columns."""
    if isinstance(stored, bytes):
        sql = f"x'{stored.hex()}'"
    elif isinstance(stored, str):
        sql = "'" + stored.replace("'", "''") + "'"
    elif isinstance(stored, float):
        # A whole number would become an integer otherwise, and lose its sign where it is zero.
        sign = "-" if struct.pack(">d", stored)[0] & 0x80 else ""
        sql = f"({sign}CAST({abs(stored)!r} AS REAL))" if abs(stored) != float("inf") else f"{sign}9e999"
    else:
        sql = str(int(stored))
    with closing(sqlite3.connect(":memory:")) as probe:
        probe.execute("CREATE TABLE t (id)")
        probe.execute("INSERT INTO t VALUES (1)")
        try:
            probe.execute(f"ALTER TABLE t ADD COLUMN c {_affinity(column.kind)} DEFAULT {sql}")
            (found,) = probe.execute("SELECT c FROM t").fetchone()
        except sqlite3.Error:
            return None
    same = struct.pack(">d", found) == struct.pack(">d", stored) if isinstance(found, float) else found == stored
    return sql if same and type(found) is type(stored) else None


def _affinity(kind: Kind) -> str:
    # Without the collation, which the probe does not have.
    return declared_type(kind).partition(" ")[0]


@contextmanager
def _leaving_views(conn: sqlite3.Connection) -> Iterator[None]:
    """Let SQLite alter tables in the block although views, or triggers, name what is not there: these stay as they are.
    The schema is read anew afterwards; where the block has left one that can't be, this is a refusal, to be undone."""
    try:
        conn.execute("PRAGMA writable_schema = ON")
        try:
            yield
        finally:
            conn.execute("PRAGMA writable_schema = RESET")
        conn.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        raise sqlite3.OperationalError(str(error)) from error


def _indexes_on(conn: sqlite3.Connection, steps: _Steps) -> list[str]:
    """The app's indexes on columns that go. Those that name one in an expression are not among them."""
    going = {name.lower() for name in steps.going}
    if not going:
        return []
    found = conn.execute(
        """SELECT DISTINCT i.name, c.name FROM pragma_index_list(?) i, pragma_index_info(i.name) c
           WHERE i.origin = 'c'""",
        (steps.new.sql_name,),
    ).fetchall()
    return sorted({index for index, column in found if column is not None and column.lower() in going})
