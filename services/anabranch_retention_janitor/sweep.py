"""One sweep: ``run_once``.

States, in order; every one may be the last, by a kill or because the time is up, and the next sweep begins anew:

1. *led*: one janitor sweeps at a time (``store.retention.floor.lead``); another one's sweep ends here, having done
   nothing.
2. *ahead*: partitions of the log for the slots to come are there.
3. for each database, in turns, so that a large one does not keep the others waiting for ever:
   a. *looked*: facts are read, the plan made, the files looked for.
   b. *moved*: the floor is committed, step by step, each proven right before. From each commit on a reader below it
      gets BEHIND_FLOOR.
   c. *emptied*: what is at or below the **committed** floor goes, in pieces that commit by themselves: the log's rows
      where their partition can't go as a whole, conflicts, groups; then what is old beside it: verdicts, leftovers of
      the inbox, nodes; then tombstones.
   d. *cleared up*: what registrations that were cut off have left is removed.
4. *behind*: partitions that no database needs are emptied, and dropped where that needs no waiting. Rows that have no
   owner any more are removed, too.

Nothing at all is done while this machine's clock is far ahead of Postgres's: what is a month old by a wrong clock may
be a minute old, and what was removed is gone.

Nothing is remembered from sweep to sweep but how large pieces may be, and where the look for tombstones goes on; both
only save time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import structlog

from anabranch import faults
from anabranch.errors import ServerError
from anabranch.merge.retention import Bound
from anabranch.store.log import partitions
from anabranch.store.log.partitions import DEFAULT, Leaf
from anabranch.store.retention import floor as retention
from anabranch.store.retention import ownerless
from anabranch.store.retention.floor import Kept, is_timeout
from anabranch.store.retention.rows import ROWS, Limits, remove, remove_log
from anabranch.store.retention.status import Look, look
from anabranch.store.session.engine import Session
from anabranch_retention_janitor import cut_off
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.floor import move
from anabranch_retention_janitor.pace import SweepPace, SweepTurn, in_pieces
from anabranch_retention_janitor.tombstones import TombstoneWalk

_IDLE_MS = 60_000
CLOCK_AHEAD_MS = 3_600_000
_log = structlog.get_logger()


class ClockError(ServerError):
    """This machine's clock is too far ahead to be trusted; the message says by how much."""


@dataclass(slots=True)
class Swept:
    """The result of a sweep of one database. ``removed``: rows by kind. ``unfinished``: more rows may be removed, and
    the time was up."""

    name: str
    floor_before: int
    floor: int
    bounds: tuple[Bound, ...] = ()
    removed: dict[str, int] = field(default_factory=dict)
    unfinished: bool = False


@dataclass(slots=True)
class SweepMemory:
    """The memory that saves time from sweep to sweep: by kind of row, how large pieces may be; the tombstone walk."""

    settings: JanitorSettings
    paces: dict[str, SweepPace] = field(default_factory=dict)
    walk: TombstoneWalk = field(default_factory=TombstoneWalk)

    def pace(self, what: str, most: int) -> SweepPace:
        """The pace of a kind."""
        return self.paces.setdefault(what, SweepPace(most))


@contextmanager
def open_session(settings: JanitorSettings, name: str) -> Iterator[Session]:
    """A session for the block. Raises psycopg.OperationalError."""
    conn = retention.session(
        settings.postgres_url.get_secret_value(),
        f"retention-janitor-{name}",
        statement_timeout_ms=settings.sweep_statement_timeout_ms,
        lock_timeout_ms=settings.sweep_lock_timeout_ms,
        # Longer than any step: the lead is asked for between two of them.
        idle_ms=max(_IDLE_MS, 10 * settings.sweep_statement_timeout_ms),
    )
    try:
        yield conn
    finally:
        conn.close()


def run_once(
    memory: SweepMemory, now_ms: int, stopping: threading.Event, name: str | None = None
) -> list[Swept] | None:
    """Sweep all databases, or the one of that name, as of ``now_ms``. None where another janitor is sweeping.

    Raises:
        ClockError: this machine's clock is far ahead.
        psycopg.Error: Postgres is not available, or the lead is lost.
        StoppedError: ``stopping`` was set.
    """
    settings = memory.settings
    until = time.monotonic() + settings.sweep_max_ms / 1000
    with open_session(settings, "lead") as leader, retention.lead(leader) as still:
        if still is None:
            return None
        turn = SweepTurn(still, stopping, until, settings.sweep_statement_timeout_ms / 1000, _IDLE_MS / 4_000)
        with open_session(settings, "work") as conn:
            _require_clock(conn)
            _ahead(conn, memory, now_ms)
            swept = [_sweep(conn, memory, kept, now_ms, turn) for kept in retention.databases(conn, name)]
            _behind(conn, memory, now_ms, turn)
            _forget_ownerless(conn, memory, turn)
    return swept


