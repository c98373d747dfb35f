"""Sending: queued batches to the server, verdicts into the file.

State model. Batches go in the order of their ids; one call of this file is under way at a time (``_turn``), because the
node's token changes with each; few and small ones of a device at work are messages on one open stream (``live``).
Before a call, and a stream's first message, the id of its first batch is kept as unanswered, durably; the answer's
token and the removal of those ids are one transaction. A batch is *unsent* until a verdict is noted; PENDING leaves it
so, and sending it again finds the verdict; a batch whose bytes in the file are damaged can't get one, and becomes a
dead letter as soon as a call has brought none; if the server says that the batch waits for a row of an earlier one, its
verdict is asked for again seldom. Batches older than ``BATCH_EXPIRY_MS`` are not sent before the server's clock and its
memory of them are known. If the server does not have the position that the file has seen, nothing is sent before the
reader has taken the server's history.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from anabranch import limits
from anabranch.client.errors import CallFailed
from anabranch.client.events import State
from anabranch.client.file import choice, state
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.principal import ask_whose, owned
from anabranch.client.queue import settle, statements
from anabranch.client.queue.live import LiveSends
from anabranch.client.queue.send_stream import Flush, overhead
from anabranch.client.queue.statements import Queued
from anabranch.client.reading import rewind, seen
from anabranch.client.remote import SEND_TIMEOUT_S, SLOWEST_BYTES_PER_S, RemoteDb
from anabranch.client.renewals import Renewals
from anabranch.client.schema import pinned
from anabranch.client.server_clock import ServerClock
from anabranch.client.writes import payload
from anabranch.client.writes.ids import first_id_at, next_id
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, position_pb2, resolver_pb2, snapshot_pb2, verdict_pb2

_CALL_ENVELOPES = 500
_CALL_BYTES = 1_000_000
_ASK_AGAIN_S = 0.05
_ASK_FOR_AWAITING_S = 60.0
"""Seconds between questions for batches that wait for a row: only a batch of this device can bring it."""
_MENDED = 4
"""How many times a flush begins anew after a fork or a rewind."""
_VERDICTS_ASKED = 1_000
_PRUNE_MS = 3600 * 1000
_DAY_MS = 24 * 3600 * 1000
_DEAD_SHOWN_MS = 14 * _DAY_MS
R = TypeVar("R", ingest_pb2.SendRequest, ingest_pb2.SendStreamRequest)


def _patience_s(batches: Sequence[Queued]) -> float:
    return SEND_TIMEOUT_S + sum(len(b.value) for b in batches) / SLOWEST_BYTES_PER_S


class Sender:
    """Sends the queue of ``file``; ``now_ms`` is the device's clock; ``rewound`` is ``Reader.rewound``."""

    def __init__(
        self,
        file: DeviceFile,
        remote: RemoteDb,
        pendings: Pendings,
        now_ms: Callable[[], int],
        clock: ServerClock,
        rewound: Callable[[int, state.Seen | None], None],
    ) -> None:
        self._file = file
        self._remote = remote
        self._pendings = pendings
        self._now_ms = now_ms
        self._turn = threading.Lock()
        self._clock = clock
        self._rewound = rewound
        self._awaiting: dict[str, str] = {}
        self._asked_s = 0.0
        self._renewals = Renewals(remote)
        self._live = LiveSends(remote)

    @property
    def awaiting(self) -> Mapping[str, str]:
        """The batches that the server has, and that wait there for a row of an earlier one, with the server's message;
        as of its last answers to this process."""
        return self._awaiting

    def has_work(self) -> bool:
        """Whether there is a batch to send, or one to ask for again."""
        left = statements.unsent(self._file.reader(), "", len(self._awaiting) + 1, 2**62)
        if all(batch.id in self._awaiting for batch in left):
            return bool(left) and time.monotonic() - self._asked_s >= _ASK_FOR_AWAITING_S
        return True

    def patience_s(self) -> float:
        """Seconds that a flush may need to bring at least its first call through a poor network."""
        return _patience_s(self._batches("~", None))

    def rest(self) -> None:
        """End the stream that is kept open for sends. From the thread that flushes."""
        self._live.close()

    def hang_up(self) -> None:
        """End every call; the next one opens a connection of its own. From any thread."""
        self._remote.close()

    def flush(self, timeout_s: float, only: Sequence[str] | None = None) -> bool:
        """Send the batches without a verdict and wait for the verdicts, ``timeout_s`` at most; batches that are queued
        meanwhile are left for the next flush. ``only``: these batches alone, in one call. Return whether all have
        verdicts.

        Raises:
            CallFailed: the call failed, or (AppOutdated) is not made; everything is still queued.
            sqlite3.Error: the file can't be written.
        """
        deadline = time.monotonic() + timeout_s
        if not self._turn.acquire(timeout=timeout_s):
            return False
        try:
            with owned(self._file, self._remote):
                mended = 0
                while mended < _MENDED:
                    current = self._file.current()
                    pinned.require(current)
                    try:
                        if current.snapshot_due == rewind.RECOVERING:
                            self._rewound(current.pulls, None)
                        return self._flush(deadline, only)
                    except CallFailed as error:
                        # The rest goes on with the next token.
                        if self._renewals.allow(error):
                            continue
                        mended += 1
                        if error.reason in rewind.REASONS:
                            self._rewound(current.pulls, current.greatest_seen)
                        elif error.reason == "NODE_FORKED":
                            self._fork()
                        else:
                            raise
                return self._flush(deadline, only)
        except CallFailed as error:
            if error.code == "DEADLINE_EXCEEDED" and time.monotonic() >= deadline:
                return False
            self._live.close()
            self._clock.forget()
            raise
        finally:
            self._turn.release()

    def _flush(self, deadline: float, only: Sequence[str] | None) -> bool:
        self._expire()
        before = self._file.current().last_id + "~"
        looked_at: list[Queued] = []
        while True:
            batches = self._batches(before, only)
            if not batches:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self._fits_one_call(batches, before, only):
                self._stream(before, left)
            elif only is None and self._live.takes(sum(len(b.value) for b in batches)):
                if not self._exchange(batches, left):
                    continue
            else:
                self._call(batches, left)
                self._live.called()
            if only is not None:
                return not self._batches(before, only)
            # Pending verdicts are asked for again; the server waits with its answer, so this loop seldom runs twice.
            if self._batches(before, only) == batches:
                if batches != looked_at and self._bury_damaged(batches):
                    continue
                looked_at = batches
                if all(batch.id in self._awaiting for batch in batches):
                    # The server does not wait for these verdicts, and would give the same answer.
                    return False
                time.sleep(min(_ASK_AGAIN_S, max(0.0, deadline - time.monotonic())))

    def _bury_damaged(self, batches: Sequence[Queued]) -> bool:
        """Move those batches to the dead queue that got no verdict because their bytes are damaged: to the server they
        have another name, or none. Return whether there were any."""
        damaged = {b.id: why for b in batches if (why := payload.damage(b.id, b.value))}
        if not damaged:
            return False
        with self._file.transaction() as tx:
            settle.bury_damaged(tx, damaged, self._pendings, self._clock.now_ms() or self._now_ms())
        self._file.listeners.deliver()
        return True

    def _batches(self, before: str, only: Sequence[str] | None) -> list[Queued]:
        conn = self._file.reader()
        if only is None:
            return statements.unsent(conn, "", _CALL_ENVELOPES, _CALL_BYTES, before)
        wanted = set(only)
        found = statements.unsent(conn, "", 2**31, 2**62, before)
        return [b for b in found if b.id in wanted]

    def _fits_one_call(self, batches: Sequence[Queued], before: str, only: Sequence[str] | None) -> bool:
        if sum(len(b.value) + overhead(b) for b in batches) > limits.MAX_REQUEST_BYTES:
            return False
        return only is not None or not statements.unsent(self._file.reader(), batches[-1].id, 1, 1, before)

    def _begin(self, kind: type[R], batches: Sequence[Queued], first_id: str = "") -> tuple[state.FileState, R]:
        """A request with ``batches``, and the state that it presents. ``first_id``: the call's first batch, whose id is
        kept beside those of earlier calls without an answer."""
        with self._file.transaction() if first_id else contextlib.nullcontext() as tx:
            conn, current = (tx.conn, tx.state) if tx else (self._file.reader(), self._file.current())
            unanswered = [i for (i,) in conn.execute("SELECT id FROM _db_unanswered ORDER BY id DESC")]
            if first_id:
                conn.execute("INSERT OR IGNORE INTO _db_unanswered (id) VALUES (?)", (first_id,))
        return current, kind(
            db_name=current.db_name,
            node_state=current.node_state,
            node_token=current.node_token,
            unanswered_batch_ids=unanswered[: limits.MAX_UNANSWERED_IDS],
            envelopes=[batch_pb2.Envelope(payload=b.value, basis=b.basis, prev=b.prev) for b in batches],
        )

    def _call(self, batches: Sequence[Queued], timeout_s: float) -> int:
        """Send ``batches`` in one call; return the server's clock."""
        current, request = self._begin(ingest_pb2.SendRequest, batches, batches[0].id if batches else "")
        response = self._remote.send(request, min(_patience_s(batches), timeout_s))
        self._answer(response.node_token, response.verdicts, response.state, current)
        return response.state.server_time_ms

    def _exchange(self, batches: Sequence[Queued], timeout_s: float) -> bool:
        """Send ``batches`` as one message on the open stream, or open one with it; whether anything came back. Only
        what opens a stream gets a new token: nothing is kept of a message."""
        first_id = "" if self._live.is_open() else batches[0].id
        current, request = self._begin(ingest_pb2.SendStreamRequest, batches, first_id)
        if answer := self._live.exchange(request, timeout_s):
            judged = current if first_id or answer.node_token else None
            self._answer(answer.node_token, answer.verdicts, answer.state, judged)
        return answer is not None

    def _stream(self, before: str, timeout_s: float) -> None:
        first = statements.unsent(self._file.reader(), "", 1, 1, before)[0]
        current, head = self._begin(ingest_pb2.SendStreamRequest, (), first.id)
        with self._file.private_reader() as conn, contextlib.ExitStack() as leaving:
            flush = Flush(conn, head, before, self._request_bytes(current))
            leaving.callback(flush.end)
            responses = self._remote.send_stream(flush.requests(), timeout_s)
            leaving.callback(responses.cancel)
            for response in responses:
                self._answer(response.node_token, response.verdicts, response.state, current)
                flush.decided(len(response.verdicts))

    def _request_bytes(self, current: state.FileState) -> int:
        most = snapshot_pb2.Limits.FromString(current.limits).max_request_bytes
        return min(most or limits.MAX_REQUEST_BYTES, limits.MAX_REQUEST_BYTES)

    def _answer(
        self,
        token: bytes,
        verdicts: Sequence[verdict_pb2.Verdict],
        server: position_pb2.ServerState,
        presented: state.FileState | None,
    ) -> None:
        with self._file.transaction() as tx:
            if token:
                tx.conn.execute("DELETE FROM _db_unanswered")
                tx.set(node_token=token)
            self._note(tx, verdicts, server, presented)
        self._renewals.answered()
        self._file.listeners.deliver()

    def _note(
        self,
        tx: Tx,
        verdicts: Sequence[verdict_pb2.Verdict],
        server: position_pb2.ServerState,
        presented: state.FileState | None = None,
    ) -> None:
        """Note an answer's content. ``presented``: the state that the server found in its history before it answered;
        None where it was not asked, so that its settled position may be of another history."""
        if server.server_time_ms:
            self._clock.note(server.server_time_ms)
            tx.events += self._clock.events()
            self._prune(tx, server.server_time_ms)
            tx.set(**state.time_seen(tx.state, server.server_time_ms))
        choice.without_others(verdicts, tx)
        newest = max([v.position for v in verdicts], default=0)
        if presented is not None and tx.state.greatest_epoch not in ("", server.settled.epoch):
            seen.take_epoch(tx, presented, server.settled)
        recovering = tx.state.snapshot_due == rewind.RECOVERING
        same_history = not recovering and tx.state.greatest_epoch in ("", server.settled.epoch)
        if same_history:
            if presented is not None:
                seen.saw(tx, server.settled)
            tx.set(seen_ms=max(tx.state.seen_ms, newest))
        for verdict in verdicts:
            self._awaiting.pop(verdict.batch_id, None)
            if verdict.reason == errors_pb2.REASON_AWAITS_ROW:
                self._awaiting[verdict.batch_id] = verdict.message
                self._asked_s = time.monotonic()
        accepted = [v for v in verdicts if v.status == verdict_pb2.VERDICT_STATUS_APPLIED]
        rejected = [v for v in verdicts if v.status == verdict_pb2.VERDICT_STATUS_REJECTED]
        if accepted:
            first = statements.without_verdict(tx.conn, [v.batch_id for v in accepted])
            settle.publish_merged(tx, [v for v in accepted if v.batch_id in first])
            statements.accepted(tx.conn, [(v.batch_id, v.position, v.SerializeToString()) for v in accepted])
            if same_history:
                settle.pulled(tx, self._pendings)
                settle.counted_in(tx, self._pendings, newest)
        if rejected:
            settle.bury(tx, rejected, self._pendings, server.server_time_ms or self._now_ms())

    def _fork(self) -> None:
        with self._file.transaction() as tx:
            node_id = next_id(tx.state.last_id, self._now_ms(), tx.state.seen_ms)
            tx.conn.execute("DELETE FROM _db_unanswered")
            tx.set(node_id=node_id, node_token=b"", last_id=node_id)
            tx.events.append(State("node_forked", f"the file was copied or restored; its node is now {node_id}"))
        self._file.listeners.deliver()

    def _expire(self) -> None:
        """Ask about batches that may be too old before any of them is sent; move those that are too old and unknown to
        the server to the dead queue. Raises CallFailed."""
        conn = self._file.reader()
        now = self._clock.now_ms()
        if now is None:
            if not statements.has_unsent(conn):
                return
            # A call without batches: it gives the server's time, and needs no service but ingest.
            now = self._call((), SEND_TIMEOUT_S)
        while True:
            old = statements.unsent(conn, "", _VERDICTS_ASKED, 2**62, first_id_at(now - limits.BATCH_EXPIRY_MS))
            if not old:
                return
            ids = [b.id for b in old]
            now = self._ask(ids, expire_before=first_id_at(now - limits.BATCH_EXPIRY_MS))
            left = statements.unsent(conn, "", _VERDICTS_ASKED, 2**62, first_id_at(now - limits.BATCH_EXPIRY_MS))
            if [b.id for b in left] == ids:
                return  # All of them wait for their verdicts.

    def _ask(self, ids: Sequence[str], expire_before: str = "") -> int:
        """Note the verdicts of ``ids`` that the server knows; of the others, those before ``expire_before`` are
        expired. Return the server's clock."""
        current = self._file.current()
        response = self._remote.get_verdict(resolver_pb2.GetVerdictRequest(db_name=current.db_name, batch_ids=ids))
        known = {v.batch_id for v in response.verdicts}
        expired = [
            verdict_pb2.Verdict(
                batch_id=i,
                status=verdict_pb2.VERDICT_STATUS_REJECTED,
                reason=errors_pb2.REASON_EXPIRED,
                message="it could not be sent for seven days",
            )
            for i in ids
            if i not in known and i < expire_before
        ]
        if expired:
            ask_whose(self._remote, current)
        with self._file.transaction() as tx:
            self._note(tx, [*response.verdicts, *expired], response.state)
        self._file.listeners.deliver()
        return response.state.server_time_ms

    def _prune(self, tx: Tx, server_ms: int) -> None:
        """Forget confirmed batches that no restored server can have lost, and dead letters shown long ago; hourly. The
        device's clock is not used: a clock that is years behind would make a letter old as soon as it is shown."""
        if server_ms - tx.state.pruned_ms < _PRUNE_MS:
            return
        policy = snapshot_pb2.DatabasePolicy.FromString(tx.state.policy)
        days = policy.max_absence_days or 30
        tx.conn.execute("DELETE FROM _db_confirmed WHERE position < ?", (server_ms - days * _DAY_MS,))
        seen.prune(tx, server_ms, days * _DAY_MS)
        tx.conn.execute(
            "UPDATE _db_mutations_queue_dead SET shown_from_ms = ? WHERE first_shown_ms != 0 AND shown_from_ms = 0",
            (server_ms,),
        )
        tx.conn.execute(
            "DELETE FROM _db_mutations_queue_dead WHERE shown_from_ms > 0 AND shown_from_ms < ?",
            (server_ms - _DEAD_SHOWN_MS,),
        )
        tx.set(pruned_ms=server_ms)
