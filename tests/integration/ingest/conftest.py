"""One ingest process and one resolver's double a module; a database of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ulid import ULID

from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.ingest_rig import Device, IngestRig
from anabranch.testkit.verdict_writer import VerdictWriter

Devices = Callable[..., Device]


@pytest.fixture(scope="module")
def module_url(databases: TestDatabases) -> Iterator[str]:
    """URL of a migrated database for one module."""
    url = databases.migrated()
    yield url
    databases.release(url)


@pytest.fixture(scope="module")
def rig(module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestRig]:
    """One ingest process. Its polling is too slow to hide a notification that is missing."""
    environment = {
        "ANABRANCH_POLL_INTERVAL_MS": "30000",
        "ANABRANCH_LIMIT_CALLS_PER_S": "100000",
        "ANABRANCH_LIMIT_CALLS_BURST": "100000",
    }
    with IngestRig(module_url, tmp_path_factory.mktemp("ingest"), environment=environment) as one:
        yield one


@pytest.fixture
def resolver(rig: IngestRig) -> Iterator[VerdictWriter]:
    """The writer of verdicts."""
    with VerdictWriter(rig.url) as writer:
        yield writer


@pytest.fixture
def db_name(rig: IngestRig) -> str:
    """A new database."""
    name = f"d{str(ULID()).lower()}"
    rig.new_database(name)
    return name


@pytest.fixture
def new_device(rig: IngestRig, db_name: str) -> Devices:
    """Makes devices of the database, each of a principal of its own unless ``subject`` says whose."""

    def make(subject: str = "", address: str = "") -> Device:
        key = rig.new_key(subject or f"user-{ULID()}")
        return Device(address or rig.addresses[0], key, db_name)

    return make


@pytest.fixture
def device(new_device: Devices) -> Device:
    """A new device."""
    return new_device()
