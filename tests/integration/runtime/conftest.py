"""A migrated database for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.testkit.databases import TestDatabases


@pytest.fixture(scope="module")
def url(databases: TestDatabases) -> Iterator[str]:
    """URL of a database with schema `anabranch`, for one module."""
    made = databases.migrated()
    yield made
    databases.release(made)
