"""The positions that the file has seen: the greatest, which every call presents, and earlier ones, by which the device
finds the last one that it has in common with a restored server.

Of the earlier ones at most one a second is kept, after an hour one a minute, after a day one an hour: the common
position that is found may be earlier than the true one by at most so much.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from anabranch.client.file import state
from anabranch.client.file.device_file import Tx
from anabranch.client.file.state import FileState
from anabranch.v1 import position_pb2

_APART_MS = 1_000
_THINNED = ((3_600_000, 60_000), (86_400_000, 3_600_000))
"""Pairs of an age and the distance of kept positions beyond it, both in milliseconds."""
_ASKED_AT_ONCE = 500


def saw(tx: Tx, position: position_pb2.Position, **more: int) -> None:
    """Note that the file has seen ``position``, of the history that it follows, and change ``more`` fields of the state
    together with that."""
    changes = state.greatest(tx.state, position)
    tx.set(**changes, **more)
    # Where a later one is kept, or one of the second before, nothing would be.
    if "greatest_token" in changes and not (
        tx.standing is not None and tx.standing.seen_ms > position.server_timestamp_ms - _APART_MS
    ):
        _keep(tx.conn, position)


def _keep(conn: sqlite3.Connection, position: position_pb2.Position) -> None:
    at = position.server_timestamp_ms
    conn.execute(
        "INSERT OR REPLACE INTO _db_seen (position, epoch, token) SELECT ?, ?, ? "
        "WHERE NOT EXISTS (SELECT 1 FROM _db_seen WHERE position > ?)",
        (at, position.epoch, position.token, at - _APART_MS),
    )


def begin_anew(tx: Tx, position: position_pb2.Position) -> None:
    """Note that the file shows the history of ``position`` from now on, whatever it had seen before."""
    tx.conn.execute("DELETE FROM _db_seen WHERE position > ?", (position.server_timestamp_ms,))
    tx.set(
        greatest_epoch=position.epoch,
        greatest_ms=position.server_timestamp_ms,
        greatest_token=position.token,
        **{k: v for k, v in state.greatest(tx.state, position).items() if k == "seen_ms"},
    )
    _keep(tx.conn, position)


def take_epoch(tx: Tx, presented: FileState, settled: position_pb2.Position) -> bool:
    """Go on in another epoch, with which a server has answered whose history has the ``presented`` position. Return
    False if the file has seen a later position since, which is not confirmed: the next call presents it."""
    if tx.state.greatest_seen != presented.greatest_seen:
        return False
    begin_anew(tx, settled)
    return True


def prune(tx: Tx, now_ms: int, keep_ms: int) -> None:
    """Thin out the kept positions, and forget those older than ``keep_ms`` except the last of them; ``now_ms`` is the
    server's clock."""
    tx.conn.execute(
        "DELETE FROM _db_seen WHERE position < (SELECT max(position) FROM _db_seen WHERE position < ?)",
        (now_ms - keep_ms,),
    )
    for age_ms, apart_ms in _THINNED:
        tx.conn.execute(
            "DELETE FROM _db_seen WHERE position < ? AND position NOT IN "
            "(SELECT min(position) FROM _db_seen GROUP BY position / ?)",
            (now_ms - age_ms, apart_ms),
        )


def positions(conn: sqlite3.Connection) -> list[position_pb2.Position]:
    """The kept positions, in order. Damaged ones are left out: with fewer, the common one found may be earlier."""
    rows = conn.execute(
        "SELECT epoch, position, token FROM _db_seen WHERE typeof(epoch) = 'text' AND typeof(token) = 'blob' "
        "ORDER BY position"
    )
    return [position_pb2.Position(epoch=e, server_timestamp_ms=p, token=t) for e, p, t in rows]


def last_common(
    known: Sequence[position_pb2.Position],
    ask: Callable[[Sequence[position_pb2.Position]], position_pb2.Position],
) -> int:
    """The greatest of ``known`` positions, in order, that the server's history has, in milliseconds; 0 where it has
    none. ``ask`` gives the greatest of some of them that the server has. Histories part once, so a few samples find
    it."""
    left = list(known)
    common = 0
    while left:
        step = -(-len(left) // _ASKED_AT_ONCE)
        asked = left[::step]
        common = max(common, ask(asked).server_timestamp_ms)
        after = [p for p in asked if p.server_timestamp_ms > common]
        end = after[0].server_timestamp_ms if after else 2**63
        asked_at = {p.server_timestamp_ms for p in asked}
        left = [p for p in left if common < p.server_timestamp_ms < end and p.server_timestamp_ms not in asked_at]
    return common
