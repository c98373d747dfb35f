"""Pulls: whole tables into the file, resumed where they broke, replaced at the end.

State model of one table, all of it in ``_db_tables``: *new* rows go straight into the table, to which the app can't
write yet; a table that has rows already, or whose rows the queue touches because it was here before, is pulled into a
table of its own (``pull_table``), while the table goes on showing its rows. Each chunk's rows are stored together with
its resume token. When every table of the pull is done, the server is asked once more whether it has the position that
the file has seen; then one transaction puts the tables in place, sets the cursor to the earliest ``as_of`` where the
pull was of the whole database, and removes batches from the queue that the pull covers. After a kill at any moment the
pull goes on from its tokens. A table that the app gives up meanwhile leaves the pull, which goes on without it; a
device that has no table at all takes the server's position.

The question is asked again because a call that was let in may wait for its turn, and the server may be restored
meanwhile: rows of another history would look valid, would cover verdicts that are not in that history, and their newer
position would replace the one that proves the loss. For the same reason each call that goes on with a pull presents the
newest position of its parts so far: all parts are of one history, also where the file had seen none before. A position
that the file sees during the pull, by a verdict that is ahead of the pull's moment, stays the greatest that it has
seen.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.errors import CallFailed
from anabranch.client.events import State
from anabranch.client.file import guards, state
from anabranch.client.file.describe import drop_pull
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.device_table import DeviceTable, quote
from anabranch.client.logs import get_logger
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import change_of, overlaid, write_bases
from anabranch.client.queue import settle, statements
from anabranch.client.reading import seen, sums
from anabranch.client.reading.arrow_rows import ArrowRows
from anabranch.client.reading.differences import count_base, differences
from anabranch.client.reading.prefetch import prefetched
from anabranch.client.reading.rewind import REASONS, RECOVERING
from anabranch.client.remote import RemoteDb
from anabranch.client.renewals import Renewals
from anabranch.errors import AnabranchError
from anabranch.v1 import position_pb2, snapshot_pb2

log = get_logger(__name__)

_ATTEMPTS = 3
_NOT_YET = 0.99
"""The share that is shown of a table with more rows than estimated, until it is done."""
_CHUNKS_AHEAD = 4
_SILENCE_S = 300.0
"""Seconds without a response. A pull may wait for its turn, and for the server to sort."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a pull. ``rows_done`` counts over all parts of a resumed pull; ``estimated_rows`` is the server's
    estimate and may be wrong, as where rows were removed meanwhile."""

    table: str
    rows_done: int
    estimated_rows: int
    done: bool

    @property
    def share(self) -> float:
        """The share of the table that has come, from 0 to 1; only a table that is done has 1."""
        return 1.0 if self.done else min(_NOT_YET, self.rows_done / max(1, self.estimated_rows))


class _NotWholeError(AnabranchError):
    """The rows that a pull brought do not have the sum that the server sent."""

    def __init__(self, table: str, count: int) -> None:
        super().__init__(f"the pull of {table} did not bring its {count} rows, or is older than the cursor")
        self.table = table


class _GivenUpError(AnabranchError):
    """A table of the pull is no longer among those of the file."""


class Bootstrap:
    """Pulls tables into ``file``. The caller sees to it that nothing else reads the log meanwhile."""

    def __init__(self, file: DeviceFile, remote: RemoteDb, pendings: Pendings) -> None:
        self._file = file
        self._remote = remote
        self._pendings = pendings
        self._renewals = Renewals(remote)

    def pull(self, names: Sequence[str] | None, progress: Callable[[Progress], None] | None = None) -> None:
        """Pull the tables ``names``, or the whole database, and put them in place.

        Raises:
            CallFailed: the pull broke, and the next one goes on from where it stopped; or the server does not have the
                positions that the file has seen.
            sqlite3.IntegrityError: a constraint of the app's own does not let a table take its rows; the pulled rows
                are dropped, and the shown ones stay.
            sqlite3.Error: the file can't be written.
        """
        while True:
            there = self._file.tables()
            chosen = list(there) if names is None else [name for name in names if name in there]
            if names is None and not chosen:
                self._without_tables()
                return
            if not chosen:
                return
            try:
                self._pull(chosen, names is None, progress)
                return
            except _GivenUpError:
                log.info("table_given_up_during_pull")

    def _without_tables(self) -> None:
        """Go to the server's position, from which on the log is read: there is nothing to pull."""
        current = self._file.current()
        response = self._remote.describe(
            snapshot_pb2.DescribeRequest(db_name=current.db_name, node_state=current.node_state)
        )
        with self._file.transaction() as tx:
            settled = response.state.settled
            self._new_history(tx, settled, current.greatest_seen, settled.server_timestamp_ms)
            tx.set(pulls=tx.state.pulls + 1)
            settle.pulled(tx, self._pendings)
        self._file.listeners.deliver()

    def _pull(self, names: Sequence[str], whole: bool, progress: Callable[[Progress], None] | None) -> None:
        self._file.listeners.publish(State("pulling", ", ".join(names)))
        attempt = 1
        while True:
            try:
                self._stream(names, progress)
                break
            except CallFailed as error:
                # The next token's rows go on where this one's have ended.
                if self._renewals.allow(error):
                    continue
                # A file that has lost only the parts of this pull begins it anew.
                lost = error.reason in REASONS and _newest_part(self._file.reader(), names) is not None
                if not (lost or error.reason == "INVALID_TOKEN") or attempt == _ATTEMPTS:
                    raise
                self._drop(names)
                attempt += 1
        confirmed = self._confirmed()
        try:
            with self._file.transaction() as tx:
                self._finish(tx, names, whole, confirmed)
                tx.events.append(State("pulled", ", ".join(names), None, tx.state.cursor_ms))
        except _NotWholeError as error:
            self._drop([error.table])
            raise CallFailed("DATA_LOSS", "", str(error), again=True) from error
        except sqlite3.IntegrityError:
            # The pulled rows grow old, and when they will fit is not known.
            self._drop(names)
            raise
        self._file.listeners.deliver()

    def _confirmed(self) -> state.Seen:
        """The greatest position that the file has seen, after the server has confirmed, once all is pulled, that it has
        it, too.

        Raises:
            CallFailed: the server does not have it, or can't be asked.
        """
        current = self._file.current()
        if current.greatest_seen != state.NOTHING_SEEN:
            self._remote.describe(snapshot_pb2.DescribeRequest(db_name=current.db_name, node_state=current.node_state))
        return current.greatest_seen

    def _drop(self, names: Sequence[str]) -> None:
        with self._file.transaction() as tx:
            for name in names:
                drop_pull(tx, name)

    def _stream(self, names: Sequence[str], progress: Callable[[Progress], None] | None) -> None:
        with self._file.transaction() as tx:
            required = [r for name in names if (r := self._prepare(tx, name)) is not None]
            current = tx.state
            tables = tx.tables
            estimates = {
                name: snapshot_pb2.Table.FromString(value).estimated_rows
                for name, value in tx.conn.execute("SELECT name, value FROM _db_tables")
            }
        if not required:
            return
        node_state = current.node_state
        part = _newest_part(self._file.reader(), names)
        if part is not None and part.server_timestamp_ms > node_state.greatest_seen.server_timestamp_ms:
            node_state.greatest_seen.CopyFrom(part)
        rows_of = {r.table: ArrowRows(tables[r.table].table) for r in required}
        request = snapshot_pb2.PullRequest(db_name=current.db_name, node_state=node_state, required=required)
        parts: list[bytes] = []
        with prefetched(self._remote.pull(request), _CHUNKS_AHEAD, _SILENCE_S) as responses:
            for response in responses:
                if response.arrow_ipc_incomplete:
                    parts.append(response.arrow_ipc)
                    continue
                ipc = b"".join([*parts, response.arrow_ipc]) if parts else response.arrow_ipc
                parts.clear()
                if not response.table:
                    continue
                count, rows = rows_of[response.table].read(ipc) if ipc else (0, ())
                self._chunk(tables[response.table], response, count, rows)
                if progress is not None:
                    name = response.table
                    progress(Progress(name, response.rows_done, estimates.get(name, 0), response.done))

    def _prepare(self, tx: Tx, name: str) -> snapshot_pb2.RequiredTable | None:
        """The request to go on with a table; None if it has all its rows. Creates the table that takes the rows."""
        row = tx.conn.execute(
            "SELECT stage, ordinal, pull_resume, pull_done, pull_table, pull_first_ms FROM _db_tables WHERE name = ?",
            (name,),
        ).fetchone()
        if row is None:
            raise _GivenUpError
        stage, ordinal, resume, done, staged, first = row
        if done:
            return None
        if first is not None and not resume:
            # A first chunk came without a resume token.
            drop_pull(tx, name)
            staged = None
        if staged is None and (stage != "new" or statements.touches(tx.conn, name)):
            if stage == "new":
                # Rows may have come straight into the table before the queue was known to touch it.
                drop_pull(tx, name)
                resume = b""
            staged = f"_db_pull_{ordinal}"
            tx.conn.execute(f"DROP TABLE IF EXISTS {quote(staged)}")
            tx.conn.execute(tx.tables[name].create_sql(staged))
            tx.conn.execute("UPDATE _db_tables SET pull_table = ? WHERE name = ?", (staged, name))
        return snapshot_pb2.RequiredTable(table=name, resume=resume)

    def _chunk(
        self, table: DeviceTable, response: snapshot_pb2.PullResponse, count: int, rows: Iterable[tuple[Any, ...]]
    ) -> None:
        as_of = response.as_of
        with self._file.transaction() as tx:
            row = tx.conn.execute(
                "SELECT pull_table, pull_first_ms, pull_epoch FROM _db_tables WHERE name = ?", (table.name,)
            ).fetchone()
            if row is None:
                raise _GivenUpError
            staged, first, epoch = row
            if first is not None and epoch != as_of.epoch:
                raise CallFailed("ABORTED", "INVALID_TOKEN", "the history changed during the pull", again=True)
            if tx.wants_rows and staged is None:
                rows = list(rows)
                tx.events += [change_of(table, None, row, "snapshot") for row in rows]
            if count and staged is not None:
                tx.conn.executemany(table.insert_into(staged), rows)
            elif count:
                with tx.writing(table.name, count):
                    tx.conn.executemany(table.insert_sql, rows)
            tx.conn.execute(
                """UPDATE _db_tables SET pull_first_ms = coalesce(pull_first_ms, ?), pull_last_ms = ?, pull_epoch = ?,
                   pull_token = ?, pull_resume = ?, pull_done = ?, pull_count = ?, pull_hash = ? WHERE name = ?""",
                (
                    as_of.server_timestamp_ms,
                    as_of.server_timestamp_ms,
                    as_of.epoch,
                    as_of.token,
                    response.resume,
                    int(response.done),
                    response.sum.count,
                    response.sum.hash,
                    table.name,
                ),
            )
        self._renewals.answered()
        self._file.listeners.deliver()

    def _finish(self, tx: Tx, names: Sequence[str], whole: bool, confirmed: state.Seen) -> None:
        newest: position_pb2.Position | None = None
        if not tx.tables.keys() >= set(names):
            raise _GivenUpError
        for name in names:
            table = tx.tables[name]
            staged, first, last, epoch, token, count, digest, done = tx.conn.execute(
                """SELECT pull_table, pull_first_ms, pull_last_ms, pull_epoch, pull_token, pull_count, pull_hash,
                   pull_done FROM _db_tables WHERE name = ?""",
                (name,),
            ).fetchone()
            if not done:
                raise CallFailed("ABORTED", "", f"the pull ended before {name} was complete", again=True)
            if not whole and first < tx.state.cursor_ms:
                raise _NotWholeError(name, count)
            if newest is None or last > newest.server_timestamp_ms:
                newest = position_pb2.Position(epoch=epoch, server_timestamp_ms=last, token=token)
            if staged is not None:
                self._replace(tx, table, staged, first)
            if first != last or len(digest) != 16:
                # Parts of several moments: the sum is of the rows here, and equals the server's once the table has
                # caught up.
                count, digest = sums.of_rows(tx.conn, table)
            elif count != count_base(tx, table):
                raise _NotWholeError(name, count)
            tx.conn.execute(
                """UPDATE _db_tables SET stage = 'live', reason = '', first_ms = ?, last_ms = ?, count = ?, hash = ?,
                   verified = ?, disagrees = 0, pull_table = NULL, pull_done = 0, pull_first_ms = NULL,
                   pull_last_ms = NULL, pull_resume = x'' WHERE name = ?""",
                (first, last, count, digest, int(first != last), name),
            )
        if whole and newest is not None:
            (cursor,) = tx.conn.execute("SELECT min(first_ms) FROM _db_tables WHERE stage = 'live'").fetchone()
            self._new_history(tx, newest, confirmed, cursor)
        elif newest is not None and tx.state.greatest_seen == confirmed:
            seen.saw(tx, newest)
        tx.set(pulls=tx.state.pulls + 1)
        tx.conn.execute(
            "UPDATE _db_mutations_queue_dead SET still_shown = 0 "
            "WHERE NOT EXISTS (SELECT 1 FROM _db_tables WHERE stage = 'aside')"
        )
        settle.pulled(tx, self._pendings)

    def _new_history(self, tx: Tx, newest: position_pb2.Position, confirmed: state.Seen, cursor: int) -> None:
        """Set the ``cursor`` of a file whose every table was pulled. In another epoch known positions are no longer
        valid: verdicts are asked for again, and no basis lies beyond the cursor.

        Raises:
            CallFailed: another epoch has begun, and the file has seen more of the one before than the server was asked
                for.
        """
        current = tx.state
        unchanged = current.greatest_seen == confirmed
        moved = current.greatest_epoch not in ("", newest.epoch)
        if moved and not unchanged:
            raise CallFailed("ABORTED", "", "a new epoch has begun during the pull", again=True)
        if moved or current.snapshot_due == RECOVERING:
            tx.conn.execute("UPDATE _db_mutations_queue SET server_timestamp_ms = NULL, verdict = NULL, seen = 0")
            tx.conn.execute("UPDATE _db_mutations_queue SET basis = ? WHERE basis > ?", (cursor, cursor))
            seen.begin_anew(tx, newest)
        # Where the cursor goes back, to a base that was published earlier, the log shows them once more.
        tx.conn.execute("UPDATE _db_mutations_queue SET seen = 0 WHERE server_timestamp_ms > ?", (cursor,))
        tx.set(cursor_ms=cursor, snapshot_due=0)
        if unchanged:
            # The next call presents the position that was seen meanwhile.
            seen.saw(tx, newest)

    def _replace(self, tx: Tx, table: DeviceTable, staged: str, first_ms: int) -> None:
        """Replace a table's rows by the pulled ones, which include all groups up to ``first_ms``; rows that pending
        batches touch show them on top."""
        conn = tx.conn
        pending = self._pending_keys(tx, table.name)
        before = table.read_by_text(conn, pending)
        if tx.wants_rows:
            tx.events += differences(tx, table, staged, set(pending))
        pulled = table.read_by_text(conn, pending, staged)
        with tx.writing(table.name, guards.MANY):
            conn.execute(f"DELETE FROM {table.quoted}")
            conn.execute(
                f"INSERT INTO {table.quoted} ({table.columns_sql}) SELECT {table.columns_sql} FROM {quote(staged)}"
            )
        conn.execute(f"DROP TABLE {quote(staged)}")
        conn.execute("DELETE FROM _db_base WHERE tbl = ?", (table.name,))
        parts_of = self._pendings.load(tx, table.name, pending, first_ms)
        load, store = table.codec.load, table.codec.store
        bases = {text: load(pulled[text]) if text in pulled else None for text in pending}
        write_bases(tx, table, bases.items(), replace=True)
        writes, deletes = [], []
        for text, key in pending.items():
            shown = overlaid(table, bases[text], parts_of.get(text, ()))
            stored = None if shown is None else store(shown)
            if stored is None:
                deletes.append(key)
            else:
                writes.append(stored)
            old = before.get(text)
            if tx.wants_rows and not table.codec.same(old, stored):
                tx.events.append(change_of(table, old, stored, "snapshot"))
        with tx.writing(table.name, len(writes) + len(deletes)):
            conn.executemany(table.upsert_sql, writes)
            conn.executemany(table.delete_sql, deletes)

    def _pending_keys(self, tx: Tx, table: str) -> dict[str, tuple[Any, ...]]:
        rows = tx.conn.execute("SELECT DISTINCT batch FROM _db_pending_rows WHERE tbl = ?", (table,))
        return self._pendings.keys_of(tx, [b for (b,) in rows]).get(table, {})


def _newest_part(conn: sqlite3.Connection, names: Collection[str]) -> position_pb2.Position | None:
    """The newest position in the parts of a pull of these tables; None if there are no parts."""
    rows = conn.execute(
        """SELECT name, pull_epoch, pull_last_ms, pull_token FROM _db_tables WHERE pull_first_ms IS NOT NULL
           AND pull_token != x'' ORDER BY pull_last_ms DESC"""
    ).fetchall()
    for name, epoch, last_ms, token in rows:
        if name in names:
            return position_pb2.Position(epoch=epoch, server_timestamp_ms=last_ms, token=token)
    return None
