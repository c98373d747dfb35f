"""Set statements on one synced table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from anabranch.schema.cells import Cell
from anabranch.schema.table import Table

Key = tuple[Cell, ...]
Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Locked:
    """``rows``: key text -> the row, locked. ``busy``: key texts of rows that another transaction holds. A key in neither
    has no row."""

    rows: dict[str, list[Cell]]
    busy: set[str]


class TableSql:
    """The statements of one table, compiled once per schema version.

    Keys are tuples of the key's cells in the key's order and results are by key text (``schema.key_text``); rows are lists
    of cells in the order of ``table.columns``. Every method is one statement on one connection, whatever the number of
    rows, with the rows in key order; none with no rows. A key named twice in one call is a ValueError, and so is a NUL in
    text (named by its column), both before anything is sent. What Postgres refuses is a ``psycopg.Error`` with its SQLSTATE
    and ``diag.constraint_name``. Fewer rows in the result than were named: Postgres did nothing for those.
    """

    def __init__(self, schema_name: str, table: Table) -> None:
        self.schema_name = schema_name
        self.table = table

    def lock(self, conn: Connection, keys: Sequence[Key]) -> Locked:
        """Lock the rows of ``keys`` FOR UPDATE, without waiting, and read them. A second statement tells busy rows from
        absent ones when rows are missing."""
        raise NotImplementedError

    def read(self, conn: Connection, keys: Sequence[Key]) -> dict[str, list[Cell]]:
        """Read the rows of ``keys`` without locks."""
        raise NotImplementedError

    def insert(
        self, conn: Connection, columns: Sequence[str], rows: Sequence[Sequence[Cell]]
    ) -> dict[str, list[Cell]]:
        """Insert ``rows``, each with one cell for each of ``columns`` (the key's among them); other columns get their
        defaults. Gives what was stored, by the stored key."""
        raise NotImplementedError

    def update(
        self, conn: Connection, columns: Sequence[str], keys: Sequence[Key], values: Sequence[Sequence[Cell]]
    ) -> dict[str, list[Cell]]:
        """Set ``columns`` of the row of ``keys[i]`` to ``values[i]``. Gives the whole rows as stored."""
        raise NotImplementedError

    def delete(self, conn: Connection, keys: Sequence[Key]) -> set[str]:
        """Delete the rows of ``keys``. Gives the key texts of those that were there."""
        raise NotImplementedError
