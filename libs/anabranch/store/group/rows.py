"""Set statements on one synced table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from anabranch.store.cells.binary_cells import row_loader
from anabranch.store.group.rows_statements import Statements
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Kind, Table, key_text

T = TypeVar("T")
Key = tuple[Cell, ...]
Row = list[Cell]
Answer = Callable[[], T]
"""Returns the result of a statement, once. In a pipeline, the result is there when everything before it is done."""


@dataclass(frozen=True, slots=True)
class Locked:
    """``rows``: key text -> the row, locked. ``busy``: key texts of rows that another transaction holds. A key in
    neither has no row."""

    rows: dict[str, Row]
    busy: set[str]


class TableSql:
    """The statements of one table, compiled once per schema version.

    Keys are tuples of the key's cells in the key's order, and results are by key text (``schema.key_text``); rows are
    lists of cells in the order of ``table.columns``. Every method sends one statement on one connection, whatever the
    number of rows, with the rows in key order (no rows, no statement), and returns a function that returns the answer:
    within a pipeline the caller can send other statements, or do something else, before it asks. A key named twice in
    one call is a ValueError, and NUL in text a NulInTextError, both before anything is sent. A refusal by Postgres is a
    ``psycopg.Error`` with its SQLSTATE and ``diag.constraint_name``. Where the result has fewer rows than were named,
    Postgres did nothing for the missing ones.
    """

    __slots__ = ("_key_columns", "_load", "_load_key", "_statements", "_text_of", "schema_name", "table")

    def __init__(self, schema_name: str, table: Table) -> None:
        self.schema_name = schema_name
        self.table = table
        self._statements = Statements(schema_name, table)
        self._load = row_loader(table.columns)
        self._load_key = row_loader([table.by_name[name] for name in table.key_columns])
        self._text_of = _key_text_of_row(table)
        self._key_columns = table.key_columns

    def lock(self, conn: Connection, keys: Sequence[Key], *, new: Sequence[Key] = ()) -> Answer[Locked]:
        """Lock the rows of ``keys`` FOR UPDATE, without waiting, and read them. Where rows are missing, a second
        statement separates the rows that another transaction holds from the rows that do not exist. ``new`` are
        further keys, which probably have no row: they are looked for first, and locked only where there is one."""
        found = self.present(conn, new)
        keys = _in_order(keys)
        locked = self._lock(conn, keys)

        def answer() -> Locked:
            there = found()
            old = [key for key in new if key_text(key) in there] if there else []
            rows = {**locked(), **self._lock(conn, _in_order(old))()}
            if len(rows) == len(keys) + len(old):
                return Locked(rows, set())
            return Locked(rows, self.present(conn, [key for key in [*keys, *old] if key_text(key) not in rows])())

        return answer

    def _lock(self, conn: Connection, keys: Sequence[Key]) -> Answer[dict[str, Row]]:
        if not keys:
            return dict
        cursor = run(conn, *self._statements.lock(_turned(keys)))
        return lambda: self._by_key(cursor.fetchall())

    def present(self, conn: Connection, keys: Sequence[Key]) -> Answer[set[str]]:
        """The key texts of those of ``keys`` that have a row."""
        if not keys:
            return set
        cursor = run(conn, *self._statements.present(_turned(_in_order(keys))))
        return lambda: {key_text(key) for key in self._load_key(cursor.fetchall())}

    def read(self, conn: Connection, keys: Sequence[Key]) -> Answer[dict[str, Row]]:
        """Read the rows of ``keys`` without locks."""
        keys = _in_order(keys)
        if not keys:
            return dict
        cursor = run(conn, *self._statements.read(_turned(keys)))
        return lambda: self._by_key(cursor.fetchall())

    def insert(
        self, conn: Connection, columns: Sequence[str], rows: Sequence[Sequence[Cell]]
    ) -> Answer[dict[str, Row]]:
        """Insert ``rows``, each with one cell for each of ``columns`` (the key's among them); other columns get their
        defaults. The answer is the rows as stored, by the stored key."""
        places = [columns.index(name) for name in self._key_columns]
        keys = [tuple([row[i] for i in places]) for row in rows]
        order = _order(keys)
        if not order:
            return dict
        values = _turned([rows[i] for i in order])
        cursor = run(conn, *self._statements.insert(tuple(columns), values))
        return lambda: self._by_key(cursor.fetchall())

    def update(
        self,
        conn: Connection,
        columns: Sequence[str],
        keys: Sequence[Key],
        values: Sequence[Sequence[Cell]],
        *,
        defaults: Sequence[str] = (),
    ) -> Answer[dict[str, Row]]:
        """Set ``columns`` of the row of ``keys[i]`` to ``values[i]``, and the columns ``defaults`` to their default.
        The answer is the whole rows as stored, by key."""
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} rows of values")
        if not columns and not defaults:
            raise ValueError("an update of no column")
        order = _order(keys)
        if not order:
            return dict
        statement, parameters = self._statements.update(
            tuple(columns),
            _turned([keys[i] for i in order]),
            _turned([values[i] for i in order]),
            tuple(defaults),
        )
        cursor = run(conn, statement, parameters)
        return lambda: self._by_key(cursor.fetchall())

    def delete(self, conn: Connection, keys: Sequence[Key]) -> Answer[set[str]]:
        """Delete the rows of ``keys``. The answer is the key texts of the rows that existed."""
        keys = _in_order(keys)
        if not keys:
            return set
        cursor = run(conn, *self._statements.delete(_turned(keys)))
        return lambda: {key_text(key) for key in self._load_key(cursor.fetchall())}

    def _by_key(self, fetched: Sequence[Sequence[object]]) -> dict[str, Row]:
        rows = self._load(fetched)
        return dict(zip(map(self._text_of, rows), rows, strict=True))


def _key_text_of_row(table: Table) -> Callable[[Row], str]:
    places = table.key_index
    if len(places) == 1:
        (place,) = places
        if table.columns[place].kind in (Kind.STRING, Kind.UUID, Kind.LITERAL):
            return lambda row: row[place]  # type: ignore[return-value]
    return lambda row: key_text([row[i] for i in places])


def _order(keys: Sequence[Key]) -> list[int]:
    """The places of ``keys`` in their order.

    Raises:
        ValueError: one is named twice.
    """
    if len(set(keys)) != len(keys):
        raise ValueError("a key is named twice in one statement")
    return sorted(range(len(keys)), key=keys.__getitem__)


def _in_order(keys: Sequence[Key]) -> list[Key]:
    return [keys[i] for i in _order(keys)]


def _turned(rows: Sequence[Sequence[Cell]]) -> list[Sequence[Cell]]:
    """Rows to columns."""
    return list(zip(*rows, strict=True))
