"""One database for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.store.session.engine import Session, connect
from anabranch.testkit.databases import TestDatabases


@pytest.fixture(scope="module")
def session(databases: TestDatabases) -> Iterator[Session]:
    """In a new database that has no table of anybody."""
    url = databases.fresh()
    with connect(url, application_name="test", autocommit=True) as opened:
        yield opened
    databases.release(url)
