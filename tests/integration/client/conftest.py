"""A whole stack once for these tests; each test makes a database of its own in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import RemoteDb, SyncedDb
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack

_numbers = itertools.count(1)


@dataclass
class Place:
    """One database in a running stack, and the devices on it."""

    stack: Stack
    name: str
    folder: Path
    devices: list[SyncedDb] = field(default_factory=list)

    def remote(self, subject: str = "device", **options: Any) -> RemoteDb:
        return remote_of(self.stack.addresses, self.stack.new_key(subject, database=self.name), **options)

    def device(self, file: str, *, subject: str = "device", remote: RemoteDb | None = None, **options: Any) -> SyncedDb:
        made = SyncedDb(
            self.folder / f"{file}.db", remote or self.remote(subject), self.name, node_name=file, **options
        )
        self.devices.append(made)
        return made

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with connect(self.stack.database_url, application_name="test", autocommit=True) as conn:
            conn.execute(f'set search_path = "{self.name}"'.encode())
            cursor = conn.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def stack(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = databases.fresh()
    with Stack(url, folder=tmp_path_factory.mktemp("stack")) as running:
        yield running
    databases.release(url)


class Maker:
    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self.places: list[Place] = []

    def __call__(
        self,
        tables: Mapping[str, str],
        *,
        policy: Mapping[str, Any] | None = None,
        table_policies: Mapping[str, Mapping[str, Any]] | None = None,
        setup: Sequence[str] = (),
        audiences: Mapping[str, str] | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> Place:
        place = Place(self.stack, f"d{next(_numbers)}", self.folder)
        with connect(self.stack.database_url, application_name="test", autocommit=True) as conn:
            conn.execute(f'create schema "{place.name}"'.encode())
        for name, columns in tables.items():
            quoted = name.replace('"', '""')
            place.sql(f'create table "{quoted}" ({columns})')
        for statement in setup:
            place.sql(statement)
        with connect(self.stack.database_url, application_name="test", autocommit=True) as conn:
            registration.create_database(conn, place.name, place.name, policy)
            for name in tables:
                own = (table_policies or {}).get(name)
                registration.add_table(conn, place.name, name, own, audience=(audiences or {}).get(name))
            if rules is not None:
                set_audience_rules(conn, place.name, rules)
        self.places.append(place)
        return place


@pytest.fixture
def place(stack: Stack, tmp_path: Path) -> Iterator[Maker]:
    """Maker of a database with tables: name to the columns' SQL."""
    maker = Maker(stack, tmp_path)
    yield maker
    for made in maker.places:
        for device in made.devices:
            device.close()
