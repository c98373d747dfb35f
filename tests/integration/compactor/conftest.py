"""One Spark session a process, and a database with a table whose log a test writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anabranch.clock import Clock
from anabranch.columnar.manifest import Manifest, epoch_folder, from_json
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake import compactions
from anabranch.store.session.engine import connect
from anabranch.testkit.log_writer import LogWriter
from anabranch_compactor.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch_compactor.compact import RunOutcome


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores, in which a task that dies has another try."""
    with spark_session("local[2,2]") as session:
        yield session


@dataclass
class Lake:
    """A database ``app`` in schema ``app``, its writer, and the root that it is compacted into."""

    url: str
    folder: Path
    spark: SparkSession
    writers: list[LogWriter] = field(default_factory=list)

    @property
    def root(self) -> str:
        """As the compactor takes it."""
        return f"file:{self.folder}"

    def sql(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL with schema app in the search path; its rows."""
        with connect(self.url, application_name="test", autocommit=True) as conn:
            conn.execute("set search_path to app")
            cursor = conn.execute(text.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def writer(self) -> LogWriter:
        """A writer that knows the tables as they are registered now."""
        self.writers.append(LogWriter(self.url, "app"))
        return self.writers[-1]

    def add_table(self, name: str, definition: str) -> None:
        """Make a table and sync it."""
        self.sql(definition)
        with connect(self.url, application_name="test", autocommit=True) as conn:
            registration.add_table(conn, "app", name)

    def compact(self, *, orphan_grace_ms: int = 86_400_000) -> RunOutcome:
        """One run."""
        from anabranch_compactor.compact import Options, compact

        return compact(lambda: self.spark, "app", Options(self.url, self.root, Clock(), orphan_grace_ms))

    def manifest(self) -> Manifest:
        """The newest published one."""
        with connect(self.url, application_name="test", autocommit=True) as conn:
            database = load_database(conn, "app")
            found = compactions.last_published(conn, database.id, database.epoch)
        assert found is not None
        return from_json(found.manifest)

    @property
    def lake_folder(self) -> Path:
        """The folder of the epoch."""
        manifest = self.manifest()
        return self.folder / epoch_folder(manifest.database, manifest.epoch)

    def paths(self, table: str, part: str) -> list[str]:
        """The live files of a table: of changes, conflicts or base."""
        files = self.manifest().tables[table]
        chosen = files.base.files if part == "base" and files.base else getattr(files, part)
        return [str(self.lake_folder / file.path) for file in chosen]


@pytest.fixture
def make_lake(migrated_url: str, tmp_path: Path, spark: SparkSession) -> Iterator[Callable[..., Lake]]:
    """``make_lake(name, definition)``: a lake with one table."""
    made: list[Lake] = []

    def make(name: str, definition: str) -> Lake:
        lake = Lake(migrated_url, tmp_path / "lake", spark)
        made.append(lake)
        lake.sql("create schema app")
        with connect(migrated_url, application_name="test", autocommit=True) as conn:
            registration.create_database(conn, "app", "app")
        lake.add_table(name, definition)
        return lake

    yield make
    for lake in made:
        for writer in lake.writers:
            writer.close()


TODO = 'create table todo (id text collate "C" primary key, title text, done boolean, n bigint)'


@pytest.fixture
def lake(make_lake: Callable[..., Lake]) -> Lake:
    """A lake with table todo (id, title, done, n)."""
    return make_lake("todo", TODO)
