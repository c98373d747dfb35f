"""Finds the tables whose change can't be taken, where groups have failed several times because of some, and sets them
aside, so that the other tables go on.

Each trial takes the change of one table without the others, in a transaction that is rolled back. A table that fails
alone is at fault, unless the cause is one of Postgres's own (a full disk, an operator, another session's lock), or an
empty group fails as well (``store.group.control``): then nothing is said. The first time, what is captured of it is set
aside: it has to be pulled anew, and its change is taken as that. Where that fails, too, or where a right is missing,
which pulling needs as well, its change is refused for good (``enter.refuse_for_good``), in a transaction of its own:
whoever looks finds no change of it until it is altered again, or removed and added anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from anabranch.store.capture.captured import UndecodableError
from anabranch.store.catalog.out_of_sync import mark_torn
from anabranch.store.ddl import markers as marked
from anabranch.store.ddl.changes import AlteredMeanwhileError
from anabranch.store.ddl.enter import refuse_for_good
from anabranch.store.ddl.markers import Marker
from anabranch.store.group import control
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox.claim import allow, claim
from anabranch.store.inbox.take import Head
from anabranch.store.session.engine import Session
from anabranch.store.session.errors import is_nobodys
from anabranch.store.session.told import told
from anabranch_conflict_resolver.group.cache import Cache, current
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.schema.group import BusyTableError, take_change
from anabranch_conflict_resolver.schema.waiting import is_altered, look

_log = structlog.get_logger()
_TRIAL_MS = 60_000
"""How long a statement of a trial may take."""
_FAILURES = 3
"""Groups that have to fail before a table is looked for."""
_MISSING_RIGHT = "42501"
_PUBLISH_EACH = 30
"""Of failures with no table to blame, one in so many is published."""


@dataclass(frozen=True, slots=True)
class ChangeAtFault:
    """A table whose change can't be taken, and why. ``called``: its name in SQL. ``for_good``: its change is refused
    for good."""

    called: str
    why: str
    for_good: bool


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trial: what waits, and the group that would take it."""

    context: Context
    head: Head
    markers: list[Marker]


def failed(conn: Session, cache: Cache, database_id: int, now_ms: int, error: BaseException) -> None:
    """A group that was to take a change has failed, and was rolled back. Where that is so again and again, the tables
    at fault are set aside, and the log says which."""
    if not isinstance(error, Exception) or (isinstance(error, DatabaseError) and is_nobodys(error)):
        return
    cache.alter_failures += 1
    if cache.alter_failures < _FAILURES or not control.passes(conn, database_id):
        return
    name = cache.synced.database.name if cache.synced is not None else str(database_id)
    found = set_aside(conn, cache, database_id, now_ms)
    if not found:
        text = "a change of tables can't be taken, and no table is shown to be at fault: it is tried again"
        say = _log.error if cache.alter_failures % _PUBLISH_EACH == _FAILURES else _log.debug
        say(text, database=name, failures=cache.alter_failures, detail=error)
        return
    cache.alter_failures = 0
    for one in found:
        text = "a table was altered, and its change can't be taken: it is pulled anew"
        if one.for_good:
            text = "a table was altered, and its change can't be taken: it has to be removed and added anew"
        _log.error(text, database=name, table=one.called, detail=one.why)


def set_aside(conn: Session, cache: Cache, database_id: int, now_ms: int) -> list[ChangeAtFault]:
    """Find the tables that are at fault, and set them aside; none where nothing is shown.

    Raises:
        psycopg.Error: the session is lost.
    """
    tables: dict[int, list[Marker]] = {}
    with _begun(conn, cache, database_id, now_ms) as begun:
        if begun is None:
            return []
        database = begun.context.synced.database
        waiting = {marker.id for marker in begun.markers}
        for marker in begun.markers:
            tables.setdefault(marker.table_id, []).append(marker)
    found: list[ChangeAtFault] = []
    for number, markers in tables.items():
        why = _why_not(conn, cache, database_id, now_ms, number) if number else None
        if why is not None and is_altered(conn, database, sorted(waiting)):
            # A trial fails for that, too: nothing is said of any table.
            return found
        if why is not None:
            table = database.tables_by_id.get(number)
            for_good = why.for_good or table is None or table.name in database.torn
            if table is not None:
                mark_torn(conn, database_id, table.name, now_ms=now_ms)
            if for_good:
                refuse_for_good(conn, database_id, markers, now_ms=now_ms)
                waiting -= {marker.id for marker in markers}
            conn.commit()
            found.append(ChangeAtFault(markers[-1].sql_name, why.text, for_good))
    return found


@dataclass(frozen=True, slots=True)
class _Why:
    """Why a change can't be taken. ``for_good``: nor can it be where its table is pulled anew."""

    text: str
    for_good: bool = False


def _why_not(conn: Session, cache: Cache, database_id: int, now_ms: int, number: int) -> _Why | None:
    """Why a table's change can't be taken without the others; None where it can, or where nothing can be said."""
    try:
        with _begun(conn, cache, database_id, now_ms) as begun:
            if begun is None:
                return None
            context, database = begun.context, begun.context.synced.database
            allow(conn, _TRIAL_MS)
            mine = [marker for marker in begun.markers if marker.table_id in (number, 0)]
            others = [marker for marker in begun.markers if marker not in mine]
            marked.delete(conn, database_id, others)
            work = look(conn, database, mine, context.position)
            altered = {marker.table_id for marker in others}
            without = {table.name for table in database.tables.values() if table.id in altered}
            take_change(context, cache, begun.head, work, without=without)
    except (AlteredMeanwhileError, BusyTableError):
        return None
    except UndecodableError as error:
        return _Why(str(error))
    except DatabaseError as error:
        nothing = conn.closed or is_nobodys(error)
        return None if nothing else _Why(told(error), for_good=error.sqlstate == _MISSING_RIGHT)
    except Exception as error:
        # A fault of this program that some table triggers.
        return _Why(told(error))
    return None


@contextmanager
def _begun(conn: Session, cache: Cache, database_id: int, now_ms: int) -> Iterator[_Trial | None]:
    """A transaction that holds the claim, and is rolled back; None where another session has the claim."""
    try:
        claimed = claim(conn, database_id, lambda: lambda: None)
        head = claimed.head
        if not claimed.ours or head is None:
            yield None
            return
        synced = current(conn, cache, head)
        context = Context(conn, synced, max(head.clock_ms, head.position) + 1, now_ms, 0)
        yield _Trial(context, head, marked.waiting(conn, database_id))
    finally:
        if not conn.closed:
            conn.rollback()
