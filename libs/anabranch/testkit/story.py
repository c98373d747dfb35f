"""Stories about devices and a server, told in Python against a running ``Stack``.

    story = Story(stack, folder, {"todo": "id text primary key, title text, done boolean"})
    a, b = story.node("a"), story.node("b")
    x = new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    story.sync()
    b.offline()
    ...
    story.check()

Each node is a ``SyncedDb`` on a file of its own that syncs only when told to. ``check`` is for the end of every story.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ulid import ULID

from anabranch.client import CallFailed, RemoteDb, SyncedDb
from anabranch.store import catalog, registration
from anabranch.store.binary_cells import quote
from anabranch.store.engine import connect
from anabranch.store.sums import scan_sum, sum_to_bytes
from anabranch.testkit.comparison import differences
from anabranch.testkit.network import Network
from anabranch.testkit.stack import Stack
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, position_pb2, value_pb2, verdict_pb2

_numbers = itertools.count(1)
_LOOK_S = 0.01
_SYNC_ROUNDS = 10
_SEND_S = 1.0
_DAY_MS = 24 * 3600 * 1000


def new_id() -> str:
    """A new ULID, for keys and ids."""
    return str(ULID())


class Made(NamedTuple):
    """A batch as a node made it."""

    id: str
    payload: bytes
    basis: int


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
        """Run SQL as somebody else, committed at once; its rows."""
        cursor = self.conn.execute(text.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def remote(self, key: str, network: Network | None = None) -> RemoteDb:
        """The stack's services with a key."""
        addresses = self.stack.addresses
        return RemoteDb(
            ingest=addresses["ingest"],
            snapshot=addresses["snapshot"],
            resolver=addresses["conflict-resolver"],
            token=key,
            interceptors=[network] if network else [],
        )

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

    def drained(self, wait_s: float = _SEND_S) -> None:
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
    def database(self) -> catalog.Database:
        """The database as registered."""
        return catalog.load_database(self.conn, self.name)

    @property
    def conflicts(self) -> list[tuple[str, str, str, Any]]:
        """Table, key, column and losing value of everything that lost, in the log's order."""
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
        """What must hold at the end of every story, after a last sync: every queue is empty; every batch ever made is
        in the log or in a dead queue, with a reason; and every node's rows are the server's, by the table sums on both
        sides, by a comparison that knows nothing of them, and in a file that SQLite finds whole.

        Raises:
            AssertionError: something does not.
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


class StoryNode:
    """A device. ``made``: every batch that it has made, in order."""

    def __init__(self, story: Story, name: str, file: Path, key: str) -> None:
        self.story = story
        self.name = name
        self.file = file
        self.key = key
        self.network = Network()
        self.made: list[Made] = []
        self.replayed: set[str] = set()
        """Batches whose dead letters were replayed: each is another batch now."""
        self.clock_offset_ms = 0
        self.db = self._make()

    def _make(self) -> SyncedDb:
        remote = self.story.remote(self.key, self.network)
        return SyncedDb(self.file, remote, self.story.name, node_name=self.name, now_ms=self._now_ms)

    def _now_ms(self) -> int:
        return self.story.now_ms() + self.clock_offset_ms

    # Writing

    def insert(self, table: str, *rows: Mapping[str, Any]) -> str:
        """One batch with one insert; its id."""
        return self._note(self.db.table(table).insert(list(rows)))

    def update(self, table: str, *rows: Mapping[str, Any]) -> str:
        """One batch with one update; its id."""
        return self._note(self.db.table(table).update(list(rows)))

    def delete(self, table: str, *keys: Any) -> str:
        """One batch with one delete; its id."""
        return self._note(self.db.table(table).delete(list(keys)))

    @contextmanager
    def batch(self) -> Iterator[SyncedDb]:
        """What is written to the given SyncedDb inside is one batch."""
        with self.db.batch() as batch:
            yield self.db
        self._note(batch.id)

    def replay(self, letter: int, set: Mapping[str, Any] | None = None) -> str:
        """Replay the dead letter of that number, from 1; the new batch's id."""
        letter_id = self.db.dead_letters()[letter - 1].id
        made = self._note(self.db.replay(letter_id, set))
        self.replayed.add(letter_id)
        return made

    def _note(self, batch_id: str) -> str:
        row = self.db.execute("SELECT value, basis FROM _db_mutations_queue WHERE id = ?", (batch_id,)).fetchone()
        assert row is not None, "a batch is queued when it is made"
        self.made.append(Made(batch_id, bytes(row[0]), row[1]))
        return batch_id

    # Syncing

    def offline(self) -> None:
        """Cut the network."""
        self.network.cut()

    def online(self) -> None:
        """Restore it."""
        self.network.restore()

    def flush(self) -> None:
        """Send and wait for every verdict."""
        assert self.db.flush(), f"{self.name}: not every batch has its verdict"

    def read(self) -> None:
        """Read the log to its head."""
        self.db.read()

    def sync(self) -> None:
        """Send, wait, read. While the network is cut nothing comes of it and nothing is lost."""
        if not self.network.is_cut:
            self.flush()
            self.read()
            return
        before = self.db.status()
        try:
            self.db.sync()
        except CallFailed as error:
            assert error.code == "UNAVAILABLE"  # noqa: PT017 - what follows belongs to it
        else:
            assert before.unsent == 0, "a sync without a network sent something"
        assert self.db.status() == before

    def send(self, *order: int, wait_s: float = _SEND_S) -> None:
        """Send the unsent batches, numbered from 1, one call each in that order, each waiting for its verdict no longer
        than ``wait_s``."""
        unsent = self.unsent
        for number in order:
            self.db._sender.flush(wait_s, only=[unsent[number - 1]])

    @property
    def unsent(self) -> list[str]:
        """The ids of the batches without a verdict, in order."""
        rows = self.db.execute("SELECT id FROM _db_mutations_queue WHERE server_timestamp_ms IS NULL ORDER BY id")
        return [batch_id for (batch_id,) in rows.fetchall()]

    def resend(self, number: int, times: int = 1, payload: bytes | None = None) -> list[verdict_pb2.Verdict]:
        """Send the batch of that number, from 1, again: the bytes as made, or ``payload`` under its envelope."""
        made = self.made[number - 1]
        return self.send_raw([made._replace(payload=payload or made.payload)] * times)

    def send_raw(self, batches: Sequence[Made]) -> list[verdict_pb2.Verdict]:
        """Send batches one call each as this node, past its queue; their verdicts."""
        verdicts: list[verdict_pb2.Verdict] = []
        with closing(self.story.remote(self.key)) as remote:
            for made in batches:
                with self.db._file.transaction() as tx:
                    request = ingest_pb2.SendRequest(
                        db_name=self.story.name,
                        node_state=tx.state.node_state,
                        node_token=tx.state.node_token,
                        envelopes=[batch_pb2.Envelope(payload=made.payload, basis=made.basis)],
                    )
                    response = remote.send(request)
                    tx.set(node_token=response.node_token)
                verdicts += response.verdicts
        return verdicts

    def reopen(self, *, key: str | None = None) -> None:
        """Close the file and open it again, as an app's restart does; with another ``key``, as another login does."""
        self.db.close()
        self.key = key or self.key
        self.db = self._make()
        self.db.start(background=False)

    # Looking

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The shown rows, ordered by the first column."""
        names = ", ".join(quote(c) for c in columns) or "*"
        return self.db.execute(f"SELECT {names} FROM {quote(table)} ORDER BY 1").fetchall()

    @property
    def verdicts(self) -> list[verdict_pb2.Verdict]:
        """The server's verdicts on the batches of this node that have one, in the order made."""
        story = self.story
        rows = story.sql(
            "select verdict from anabranch.batches where database_id = %s and batch_id = any(%s) order by batch_id",
            [story.database.id, [made.id for made in self.made]],
        )
        return [verdict_pb2.Verdict.FromString(row[0]) for row in rows]

    @property
    def outcomes(self) -> list[list[str] | str]:
        """Of each of those batches the outcomes of its mutations, or the reason of its rejection."""
        out: list[list[str] | str] = []
        for verdict in self.verdicts:
            if verdict.status == verdict_pb2.VERDICT_STATUS_REJECTED:
                out.append(errors_pb2.Reason.Name(verdict.reason).removeprefix("REASON_"))
            else:
                out.append([verdict_pb2.Outcome.Name(m.outcome).removeprefix("OUTCOME_") for m in verdict.mutations])
        return out

    @property
    def dead(self) -> list[tuple[str, str]]:
        """Reason and table of every dead letter, in the order made."""
        return [(letter.reason, letter.table) for letter in self.db.dead_letters()]

    def greatest_seen(self) -> position_pb2.Position:
        """The greatest position that the node says it has seen."""
        return self.db._file.current().node_state.greatest_seen

    def check(
        self, database: catalog.Database, sums: Mapping[str, tuple[int, bytes]], logged: frozenset[str] | set[str]
    ) -> None:
        """See ``Story.check``."""
        status = self.db.status()
        assert (status.unsent, status.queued, status.disagreeing) == (0, 0, ()), f"{self.name}: {status}"
        assert self.db.table_sums() == sums, f"{self.name}: its sums are not the server's"
        dead = {letter.id: letter.reason for letter in self.db.dead_letters()}
        for made in self.made:
            if made.id in self.replayed:
                assert made.id not in logged, f"{self.name}: the dead batch {made.id} is in the log"
                continue
            assert (made.id in logged) != bool(dead.get(made.id)), f"{self.name}: batch {made.id} is lost, or twice"
        with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as conn:
            assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"{self.name}: a broken file"
            for table in database.tables.values():
                found = differences(self.story.conn, database.schema_name, table, conn)
                assert not found, f"{self.name}: " + "\n".join(found)
