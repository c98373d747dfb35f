"""A database with one synced table, for tests of whole services that want no more of Postgres."""

from __future__ import annotations

from anabranch.store import migrate
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases


def prepare(url: str, database: str = "notes", table: str = "note") -> None:
    """Make ``database`` of schema public, with ``table`` of an id and a body."""
    migrate.upgrade(url)
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute(f"create table public.{table} (id text primary key, body text)".encode())
        create_database(conn, database, "public")
        add_table(conn, database, table)


def notes_url(databases: TestDatabases) -> str:
    """URL of a new Postgres database with database "notes" and its table "note"; the caller releases it."""
    return databases.prepared("notes", prepare)
