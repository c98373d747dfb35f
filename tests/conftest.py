"""Fixtures for every test: one real Postgres a pytest process, and a new database in it for each test.

`ANABRANCH_POSTGRES_URL` names a server to use in place of the embedded one: version 14 or newer, a
superuser's URL. `ANABRANCH_POSTGRES_MAJOR` names another version of the embedded one (16).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from anabranch.embedded import UNSYNCED
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.own_folder import memory_folder

# How long an example takes says how busy the machine is, not whether it is right.
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tests")

pytest_plugins = ["pytester"]

POSTGRES_URL = os.environ.get("ANABRANCH_POSTGRES_URL")
POSTGRES_MAJOR = int(os.environ["ANABRANCH_POSTGRES_MAJOR"]) if os.environ.get("ANABRANCH_POSTGRES_MAJOR") else None


def pytest_report_header() -> str:
    """Say which server the tests use."""
    if POSTGRES_URL:
        return "postgres: the server of ANABRANCH_POSTGRES_URL"
    return f"postgres: embedded {POSTGRES_MAJOR or ''}".rstrip()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Superuser URL of a running server, the same for all tests of this process."""
    if POSTGRES_URL:
        yield POSTGRES_URL
        return
    settings = {**UNSYNCED, "max_prepared_transactions": "8", "max_wal_size": "256MB"}
    with (
        memory_folder("test-postgres") as folder,
        EmbeddedPostgres(folder, settings=settings, major=POSTGRES_MAJOR) as server,
    ):
        yield server.url


@pytest.fixture(scope="session")
def databases(postgres_server: str) -> Iterator[TestDatabases]:
    """Maker of databases on that server, with prepared templates."""
    made = TestDatabases(postgres_server, file_copies=not POSTGRES_URL)
    yield made
    made.close()


@pytest.fixture
def database_url(databases: TestDatabases) -> Iterator[str]:
    """URL of a new, empty database for one test."""
    url = databases.fresh()
    yield url
    databases.release(url)


@pytest.fixture
def migrated_url(databases: TestDatabases) -> Iterator[str]:
    """URL of a new database with schema `anabranch` at this release's revision, for one test."""
    url = databases.migrated()
    yield url
    databases.release(url)
