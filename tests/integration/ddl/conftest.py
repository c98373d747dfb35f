from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from anabranch.store import migrate
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.ddl.changes import changes_of
from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.enter import Entered, enter
from anabranch.store.ddl.install import installed
from anabranch.store.ddl.markers import Marker, waiting
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.databases import TestDatabases
from anabranch.values import Table

NAME = "ours"
NOW_MS = 1_700_000_000_000


@dataclass
class World:
    """A database of schema app, whose tables are altered by ``sql`` and followed by ``follow``, as a group does it."""

    conn: Session
    url: str
    position: int = 1_000

    def sql(self, statement: str) -> None:
        self.conn.execute(statement.encode())

    def rows(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        return self.conn.execute(statement.encode(), parameters).fetchall()

    def add(self, *tables: str, policy: Mapping[str, Any] | None = None, audience: str | None = None) -> None:
        for table in tables:
            add_table(self.conn, NAME, table, policy, audience=audience, now_ms=NOW_MS)

    @property
    def database(self) -> Database:
        return load_database(self.conn, NAME)

    def table(self, name: str) -> Table:
        return self.database.tables[name]

    def markers(self) -> list[Marker]:
        return waiting(self.conn, self.database.id)

    def changes(self) -> list[TableChange]:
        with self.conn.transaction(force_rollback=True):
            return changes_of(self.conn, self.database, self.markers(), position=self.position)

    def follow(self) -> Entered | None:
        """Enter all that waits, as one group does it."""
        self.position += 10
        with self.conn.transaction():
            changes = changes_of(self.conn, self.database, self.markers(), position=self.position)
            return enter(self.conn, self.database, changes, position=self.position, now_ms=NOW_MS)

    def followed(self) -> TableChange:
        """The one change that was entered."""
        entered = self.follow()
        assert entered is not None
        [change] = entered.changes
        return change


def _prepare(url: str) -> None:
    assert migrate.upgrade(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create schema app")
        create_database(conn, NAME, "app", now_ms=NOW_MS)
        assert installed(conn)


@pytest.fixture
def migrated_url(databases: TestDatabases) -> Iterator[str]:
    """URL of a database with schema anabranch and its event triggers, and a database of the empty schema app."""
    url = databases.prepared("ddl", _prepare)
    yield url
    databases.release(url)


@pytest.fixture
def world(migrated_url: str) -> Iterator[World]:
    with connect(migrated_url, application_name="alembic", autocommit=True) as conn:
        yield World(conn, migrated_url)
