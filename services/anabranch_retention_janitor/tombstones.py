"""Finds and removes old tombstones, and versions that registrations which ended left: reads the pages of all row
versions, a stretch at a time.

No index leads to them: one would cost every write of a row. A round begins when there may be something new, which is
once a day of the clock's, and ends after all pages that there were when it began. It starts anywhere, so that rounds
that are cut short by kills come to every page in time.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import structlog

from anabranch import faults
from anabranch.store.retention.floor import is_timeout
from anabranch.store.retention.rows import Limits, remove_tombstones, table_ids, version_pages
from anabranch.store.session.engine import Session
from anabranch_retention_janitor.pace import SweepPace, SweepTurn

_DAY_MS = 86_400_000
_log = structlog.get_logger()


@dataclass(slots=True)
class _Round:
    """``next``: the page to go on from; ``left``: how many pages are to come."""

    upto: int
    pages: int
    next: int
    left: int


@dataclass(slots=True)
class TombstoneWalk:
    """The rounds of all databases, by number; ``done``: up to which position the last whole one looked."""

    rounds: dict[int, _Round] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)

    def go(self, conn: Session, limits: Limits, pace: SweepPace, turn: SweepTurn) -> tuple[int, bool]:
        """Go on with a database's round. Gives the tombstones removed, and whether the round is over."""
        number, upto = limits.database_id, min(limits.floor, limits.kept_since_ms)
        current = self.rounds.get(number)
        if current is None:
            if upto <= 0 or upto - self.done.get(number, -_DAY_MS) < _DAY_MS:
                return 0, True
            pages = version_pages(conn)
            current = self.rounds[number] = _Round(upto, pages, random.randrange(pages or 1), pages)
        tables = table_ids(conn, number)
        removed = 0
        while current.left and not turn.over():
            first = current.next % current.pages
            end = min(first + min(pace.rows, current.left), current.pages)
            began = time.monotonic()
            try:
                found = remove_tombstones(conn, limits, tables, first, end)
            except Exception as error:
                if not is_timeout(error):
                    raise
                if not pace.shrink():
                    _log.warning("tombstones wait for a later sweep", detail=error)
                    return removed, False
                turn.rest(time.monotonic() - began)
                continue
            removed += found
            if found:
                faults.reach("after_removal")
            current.next, current.left = end, current.left - (end - first)
            pace.grow()
            turn.rest(time.monotonic() - began)
        if current.left:
            return removed, False
        self.done[number] = current.upto
        del self.rounds[number]
        return removed, True
