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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.client.errors import CallFailed
from anabranch.client.events import State
from anabranch.client.file import state
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.logs import get_logger
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.queue import settle
from anabranch.client.reading import pull_end, pull_parts
from anabranch.client.reading.arrow_rows import ArrowRows, Chunk, OtherShapeError
from anabranch.client.reading.prefetch import prefetched
from anabranch.client.reading.pull_end import NotWholeError
from anabranch.client.reading.pull_parts import GivenUpError, newest_part, whole_chunks
from anabranch.client.reading.rewind import REASONS
from anabranch.client.remote import RemoteDb
from anabranch.client.renewals import Renewals
from anabranch.client.schema.make import drop_pull
from anabranch.v1 import snapshot_pb2

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
        """The share of the table that has come, from 0 to 1; only a table that is done has 1. 0 until then where there
        is no estimate (0), as of a restricted table: its rows are not counted for each device."""
        if self.done or not self.estimated_rows:
            return float(self.done)
        return min(_NOT_YET, self.rows_done / self.estimated_rows)


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
            OtherShapeError: a table has been altered since the server described it; its pull begins anew.
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
            except GivenUpError:
                log.info("table_given_up_during_pull")

    def _without_tables(self) -> None:
        """Go to the server's position, from which on the log is read: there is nothing to pull."""
        current = self._file.current()
        response = self._remote.describe(
            snapshot_pb2.DescribeRequest(db_name=current.db_name, node_state=current.reader_state)
        )
        with self._file.transaction() as tx:
            settled = response.state.settled
            pull_end.new_history(tx, settled, current.greatest_seen, settled.server_timestamp_ms)
            tx.set(pulls=tx.state.pulls + 1)
            settle.pulled(tx, self._pendings)
        self._file.listeners.deliver()

    def _pull(self, names: Sequence[str], whole: bool, progress: Callable[[Progress], None] | None) -> None:
        tables = self._file.tables()
        told = ", ".join(map(tables.told, names))
        self._file.listeners.publish(State("pulling", told))
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
                lost = error.reason in REASONS and newest_part(self._file.reader(), names) is not None
                if not (lost or error.reason == "INVALID_TOKEN") or attempt == _ATTEMPTS:
                    raise
                self._drop(names)
                attempt += 1
            except OtherShapeError as error:
                self._drop([error.table])
                raise
        confirmed = self._confirmed()
        try:
            with self._file.transaction() as tx:
                pull_end.finish(tx, self._pendings, names, whole, confirmed)
                tx.events.append(State("pulled", told, None, tx.state.cursor_ms))
        except NotWholeError as error:
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
            self._remote.describe(
                snapshot_pb2.DescribeRequest(db_name=current.db_name, node_state=current.reader_state)
            )
        return current.greatest_seen

    def _drop(self, names: Sequence[str]) -> None:
        with self._file.transaction() as tx:
            for name in names:
                if (table := tx.tables.get(name)) is not None:
                    drop_pull(tx, table)

    def _stream(self, names: Sequence[str], progress: Callable[[Progress], None] | None) -> None:
        with self._file.transaction() as tx:
            required = [r for name in names if (r := pull_parts.prepare(tx, name)) is not None]
            current = tx.state
            tables = tx.tables
            estimates = {
                name: snapshot_pb2.Table.FromString(value).estimated_rows
                for name, value in tx.conn.execute("SELECT name, value FROM _db_tables")
            }
        if not required:
            return
        node_state = current.reader_state
        part = newest_part(self._file.reader(), names)
        if part is not None and part.server_timestamp_ms > node_state.greatest_seen.server_timestamp_ms:
            node_state.greatest_seen.CopyFrom(part)
        rows_of = {r.table: ArrowRows(tables[r.table].table, tables[r.table].restricted) for r in required}
        request = snapshot_pb2.PullRequest(db_name=current.db_name, node_state=node_state, required=required)
        with prefetched(self._remote.pull(request), _CHUNKS_AHEAD, _SILENCE_S) as responses:
            for response, ipc in whole_chunks(responses):
                rows = rows_of[response.table].read(ipc) if ipc else Chunk()
                with self._file.transaction() as tx:
                    pull_parts.put(tx, tables[response.table], response, rows)
                self._renewals.answered()
                self._file.listeners.deliver()
                if progress is not None:
                    name = response.table
                    progress(Progress(tables.told(name), response.rows_done, estimates.get(name, 0), response.done))
