"""Recover a device when the server does not have a position that the device has seen: a backup was restored, or the
file itself is damaged.

First the last position is found that both have, and which of the confirmed batches beyond it the server knows. Then one
transaction takes the file back to that position: the bases of queued batches are lowered to it, so that others' later
writes count as unseen; lost batches become dead letters or, by the database's policy, are queued again; and a snapshot
is due, before which no batch is sent (``snapshot_due`` is ``RECOVERING``) and no position later than that one is
presented: a server that is restored once more meanwhile, to a time before it, is noticed like any other. A kill before
the transaction changes nothing, and one after it leaves the snapshot to be taken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from anabranch.client.events import State
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.sets import change_in
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import write_bases
from anabranch.client.principal import ask_whose
from anabranch.client.queue import settle, statements
from anabranch.client.reading import seen
from anabranch.client.reading.effects import Folded
from anabranch.client.remote import RemoteDb
from anabranch.client.schema.make import drop_pull
from anabranch.merge.retention import LEAST_KEPT_DAYS
from anabranch.v1 import change_pb2, errors_pb2, position_pb2, resolver_pb2, snapshot_pb2, verdict_pb2

RECOVERING = 2
"""``snapshot_due`` of a file that is to take another history."""
REASONS = frozenset({"HISTORY_REWOUND", "INVALID_POSITION"})
"""The reasons of failed calls for which this module is the remedy."""
_VERDICTS_ASKED = 1_000
_HOUR_MS = 3600 * 1000


class _Loss(NamedTuple):
    """``ids``: batches that the server had accepted, at positions after ``common``, and no longer knows."""

    common: position_pb2.Position
    ids: Sequence[str]
    server_ms: int


def recover(file: DeviceFile, remote: RemoteDb, pendings: Pendings) -> None:
    """Take the file back to where the server is. The caller takes the snapshot.

    Raises:
        CallFailed: the server can't be reached or refuses; nothing was changed.
        sqlite3.Error: the file can't be written.
    """
    loss = _find(file, remote)
    with file.transaction() as tx:
        _take_back(tx, loss, pendings)
    file.listeners.deliver()


def _find(file: DeviceFile, remote: RemoteDb) -> _Loss:
    current = file.current()
    server = position_pb2.ServerState()
    answers: dict[int, position_pb2.Position] = {}

    def ask(positions: Sequence[position_pb2.Position]) -> position_pb2.Position:
        response = remote.find_common(
            change_pb2.FindCommonRequest(db_name=current.db_name, node_state=current.reader_state, seen=positions)
        )
        server.CopyFrom(response.state)
        answers[response.common.server_timestamp_ms] = response.common
        return response.common

    conn = file.reader()
    common_ms = seen.last_common(seen.positions(conn), ask)
    policy = snapshot_pb2.DatabasePolicy.FromString(current.policy)
    # The server forgets verdicts after a time: for an older batch, no verdict does not mean that it is lost.
    kept_days = max(LEAST_KEPT_DAYS, policy.retention_days)
    oldest_ms = server.server_time_ms - kept_days * 24 * _HOUR_MS + _HOUR_MS
    candidates = statements.confirmed_after(conn, max(common_ms, oldest_ms))
    known: set[str] = set()
    for start in range(0, len(candidates), _VERDICTS_ASKED):
        ids = candidates[start : start + _VERDICTS_ASKED]
        answer = remote.get_verdict(resolver_pb2.GetVerdictRequest(db_name=current.db_name, batch_ids=ids))
        known |= {verdict.batch_id for verdict in answer.verdicts}
    lost = [i for i in candidates if i not in known]
    if lost:
        ask_whose(remote, current)
    return _Loss(answers.get(common_ms, position_pb2.Position()), lost, server.server_time_ms)


def _take_back(tx: Tx, loss: _Loss, pendings: Pendings) -> None:
    common, common_ms = loss.common, loss.common.server_timestamp_ms
    tx.conn.execute("UPDATE _db_mutations_queue SET basis = ? WHERE basis > ?", (common_ms, common_ms))
    tx.conn.execute("UPDATE _db_confirmed SET basis = ? WHERE basis > ?", (common_ms, common_ms))
    tx.conn.execute("DELETE FROM _db_seen WHERE position > ?", (common_ms,))
    for table in tx.tables.values():
        drop_pull(tx, table)
    tx.set(
        snapshot_due=RECOVERING,
        greatest_epoch=common.epoch,
        greatest_ms=common_ms,
        greatest_token=common.token,
        # Batches written before the snapshot is complete have surely seen no more than this.
        cursor_ms=min(tx.state.cursor_ms, common_ms),
    )
    policy = snapshot_pb2.DatabasePolicy.FromString(tx.state.policy)
    if policy.on_rewind == "resupply":
        queue_again(tx, statements.which_confirmed(tx.conn, loss.ids), pendings)
    else:
        _bury(tx, loss, pendings)
    detail = f"the server goes on from {common_ms}; it has lost {len(loss.ids)} confirmed batches of this node"
    tx.events.append(State("rewound", detail, None, common_ms))


def _bury(tx: Tx, loss: _Loss, pendings: Pendings) -> None:
    """Make dead letters of lost batches, in the queue or no longer in it."""
    verdicts = [
        verdict_pb2.Verdict(
            batch_id=i,
            status=verdict_pb2.VERDICT_STATUS_REJECTED,
            reason=errors_pb2.REASON_REWOUND,
            message="it was accepted, and then the server was restored to a time before it",
        )
        for i in loss.ids
    ]
    queued = set(statements.which(tx.conn, loss.ids))
    settle.bury(tx, [v for v in verdicts if v.batch_id in queued], pendings, loss.server_ms)
    gone = [v for v in verdicts if v.batch_id not in queued]
    tx.conn.executemany(
        """INSERT OR REPLACE INTO _db_mutations_queue_dead (id, value, basis, verdict, died_ms)
           SELECT id, value, basis, ?, ? FROM _db_confirmed WHERE id = ?""",
        [(v.SerializeToString(), loss.server_ms, v.batch_id) for v in gone],
    )
    change_in(tx.conn, "DELETE FROM _db_confirmed WHERE id IN {in}", [v.batch_id for v in gone])
    settle.publish_dead(tx, gone)


def queue_again(tx: Tx, ids: Collection[str], pendings: Pendings) -> None:
    """Put confirmed batches back into the queue, to be sent unchanged, and show them on top of the present rows."""
    if not ids:
        return
    change_in(
        tx.conn,
        """INSERT OR IGNORE INTO _db_mutations_queue (id, value, basis)
           SELECT id, value, basis FROM _db_confirmed WHERE id IN {in}""",
        list(ids),
    )
    change_in(tx.conn, "DELETE FROM _db_confirmed WHERE id IN {in}", list(ids))
    touched: settle.Touched = {}
    for batch_id in sorted(ids):
        for name, keys in pendings.keys_of(tx, [batch_id]).items():
            touched.setdefault(name, {}).update(keys)
            tx.conn.executemany(
                "INSERT OR IGNORE INTO _db_pending_rows (tbl, key, batch) VALUES (?, ?, ?)",
                [(name, key, batch_id) for key in keys],
            )
    new = settle.unpulled(tx)
    for name, keys in touched.items():
        if name in new:
            continue
        table = tx.tables[name]
        shown = table.read_by_text(tx.conn, keys)
        load = table.codec.load
        bases = [(text, load(shown[text]) if text in shown else None) for text in keys]
        write_bases(tx, table, bases, replace=False)
    # These are older than the queue's batches, and ``pendings`` relies on batches being added only at its end.
    pendings.forget()
    settle.show(tx, Folded(), touched, pendings, "snapshot", {})