def _require_clock(conn: Session) -> None:
    """Raises ClockError."""
    ahead_ms = machine_ms() - retention.server_ms(conn)
    if ahead_ms > CLOCK_AHEAD_MS:
        raise ClockError(f"this machine's clock is {ahead_ms / 3_600_000:.1f} h ahead of Postgres's: nothing is swept")


def machine_ms() -> int:
    """This machine's clock, which tests don't move."""
    return time.time_ns() // 1_000_000


def _ahead(conn: Session, memory: SweepMemory, now_ms: int) -> None:
    settings = memory.settings
    newest = partitions.newest_position(conn)
    there = partitions.leaves(conn)
    slot_ms, ahead = settings.log_partition_ms, settings.log_partitions_ahead
    for leaf in partitions.wanted(now_ms, newest, slot_ms, ahead, there):
        make = partial(
            partitions.make,
            conn,
            leaf,
            lock_timeout_ms=settings.sweep_lock_timeout_ms,
            statement_timeout_ms=settings.sweep_statement_timeout_ms,
        )
        if _unless_late("a partition of the log could not be made", leaf, make):
            _log.info("made a partition of the log", partition=leaf.name)


def _unless_late(text: str, leaf: Leaf, do: Callable[[], bool]) -> bool:
    """Do a step that may wait for a later sweep; gives whether it was done."""
    try:
        return do()
    except Exception as error:
        if not is_timeout(error):
            raise
        _log.warning(text, partition=leaf.name, detail=error)
        return False


def _behind(conn: Session, memory: SweepMemory, now_ms: int, turn: SweepTurn) -> None:
    lock_ms = memory.settings.sweep_lock_timeout_ms
    for leaf in partitions.leaves(conn):
        # One that positions may still come to is left, empty or not.
        if leaf.until > now_ms - memory.settings.log_partition_ms or turn.over():
            break
        if partitions.is_needed(conn, leaf.name):
            continue
        if _unless_late("a partition of the log waits to be dropped", leaf, partial(_clear, conn, leaf, lock_ms)):
            _log.info("dropped a partition of the log", partition=leaf.name)


def _forget_ownerless(conn: Session, memory: SweepMemory, turn: SweepTurn) -> None:
    for kind in ownerless.KINDS:
        pace = memory.pace(f"ownerless {kind.table}", memory.settings.sweep_max_rows)
        for number in ownerless.ownerless(conn, kind):
            removed, _ = in_pieces(turn, pace, partial(ownerless.forget, conn, kind, number))
            _log.info("removed what had no owner any more", table=kind.table, number=number, rows=removed)


def _clear(conn: Session, leaf: Leaf, lock_ms: int) -> bool:
    if partitions.empty_leaf(conn, leaf, lock_timeout_ms=lock_ms):
        faults.reach("after_removal")
    return partitions.drop_leaf(conn, leaf, lock_timeout_ms=lock_ms)


def _sweep(conn: Session, memory: SweepMemory, kept: Kept, now_ms: int, turn: SweepTurn) -> Swept:
    found: Look = look(conn, kept, now_ms)
    moved = move(conn, found, now_ms, memory.pace("floor", memory.settings.floor_max_changes), turn)
    swept = Swept(kept.name, kept.floor, moved.kept.floor, moved.bounds, {}, not moved.done)
    limits = found.limits(moved.kept.floor)
    for leaf in _by_rows(conn, moved.kept, now_ms):
        _pieces(swept, memory, turn, "log", partial(remove_log, conn, leaf, limits))
    for what in ROWS:
        _pieces(swept, memory, turn, what, partial(remove, conn, what, limits))
    _tombstones(conn, memory, swept, limits, turn)
    settings = memory.settings
    pace = memory.pace("gathered", settings.sweep_max_rows)
    swept.removed["gathered"], done = cut_off.clear(conn, kept, pace, turn, settings.sweep_lock_timeout_ms)
    swept.unfinished |= not done
    return swept


def _by_rows(conn: Session, kept: Kept, now_ms: int) -> list[str]:
    """The partitions whose rows go one by one: the default one, and those that this database is past and another one
    needs."""
    passed = [leaf.name for leaf in partitions.passed(conn, kept.id, kept.floor, now_ms)]
    return [DEFAULT, *(name for name in passed if partitions.is_needed(conn, name))]


def _pieces(swept: Swept, memory: SweepMemory, turn: SweepTurn, what: str, piece: Callable[[int], int]) -> None:
    removed, done = in_pieces(turn, memory.pace(what, memory.settings.sweep_max_rows), piece)
    swept.removed[what] = swept.removed.get(what, 0) + removed
    swept.unfinished |= not done


def _tombstones(conn: Session, memory: SweepMemory, swept: Swept, limits: Limits, turn: SweepTurn) -> None:
    pace = memory.pace("tombstones", memory.settings.tombstone_pages)
    removed, done = memory.walk.go(conn, limits, pace, turn)
    swept.removed["tombstones"] = removed
    swept.unfinished |= not done
