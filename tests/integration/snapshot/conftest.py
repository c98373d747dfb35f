"""One snapshot process a module; a database of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.snapshot.audience_writer import AudienceWriter, restrict
from ulid import ULID

from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.base_writer import BaseWriter
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import until

PULL_SOURCES = "anabranch_pull_sources_total"
ITEM = "create table {schema}.item (id text primary key, title text, n bigint, data bytea)"


@dataclass
class Place:
    """A database with a synced table ``item``, or others."""

    rig: SnapshotRig
    name: str
    conn: Session
    """In autocommit. What it writes is not captured: nobody here would drain it."""
    make_writer: Callable[[], LogWriter]
    make_reader: Callable[..., Reader]

    @property
    def schema(self) -> str:
        """Its Postgres schema, as SQL takes it."""
        return f'"app_{self.name}"'

    def add_table(self, definition: str, name: str) -> None:
        """Make a table, by a CREATE TABLE with ``{schema}`` in it, and sync it."""
        self.conn.execute(definition.format(schema=self.schema).encode())
        add_table(self.conn, self.name, name)


@pytest.fixture(scope="module")
def module_url(databases: TestDatabases) -> Iterator[str]:
    """URL of a migrated database for one module."""
    url = databases.migrated()
    yield url
    databases.release(url)


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    """Settings of the module's snapshot process."""
    return {}


@pytest.fixture(scope="module")
def rig(
    module_url: str, tmp_path_factory: pytest.TempPathFactory, rig_environment: dict[str, str]
) -> Iterator[SnapshotRig]:
    """One snapshot process. Its polling is too slow to hide a notification that is missing."""
    environment = {
        "ANABRANCH_POLL_INTERVAL_MS": "30000",
        "ANABRANCH_HEARTBEAT_MS": "200",
        "ANABRANCH_NODE_REPORT_MS": "50",
        **rig_environment,
    }
    with SnapshotRig(module_url, tmp_path_factory.mktemp("snapshot"), environment=environment) as one:
        yield one


@pytest.fixture
def place(rig: SnapshotRig) -> Iterator[Place]:
    """A new database with the table ``item``."""
    name = f"d{str(ULID()).lower()}"
    writers: list[LogWriter] = []
    readers: list[Reader] = []

    def make_writer() -> LogWriter:
        writers.append(LogWriter(rig.url, name))
        return writers[-1]

    def make_reader(**options: str | int) -> Reader:
        readers.append(rig.reader(name, **options))  # type: ignore[arg-type]
        return readers[-1]

    with connect(rig.url, application_name="test", autocommit=True) as conn:
        conn.execute("select set_config('anabranch.resolver', pg_backend_pid()::text, false)")
        conn.execute(f'create schema "app_{name}"'.encode())
        create_database(conn, name, f"app_{name}")
        made = Place(rig, name, conn, make_writer, make_reader)
        made.add_table(ITEM, "item")
        yield made
        for reader in readers:
            reader.close()
        for writer in writers:
            writer.close()


@pytest.fixture
def restricted(place: Place) -> Place:
    """The place with the restricted table ``job``, whose audiences are teams by claim."""
    restrict(place)
    # A stream that begins a moment before the service has heard of the rules ends: its caller is to call again.
    version, reader = load_database(place.conn, place.name).schema_version, place.make_reader()
    until(lambda: reader.describe().state.schema_version == version, why="the service has heard of the rules")
    return place


@pytest.fixture
def jobs(restricted: Place) -> Iterator[AudienceWriter]:
    """The writer of groups of the restricted table."""
    made = AudienceWriter(restricted.rig.url, restricted.name)
    yield made
    made.close()


@pytest.fixture
def writer(place: Place) -> LogWriter:
    """The writer of groups."""
    return place.make_writer()


@pytest.fixture
def reader(place: Place) -> Reader:
    """A reader of the place."""
    return place.make_reader()


@pytest.fixture
def lake(place: Place, tmp_path: Path) -> BaseWriter:
    """The publisher of bases of the place."""
    return BaseWriter(place.conn, place.rig.url, place.name, tmp_path / "lake")


@pytest.fixture
def from_parquet(place: Place) -> Callable[[], float]:
    """How many pulls of this place came from Parquet."""
    return lambda: place.rig.metric(PULL_SOURCES, database=place.name, source="parquet")
