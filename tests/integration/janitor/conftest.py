"""A database ``app`` with table todo, a writer of its log, and sweeps as of any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.runtime.config import load_settings
from anabranch.store.catalog import registration
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.log_writer import LogWriter
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.sweep import SweepMemory, Swept, run_once

DAY_MS = 86_400_000


def make_database(conn: Session, name: str, policy: dict[str, Any] | None = None) -> None:
    conn.execute(f"create schema {name}".encode())
    conn.execute(f'create table {name}.todo (id text collate "C" primary key, title text)'.encode())
    registration.create_database(conn, name, name, policy or {})
    registration.add_table(conn, name, "todo")


@dataclass
class Ground:
    """``now_ms``: when it was made; all that is written is written then."""

    url: str
    conn: Session
    now_ms: int
    settings: dict[str, Any] = field(default_factory=dict)
    memory: SweepMemory | None = None

    def __post_init__(self) -> None:
        make_database(self.conn, "app")
        self.writer = LogWriter(self.url, "app")
        self.id = self.writer.database.id

    def configure(self, **settings: Any) -> None:
        self.settings.update(settings)
        self.memory = None

    def sweep(self, days: float = 0, name: str | None = None) -> list[Swept] | None:
        """A sweep as of so many days later."""
        if self.memory is None:
            self.memory = SweepMemory(load_settings(JanitorSettings, postgres_url=self.url, **self.settings))
        return run_once(self.memory, self.now_ms + round(days * DAY_MS), threading.Event(), name)

    def swept(self, days: float = 0) -> Swept:
        """A sweep of database app, which must not be another's turn."""
        found = self.sweep(days, "app")
        assert found is not None
        return found[0]

    def write(self, groups: int, rows: int = 2) -> list[int]:
        """Groups of inserts; their positions."""
        start = self.number("select count(*) from app.todo")
        return [
            self.writer.insert("todo", [[f"{start + group * rows + row:06}", "x"] for row in range(rows)])
            for group in range(groups)
        ]

    def node(self, node_id: str, acknowledged: int, seen_days: float = 0) -> None:
        """A node that was last seen so many days after the beginning."""
        self.conn.execute(
            "insert into anabranch.nodes "
            "(database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged) "
            "values (%s, %s, 'gate', 'p', 'e', '', %s, %s) on conflict (database_id, node_id) "
            "do update set last_seen_ms = excluded.last_seen_ms, acknowledged = excluded.acknowledged",
            (self.id, node_id, self.now_ms + round(seen_days * DAY_MS), acknowledged),
        )

    def number(self, statement: str, *parameters: Any) -> int:
        row = self.conn.execute(statement.encode(), parameters or None).fetchone()
        assert row is not None
        return int(row[0])

    @property
    def floor(self) -> int:
        return self.number("select floor_ms from anabranch.databases where id = %s", self.id)

    def positions(self, table: str = "log") -> list[int]:
        """The positions that a table still has rows of."""
        rows = self.conn.execute(
            f"select distinct position from anabranch.{table} where database_id = %s order by 1".encode(), (self.id,)
        ).fetchall()
        return [position for (position,) in rows]


@pytest.fixture
def ground(migrated_url: str) -> Iterator[Ground]:
    with connect(migrated_url, application_name="test", autocommit=True) as conn:
        made = Ground(migrated_url, conn, time.time_ns() // 1_000_000)
        yield made
        made.writer.close()
