from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from anabranch.store import migrate
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.databases import TestDatabases
from anabranch.values import Table

Register = Callable[[str, str], Table]


def _prepare(url: str) -> None:
    migrate.upgrade(url)
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute("create schema app")
        create_database(conn, "app", "app", now_ms=0)


@pytest.fixture(scope="module")
def rows_url(databases: TestDatabases) -> Iterator[str]:
    """URL of a database with database "app" on schema app, for one module."""
    url = databases.prepared("rows", _prepare)
    yield url
    databases.release(url)


@pytest.fixture(scope="module")
def conn(rows_url: str) -> Iterator[Session]:
    with connect(rows_url, application_name="test", autocommit=True) as session:
        yield session


@pytest.fixture(scope="module")
def register(conn: Session) -> Register:
    """Runs a CREATE TABLE and registers that table."""

    def run(name: str, statement: str) -> Table:
        conn.execute(statement.encode())
        add_table(conn, "app", name, now_ms=0)
        return load_database(conn, "app").tables[name]

    return run
