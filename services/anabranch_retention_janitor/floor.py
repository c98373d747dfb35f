"""Moves the floor forward, step by step: each step is proven, then committed. Nothing is removed here."""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from anabranch import faults
from anabranch.columnar.evidence import EvidenceError
from anabranch.merge.retention import Bound
from anabranch.store.retention.floor import Kept, is_timeout, move_floor, next_step
from anabranch.store.retention.status import Look, at, broken
from anabranch.store.session.engine import Session
from anabranch_retention_janitor.pace import SweepPace, SweepTurn

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Moved:
    """``kept``: the database with its floor where it is now. ``bounds``: with that of a proof that broke on the way.
    ``done``: whether the floor is where it may be."""

    kept: Kept
    bounds: tuple[Bound, ...]
    done: bool


def move(conn: Session, look: Look, now_ms: int, pace: SweepPace, turn: SweepTurn) -> Moved:
    """Put the floor as far as it may go and the sweep's time allows.

    Raises:
        psycopg.Error: Postgres is not available.
    """
    kept, bounds = look.kept, look.bounds
    while kept.floor < look.target:
        if turn.over():
            return Moved(kept, bounds, False)
        began = time.monotonic()
        upto = next_step(conn, kept, look.target, pace.rows)
        try:
            if look.proof is not None:
                with turn.long():
                    look.proof.require(conn, kept, kept.floor, upto)
        except EvidenceError as error:
            _log.error("the log is not cut: its files are not as proven", database=kept.name, detail=error)
            return Moved(kept, (broken(kept.floor, error), *bounds), True)
        except Exception as error:
            if not is_timeout(error):
                raise
            if not pace.shrink():
                _log.warning("the log can't be added up in time", database=kept.name, floor=kept.floor)
                return Moved(kept, bounds, False)
            continue
        if not move_floor(conn, kept, upto, now_ms):
            # A node came back, the history was rewound: the next sweep looks anew.
            return Moved(kept, bounds, False)
        kept = at(kept, upto)
        faults.reach("after_floor")
        pace.grow()
        turn.rest(time.monotonic() - began)
    return Moved(kept, bounds, True)
