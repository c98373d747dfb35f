"""Stories about devices and a server, written in Python and run against a ``Stack``.

    story = Story(stack, folder, {"todo": "id text primary key, title text, done boolean"})
    a, b = story.node("a"), story.node("b")
    x = new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    story.sync()
    b.offline()
    ...
    story.check()

Each node is a ``SyncedDb`` on a file of its own that syncs only on demand. ``check`` is for the end of every story.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ulid import ULID

from anabranch.client import RemoteDb
from anabranch.store.catalog import databases, registration
from anabranch.store.catalog.sums import scan_sum, sum_to_bytes
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import connect
from anabranch.testkit.network import Network
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack
from anabranch.testkit.story_node import StoryNode
from anabranch.v1 import value_pb2

_numbers = itertools.count(1)
_LOOK_S = 0.01
DRAINED_S = 30.0
"""Seconds within which captured changes must be in the log."""
_SYNC_ROUNDS = 10
_DAY_MS = 24 * 3600 * 1000


def new_id() -> str:
    """A new ULID, for keys and ids."""
    return str(ULID())


class Story:
    """A database in a running stack, and the nodes on it. ``tables``: name to the columns' SQL, made in that order in a
    new schema and registered with ``table_policies``; ``setup``: more SQL before that."""

    def __init__(
        self,
        stack: Stack,
        folder: Path,
        tables: Mapping[str, str],
        *,
        policy: Mapping[str, Any] | None = None,
        table_policies: Mapping[str, Mapping[str, Any]] | None = None,
        setup: Sequence[str] = (),
    ) -> None:
        self.stack = stack
        self.folder = folder
        self.name = f"story{next(_numbers)}"
        self.nodes: list[StoryNode] = []
        self._clock_offset_ms = 0
        self.conn = connect(stack.database_url, application_name="anabranch-story", autocommit=True)
        self.sql(f"create schema {self.name}")
        for name, columns in tables.items():
            self.sql(f"create table {self.name}.{quote(name)} ({columns.replace('@', self.name + '.')})")
        for statement in setup:
            self.sql(statement.replace("@", f"{self.name}."))
        registration.create_database(self.conn, self.name, self.name, policy)
        for name in tables:
            registration.add_table(self.conn, self.name, name, (table_policies or {}).get(name))

    def sql(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL as an application does, committed at once; return its rows."""
        cursor = self.conn.execute(text.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def remote(self, key: str, network: Network | None = None) -> RemoteDb:
        """The stack's services with a key."""
        return remote_of(self.stack.addresses, key, [network] if network else [])

    def node(self, name: str, *, subject: str | None = None, start: bool = True) -> StoryNode:
        """A new node with a key of its own; it starts with a pull."""
        key = self.stack.new_key(subject or f"user-{name}", database=self.name)
        return self._open(name, self.folder / f"{self.name}-{name}.db", key, start)

    def _open(self, name: str, file: Path, key: str, start: bool) -> StoryNode:
        node = StoryNode(self, name, file, key)
        self.nodes.append(node)
        if start:
            node.db.start(background=False)
        return node

    def copy(self, node: StoryNode, name: str) -> StoryNode:
        """A copy of a node's file, write-ahead log included, as another device of the same person."""
        file = self.folder / f"{self.name}-{name}.db"
        for suffix in ("", "-wal"):
            source = node.file.with_name(node.file.name + suffix)
            if source.exists():
                shutil.copy(source, file.with_name(file.name + suffix))
        copied = self._open(name, file, node.key, start=True)
        copied.made = list(node.made)
        copied.replayed = set(node.replayed)
        return copied

    def sync(self, *nodes: StoryNode) -> None:
        """Have the nodes (all that are online, where none are named) send and read, again until nothing changes."""
        self.drained()
        for _ in range(_SYNC_ROUNDS):
            before = self._state()
            for node in nodes or [n for n in self.nodes if not n.network.is_cut]:
                node.sync()
            if self._state() == before:
                return
        raise AssertionError(f"something still changes after {_SYNC_ROUNDS} rounds")

    def drained(self, wait_s: float = DRAINED_S) -> None:
        """Wait until everything that was written by SQL so far is in the log."""
        end = time.monotonic() + wait_s
        while self.sql("select 1 from anabranch.captured where database_id = %s limit 1", [self.database.id]):
            assert time.monotonic() < end, "what was written by SQL does not come into the log"
            time.sleep(_LOOK_S)

    def _state(self) -> list[tuple[int, int, int]]:
        return [(s.cursor, s.queued, s.dead) for s in (n.db.status() for n in self.nodes)]

    def advance(self, days: float) -> None:
        """Let time pass for servers and nodes alike."""
        self._clock_offset_ms += int(days * _DAY_MS)
        self.stack.set_clock_offset(self._clock_offset_ms)

    def now_ms(self) -> int:
        """The story's time."""
        return time.time_ns() // 1_000_000 + self._clock_offset_ms

    def server(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The server's rows, ordered by the first column."""
        names = ", ".join(quote(c) for c in columns) or "*"
        return self.sql(f"select {names} from {self.name}.{quote(table)} order by 1")

    @property
    def database(self) -> databases.Database:
        """The database as registered."""
        return databases.load_database(self.conn, self.name)

    @property
    def conflicts(self) -> list[tuple[str, str, str, Any]]:
        """Table, key, column and losing value of every conflict, in the log's order."""
        found = []
        database = self.database
        for table_id, key, column, raw in self.sql(
            "select table_id, key, column_name, losing_value from anabranch.conflicts where database_id = %s"
            " order by position, batch_id, ordinal",
            [database.id],
        ):
            value = value_pb2.Value.FromString(raw)
            arm = value.WhichOneof("kind")
            found.append((database.tables_by_id[table_id].name, key, column, arm and getattr(value, arm)))
        return found

    @property
    def logged(self) -> list[str]:
        """The ids of the accepted batches, in the log's order."""
        rows = self.sql(
            "select distinct position, batch_id from anabranch.log where database_id = %s order by 1, 2",
            [self.database.id],
        )
        return [batch_id for _, batch_id in rows]

    def check(self) -> None:
        """Check the end of a story, after a last sync: every queue is empty; every batch ever made is in the log or in
        a dead queue, with a reason; and every node's rows are the server's, by the table sums on both sides, by a
        comparison that does not use them, and in a file that SQLite's integrity check passes.

        Raises:
            AssertionError: one of these does not hold.
        """
        for node in self.nodes:
            node.online()
        self.sync()
        database = self.database
        sums = {}
        for name, table in database.tables.items():
            with self.conn.transaction():
                count, total = scan_sum(self.conn, self.name, table)
            sums[name] = (count, sum_to_bytes(total))
        kept = self.sql(
            "select t.name, s.row_count, s.row_hash from anabranch.table_sums s"
            " join anabranch.synced_tables t on t.id = s.table_id where t.database_id = %s",
            [database.id],
        )
        assert {name: (count, bytes(total)) for name, count, total in kept} == sums, "the server's own sums"
        logged = set(self.logged)
        for node in self.nodes:
            node.check(database, sums, logged)

    def close(self) -> None:
        """Close every node and the story's session, and put the clocks back."""
        if self._clock_offset_ms:
            self.stack.set_clock_offset(0)
        for node in self.nodes:
            node.db.close()
        self.conn.close()


Teller: TypeAlias = Callable[..., Story]
"""A fixture that makes stories: takes what ``Story`` takes after the folder."""
