"""The turn of a change of tables among a database's groups: what a group that begins finds waiting, and the commit of
the group that takes it."""

from __future__ import annotations

import time

from anabranch import faults
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.drift import fingerprint
from anabranch.store.ddl.markers import waiting
from anabranch.store.ddl.notice import notice
from anabranch.store.inbox.take import Head
from anabranch.store.inbox.undertaken import OWNER, finish
from anabranch.store.session.engine import Session
from anabranch_conflict_resolver.captured.outstanding import Outstanding
from anabranch_conflict_resolver.group.cache import NOTHING, Cache, Undertaken
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.outcome import Between, Outcome
from anabranch_conflict_resolver.schema.group import take_change
from anabranch_conflict_resolver.schema.told import tell
from anabranch_conflict_resolver.schema.waiting import SchemaWork, look


def first_in_line(conn: Session, cache: Cache, database: Database, position: int) -> SchemaWork | None:
    """The change of tables that the group takes; None where none waits, and where captured changes stand before it:
    then these are outstanding, and no batch comes before them.

    Raises:
        AlteredMeanwhileError: tables are altered at this very moment.
        psycopg.Error: Postgres refused a statement.
    """
    markers = waiting(conn, database.id) if cache.altered else []
    numbers = [marker.id for marker in markers]
    if list(cache.markers) != numbers:
        cache.outstanding, cache.markers = Outstanding(), numbers
    if not markers or cache.outstanding.waiting:
        return None
    cache.undertaken = Undertaken(alters=True)
    work = look(conn, database, markers, position)
    cache.outstanding.up_to = work.first - 1
    cache.outstanding.scan(conn, database.id)
    if not cache.outstanding.waiting:
        return work
    cache.undertaken = NOTHING
    return None


def commit_change(context: Context, cache: Cache, head: Head, work: SchemaWork) -> Outcome | None:
    """Take a change, and commit; None where tables were altered meanwhile: then it is rolled back.

    Raises:
        psycopg.Error: nothing was done, or, where the session was lost in COMMIT, perhaps all of it.
    """
    started = time.perf_counter()
    conn, database = context.conn, context.synced.database
    group = take_change(context, cache, head, work)
    if group.recorded.between is not Between.NONE or (not cache.watched and notice(conn, group.synced.database)):
        conn.rollback()
        return None
    shape = fingerprint(conn, head.name)
    if head.owner == OWNER:
        finish(conn, database.id)
    faults.reach("before_commit")
    conn.commit()
    faults.reach("after_commit")
    cache.follow(group.synced, shape, group.recorded.link)
    cache.trouble.passed()
    if group.version is not None:
        took_s = time.perf_counter() - started
        tell(database.name, group.version, group.words, rows=group.rows, drained=group.drained, took_s=took_s)
    return Outcome(True, context.position, head.name, drained=max(1, group.drained))
