"""The positions that the file has seen: the greatest, which every call presents, and earlier ones, by which the last
that it has in common with a restored server is found.

Of the earlier ones at most one a second is kept, after an hour one a minute, after a day one an hour: what a restore is
found to have left is at worst so much too little.
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
"""Beyond an age, how far apart, in milliseconds."""
_ASKED_AT_ONCE = 500


def saw(tx: Tx, position: position_pb2.Position) -> None:
    """The file has come to know ``position``, of the history that it follows."""
    changes = state.greatest(tx.state, position)
    tx.set(**changes)
    if "greatest_token" in changes:
        _keep(tx.conn, position)


def _keep(conn: sqlite3.Connection, position: position_pb2.Position) -> None:
    at = position.server_timestamp_ms
    conn.execute(
        "INSERT OR REPLACE INTO _db_seen (position, epoch, token) SELECT ?, ?, ? "
        "WHERE NOT EXISTS (SELECT 1 FROM _db_seen WHERE position > ?)",
        (at, position.epoch, position.token, at - _APART_MS),
    )


def begin_anew(tx: Tx, position: position_pb2.Position) -> None:
    """The file shows the history of ``position`` from now on, whatever it had seen before."""
    tx.conn.execute("DELETE FROM _db_seen WHERE position > ?", (position.server_timestamp_ms,))
    tx.set(
        greatest_epoch=position.epoch,
        greatest_ms=position.server_timestamp_ms,
        greatest_token=position.token,
        **{k: v for k, v in state.greatest(tx.state, position).items() if k == "seen_ms"},
    )
    _keep(tx.conn, position)


def take_epoch(tx: Tx, presented: FileState, settled: position_pb2.Position) -> bool:
    """A server whose history has what ``presented`` said was seen has answered with another epoch: the file goes on in
    it. False where more was seen since, of which nobody has said so: the next call will tell."""
    if tx.state.greatest_seen != presented.greatest_seen:
        return False
    begin_anew(tx, settled)
    return True


def prune(tx: Tx, now_ms: int, keep_ms: int) -> None:
    """Thin out what is kept, and forget what is older than ``keep_ms`` but for the last of it; ``now_ms`` is the
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
    """What is kept, in order."""
    rows = conn.execute("SELECT epoch, position, token FROM _db_seen ORDER BY position")
    return [position_pb2.Position(epoch=e, server_timestamp_ms=p, token=t) for e, p, t in rows]


def last_common(
    known: Sequence[position_pb2.Position],
    ask: Callable[[Sequence[position_pb2.Position]], position_pb2.Position],
) -> int:
    """The greatest of ``known`` positions, in order, that the server's history has, in milliseconds; 0 where it has
    none. ``ask`` gives the greatest of some of them. Histories part once, so that a few samples lead to it."""
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
