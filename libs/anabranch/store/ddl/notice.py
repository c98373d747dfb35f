"""Notice DDL where no event trigger does: the catalog is compared with the shapes that are registered."""

from __future__ import annotations

from typing import Any

import psycopg

from anabranch.store.catalog.databases import Database

Connection = psycopg.Connection[Any]


def notice(conn: Connection, database: Database) -> bool:
    """Compare the tables of a database with their shapes on record (the last marker's that waits, else that of the
    registration), and write a marker for each that differs. Whether there was one. Cheap enough for each group where
    nothing differs: one statement. Also where event triggers are installed it finds only what these missed.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    raise NotImplementedError
