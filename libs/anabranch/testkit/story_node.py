"""A device in a story (``testkit.story``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.client import CallFailed, SyncedDb
from anabranch.store.catalog import databases
from anabranch.store.cells.binary_cells import quote
from anabranch.testkit.comparison import differences
from anabranch.testkit.network import Network
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, position_pb2, verdict_pb2
from anabranch.wire.enum_names import enum_name

if TYPE_CHECKING:
    from anabranch.testkit.story import Story

SEND_S = 1.0


class Made(NamedTuple):
    """A batch as a node made it."""

    id: str
    payload: bytes
    basis: int


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
        """Batches whose dead letters were replayed, each as a new batch."""
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
        """Make one batch of all writes to the given SyncedDb inside the block."""
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

    def fail(self, method: str, error: Exception, times: int) -> list[int]:
        """Have the next ``times`` calls of a method of RemoteDb fail before they are made; return a list of one number,
        which counts the failed calls."""
        real = getattr(self.db._remote, method)
        failed = [0]

        def call(*arguments: Any, **options: Any) -> Any:
            if failed[0] < times:
                failed[0] += 1
                raise error
            return real(*arguments, **options)

        setattr(self.db._remote, method, call)
        return failed

    def flush(self) -> None:
        """Send and wait for every verdict."""
        assert self.db.flush(), f"{self.name}: not every batch has its verdict"

    def read(self) -> None:
        """Read the log to its head."""
        self.db.read()

    def sync(self) -> None:
        """Send, wait, read. While the network is cut this has no effect, and nothing is lost."""
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

    def send(self, *order: int, wait_s: float = SEND_S) -> None:
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
        """For each of those batches the outcomes of its mutations, or the reason of its rejection."""
        out: list[list[str] | str] = []
        for verdict in self.verdicts:
            if verdict.status == verdict_pb2.VERDICT_STATUS_REJECTED:
                out.append(enum_name(errors_pb2.Reason, verdict.reason))
            else:
                out.append([enum_name(verdict_pb2.Outcome, m.outcome) for m in verdict.mutations])
        return out

    @property
    def dead(self) -> list[tuple[str, str]]:
        """Reason and table of every dead letter, in the order made."""
        return [(letter.reason, letter.table) for letter in self.db.dead_letters()]

    def greatest_seen(self) -> position_pb2.Position:
        """The greatest position that the node says it has seen."""
        return self.db._file.current().node_state.greatest_seen

    def check(
        self, database: databases.Database, sums: Mapping[str, tuple[int, bytes]], logged: frozenset[str] | set[str]
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
