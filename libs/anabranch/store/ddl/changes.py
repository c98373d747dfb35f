"""The meaning of the markers that wait for a database: reads what ``difference`` has to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.markers import Marker

Connection = psycopg.Connection[Any]


def changes_of(conn: Connection, database: Database, markers: Sequence[Marker], *, position: int) -> list[TableChange]:
    """One change for each table that ``markers`` name, in the order of their first markers: tables of which nothing
    changed in the end are among them, with ``after`` equal to ``before``; new ones that the database's policy leaves
    out are not. ``position``: that of the group. Nothing is written.

    Raises:
        psycopg.Error: the catalog can't be read.
    """
    raise NotImplementedError
