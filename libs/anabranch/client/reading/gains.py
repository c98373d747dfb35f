"""Pulls of gained audiences: their rows into live tables, chunk by chunk, while the log goes on.

How a chunk fits: the server says of which moment it is. The log is read up to exactly that position first (pages are
cut there), and then the chunk's rows are made the base's in one transaction with the token that goes on from it. So
rows of different moments stand side by side, each as of the cursor: from then on the log changes those that are here,
and says nothing of others that the next chunks will not bring. With the last chunk, which is at the cursor like every
other, an audience has all of its rows, and the sum that the server sent.

The log goes on between slices: a pull is left after ``SLICE_S``, the log is read to its head, and the next slice goes
on from the token. What is owed, the token included, is in the file (see ``held``): a kill at any moment leaves a
consistent file and a pull that goes on. Where an audience of the pull is lost meanwhile, the pull of its table begins
anew for those that are left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from anabranch.client.errors import CallFailed
from anabranch.client.events import State
from anabranch.client.file import audience_sums
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import Patch
from anabranch.client.queue import settle
from anabranch.client.reading import audience_checks, held
from anabranch.client.reading.arrow_rows import ArrowRows, Chunk, OtherShapeError
from anabranch.client.reading.bootstrap import Progress
from anabranch.client.reading.effects import Folded
from anabranch.client.reading.prefetch import prefetched
from anabranch.client.reading.pull_parts import whole_chunks
from anabranch.client.remote import RemoteDb
from anabranch.client.renewals import Renewals
from anabranch.v1 import snapshot_pb2

SLICE_S = 2.0
"""Seconds after which a pull makes room for the log."""
_CHUNKS_AHEAD = 4
_SILENCE_S = 300.0
_ATTEMPTS = 3
_NO_ROWS = (0, bytes(16))
_MOST_IDLE = 3
"""Slices in a row that leave everything as it was."""

ReadTo = Callable[[int], None]
"""Reads the log up to exactly a position, in milliseconds, if it is not there already."""
OnProgress = Callable[[Progress], None]


class Gains:
    """Pulls what is owed into ``file``. The caller sees to it that nothing else reads the log meanwhile."""

    def __init__(self, file: DeviceFile, remote: RemoteDb, pendings: Pendings) -> None:
        self._file = file
        self._remote = remote
        self._pendings = pendings
        self._renewals = Renewals(remote)

    def are_owed(self) -> bool:
        """Whether rows are still to be pulled."""
        if not self._file.current().gains_due:
            return False
        if held.owed(self._file.reader(), self._file.tables().values()):
            return True
        with self._file.transaction() as tx:
            tx.set(gains_due=int(bool(held.owed(tx.conn, tx.tables.values()))))
            return bool(tx.state.gains_due)

    def pull(self, read_to: ReadTo, read_on: Callable[[], None], progress: OnProgress | None) -> None:
        """Pull all that is owed, by slices; ``read_on`` reads the log to its head, and is called between them.

        Raises:
            CallFailed: a slice failed, or none leads anywhere.
            sqlite3.Error: the file can't be written.
        """
        tables = self._file.tables()
        names = ", ".join(map(tables.told, held.owed(self._file.reader(), tables.values())))
        self._file.listeners.publish(State("pulling", names))
        left = _MOST_IDLE
        while self.are_owed():
            before = self._place()
            self._slice(read_to, progress)
            if self.are_owed():
                read_on()
            left = _MOST_IDLE if self._place() != before else left - 1
            if not left:
                raise CallFailed("ABORTED", "", "the server does not send what the device may see", again=True)
        self._file.listeners.publish(State("pulled", names, None, self._file.current().cursor_ms))

    def _place(self) -> object:
        """All that is owed, and how far its pull has come."""
        conn = self._file.reader()
        tokens = conn.execute(
            "SELECT name, gain, gain_resume FROM _db_tables WHERE gain != '' ORDER BY name"
        ).fetchall()
        return held.owed(conn, self._file.tables().values()), tokens

    def _slice(self, read_to: ReadTo, progress: OnProgress | None) -> None:
        """Pull what is owed for a while. What breaks goes on with the next slice from where it stopped."""
        attempt = 1
        while True:
            try:
                self._stream(read_to, progress)
                return
            except CallFailed as error:
                if self._renewals.allow(error):
                    continue
                if error.reason != "INVALID_TOKEN" or attempt == _ATTEMPTS:
                    raise
                attempt += 1
                with self._file.transaction() as tx:
                    tx.conn.execute("UPDATE _db_tables SET gain = '', gain_resume = x''")

    def _stream(self, read_to: ReadTo, progress: OnProgress | None) -> None:
        with self._file.transaction() as tx:
            required = _required(tx)
            current, tables = tx.state, tx.tables
        if not required:
            return
        wanted = {r.table: json.dumps(list(r.audiences)) for r in required}
        request = snapshot_pb2.PullRequest(db_name=current.db_name, node_state=current.reader_state, required=required)
        end = time.monotonic() + SLICE_S
        with prefetched(self._remote.pull(request), _CHUNKS_AHEAD, _SILENCE_S) as responses:
            for response, ipc in whole_chunks(responses):
                if self._file.current().cursor_ms != response.as_of.server_timestamp_ms:
                    read_to(response.as_of.server_timestamp_ms)
                # As the log has left it there: it may have altered the table, or given it up.
                table = self._file.tables().get(response.table)
                if table is None:
                    return
                try:
                    chunk = ArrowRows(table.table, True).read(ipc) if ipc else Chunk()
                except OtherShapeError:
                    return
                with self._file.transaction() as tx:
                    goes_on = self._put(tx, response, chunk, wanted[response.table])
                self._renewals.answered()
                self._file.listeners.deliver()
                if not goes_on:
                    return
                if progress is not None:
                    progress(Progress(tables.told(response.table), response.rows_done, 0, response.done))
                if time.monotonic() >= end:
                    return

    def _put(self, tx: Tx, response: snapshot_pb2.PullResponse, chunk: Chunk, wanted: str) -> bool:
        """Store a chunk, and the end of a table's pull. Return False, and store nothing, where the pull has lost its
        place: an audience of it was lost, its table is no longer live, or the cursor is elsewhere."""
        table = tx.tables.get(response.table)
        row = tx.conn.execute("SELECT stage, gain FROM _db_tables WHERE name = ?", (response.table,)).fetchone()
        if table is None or row != ("live", wanted):
            return False
        if tx.state.cursor_ms != response.as_of.server_timestamp_ms:
            return False
        patches = _patches(tx, table, chunk)
        settle.show(tx, Folded(patches={table.name: patches}), {}, self._pendings, "snapshot", {})
        if tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (table.name,)).fetchone() != ("live",):
            return False
        if not response.done:
            tx.conn.execute("UPDATE _db_tables SET gain_resume = ? WHERE name = ?", (response.resume, table.name))
            return True
        _complete(tx, table, json.loads(wanted), response)
        return True


def _required(tx: Tx) -> list[snapshot_pb2.RequiredTable]:
    """The request for what is owed. A pull that has begun goes on as it was; another one is of all that
    a table lacks."""
    required = []
    for name, audiences in held.owed(tx.conn, tx.tables.values()).items():
        gain, resume = tx.conn.execute("SELECT gain, gain_resume FROM _db_tables WHERE name = ?", (name,)).fetchone()
        wanted = json.dumps(audiences)
        if not resume and gain != wanted:
            tx.conn.execute("UPDATE _db_tables SET gain = ? WHERE name = ?", (wanted, name))
            gain = wanted
        required.append(snapshot_pb2.RequiredTable(table=name, resume=resume, audiences=json.loads(gain)))
    return required


def _patches(tx: Tx, table: DeviceTable, chunk: Chunk) -> dict[str, Patch]:
    """The rows of a chunk as they are to be in the base; a row that the file may not hold is left out."""
    may_hold, load, position = held.held(tx.conn), table.codec.load, tx.state.cursor_ms
    patches: dict[str, Patch] = {}
    for row, whose in zip(chunk.rows, chunk.audiences, strict=True):
        if not may_hold.isdisjoint(whose):
            key = table.key_of(row)
            patches[table.key_text(key)] = (key, load(row), None, position, frozenset(whose))
    return patches


def _complete(tx: Tx, table: DeviceTable, pulled: Sequence[str], response: snapshot_pb2.PullResponse) -> None:
    """Note that a table has all rows of the pulled audiences. Where they are not those that the server has, the table
    is set aside, and pulled whole; where it did not say, its next page or heartbeat does."""
    name = table.name
    tx.conn.execute("UPDATE _db_tables SET gain = '', gain_resume = x'' WHERE name = ?", (name,))
    # One that is no longer the reader's is told of by the log.
    complete = held.held(tx.conn).intersection(pulled, response.audiences.values)
    theirs = {s.audience: (s.count, s.hash) for s in response.sums}
    try:
        mine = audience_checks.sums_of(tx, table, complete)
    except UNREADABLE as error:
        settle.set_aside(tx, name, f"a row of it can't be read: {error!r}")
        return
    for audience, (count, total) in mine.items():
        if not response.without_sums and (count, audience_sums.as_bytes(total)) != theirs.get(audience, _NO_ROWS):
            settle.set_aside(tx, name, f"its rows of {audience} are not the server's")
            return
    audience_sums.keep(tx.conn, name, mine)
