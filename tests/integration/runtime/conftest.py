"""A migrated database for each module, with a synced one in it where calls need that it exists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.store.catalog.registration import create_database
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases


@pytest.fixture(scope="module")
def url(databases: TestDatabases) -> Iterator[str]:
    """URL of a database with schema `anabranch`, for one module."""
    made = databases.migrated()
    yield made
    databases.release(made)


@pytest.fixture(scope="module")
def shop(url: str) -> None:
    """The synced database that calls of ``testkit.echo`` name, and keys can be made for."""
    with connect(url, application_name="test", autocommit=True) as conn:
        create_database(conn, "shop", "public", {})
