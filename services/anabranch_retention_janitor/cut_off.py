"""Removes what registrations that were cut off have left: first the triggers that still gather changes, then the
changes that they gathered. A table that another session has locked, or whose owner has to act, is logged and left for a
later sweep."""

from __future__ import annotations

from functools import partial

import structlog

from anabranch.store.catalog import cut_off
from anabranch.store.retention.floor import Kept
from anabranch.store.session.engine import Session
from anabranch_retention_janitor.pace import SweepPace, SweepTurn, in_pieces

_log = structlog.get_logger()


def clear(conn: Session, kept: Kept, pace: SweepPace, turn: SweepTurn, lock_timeout_ms: int) -> tuple[int, bool]:
    """Clear up in one database; gives how many gathered changes were removed, and whether nothing is left to do.

    Raises:
        psycopg.Error: Postgres is not available, or the lead is lost.
        StoppedError: the process is about to end.
    """
    done = True
    for one in cut_off.cut_off(conn, kept.name):
        if turn.over():
            return 0, False
        try:
            if cut_off.end(conn, one, lock_timeout_ms):
                _log.info("ended what a registration had left", database=one.database, table=one.table)
        except Exception as error:
            if not cut_off.may_wait(error):
                raise
            done = False
            _log.warning(
                "a registration that was cut off goes on gathering",
                database=one.database,
                table=one.table,
                detail=error,
            )
    upto = cut_off.dead_upto(conn)
    if not upto:
        return 0, done
    removed, gone = in_pieces(turn, pace, partial(cut_off.forget, conn, kept.id, upto))
    return removed, done and gone
