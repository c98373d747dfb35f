"""The stage that a bench runs on: Postgres, the services as real processes, one database with its tables."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anabranch.bench.workload import DATABASE, DEFINITION, SCHEMA, TABLE
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.runtime.children import launch
from anabranch.runtime.config import ServiceSettings
from anabranch.store import migrate
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import create_database, drop_database
from anabranch.testkit.stack import Stack
from anabranch.values import Table

EVERY_TEAM = "select 'team:' || n from generate_series(0, 99) n"
"""Gives each principal the audiences of all teams."""


@dataclass(frozen=True, slots=True)
class Stage:
    """``url`` is the database that the services use."""

    server_url: str
    url: str
    stack: Stack
    database: Database
    folder: Path

    @property
    def table(self) -> Table:
        """The synced table that is written to."""
        return self.database.tables[TABLE]


def _prepare(url: str, definition: str, tables: Sequence[str], audience: str | None) -> Database:
    migrate.upgrade(url)
    with connect(url, application_name="anabranch-bench", autocommit=True) as conn:
        conn.execute(definition.encode())
        registration.create_database(conn, DATABASE, SCHEMA)
        for table in tables:
            registration.add_table(conn, DATABASE, table, audience=audience)
        if audience is not None:
            set_audience_rules(conn, DATABASE, {"memberships": [EVERY_TEAM]})
        conn.execute("analyze")
        return load_database(conn, DATABASE)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """URL of the server to measure on: that of ANABRANCH_POSTGRES_URL, else one of its own in ``folder``."""
    given = os.environ.get("ANABRANCH_POSTGRES_URL")
    if given:
        yield given
        return
    with EmbeddedPostgres(folder / "postgres") as postgres:
        yield postgres.start()


@contextmanager
def fresh_database(
    server_url: str, definition: str = DEFINITION, tables: Sequence[str] = (TABLE,), audience: str | None = None
) -> Iterator[tuple[str, Database]]:
    """A new Postgres database with the schema that ``definition`` makes, its ``tables`` registered in this order, with
    an ``audience`` expression if one is given, and nothing else; dropped at the end."""
    name = f"anabranch_bench_{time.time_ns()}"
    url = create_database(server_url, name)
    try:
        yield url, _prepare(url, definition, tables, audience)
    finally:
        drop_database(server_url, name)


@contextmanager
def staged(server_url: str, folder: Path, url: str, database: Database, resolvers: int = 1) -> Iterator[Stage]:
    """The services on a database that is there. ``folder`` takes their logs and is made."""
    folder.mkdir()
    # Tests have readiness checked ten times a second, which costs time; a bench uses the default interval.
    as_elsewhere = {"ANABRANCH_READY_INTERVAL_MS": str(ServiceSettings.model_fields["ready_interval_ms"].default)}
    with Stack(url, folder=folder, resolvers=resolvers, environment=as_elsewhere, launch=launch) as stack:
        yield Stage(server_url, url, stack, database, folder)


@contextmanager
def stage(
    definition: str = DEFINITION, tables: Sequence[str] = (TABLE,), audience: str | None = None
) -> Iterator[Stage]:
    """Everything running; ended and removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name:
        folder = Path(name)
        with (
            server(folder) as server_url,
            fresh_database(server_url, definition, tables, audience) as (url, database),
            staged(server_url, folder / "services", url, database) as on,
        ):
            yield on
