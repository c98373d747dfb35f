"""The group that takes a change of tables by DDL.

States of a change: *waiting* (its markers are among the captured changes, ``waiting``), *first in line* (nothing that
it does not concern ends before it), *taken* (by the commit of this group). While it waits, no batch is decided: none
could be judged by tables that are no longer what the group takes them for.

The group, in one transaction and at one position:

1. *entered*: the catalog follows the tables (``store.ddl.enter``), and the database is compiled as it is from here on.
2. *drained*: all captured changes that the change concerns. Each is read by the columns that its table had at its time
   and brought to those of today; whatever the change alone made of a value, these say nothing of.
3. *told*: rows of altered tables, as they stand at this position, say the rest (``rewriting``), as effects of one batch
   of the server, the last of its batches here.
4. *recorded*: as any group; a reader alters its tables before it applies the group's effects.

Whoever alters a table once more while values are told need not wait for all of them: a group that has run for a moment
gives way, is rolled back, and takes both changes together. It does so a few times in a row, then goes on to its end.

So each captured change, and each batch, is read by exactly one shape of its table. A table that is altered once more
meanwhile shows by a new marker before the commit, and all of it is done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from anabranch.errors import ServerError
from anabranch.store.capture.large import concerned
from anabranch.store.capture.older_images import OlderImages
from anabranch.store.capture.undrained import UndrainedError
from anabranch.store.catalog.databases import Database
from anabranch.store.ddl import markers as marked
from anabranch.store.ddl.changes import AlteredMeanwhileError
from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.enter import enter
from anabranch.store.ddl.images import image_shapes
from anabranch.store.ddl.in_the_way import is_in_the_way
from anabranch.store.inbox.take import Head
from anabranch.store.session.engine import Session
from anabranch.store.session.plans import forget_plans
from anabranch_conflict_resolver.captured.backlog import drain_through
from anabranch_conflict_resolver.captured.intake import NOTHING_CAUSED
from anabranch_conflict_resolver.captured.server_batches import Drained, SchemaOrigin, ServerBatch, schema_batch_id
from anabranch_conflict_resolver.group.cache import Cache, compile_now, load
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.records import Recorded, Recount, record
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View
from anabranch_conflict_resolver.schema.rewriting import tell_values
from anabranch_conflict_resolver.schema.waiting import SchemaWork, is_read, words

_ROUNDS = 20
"""How often more may be captured of a table that is to be read than can be taken back."""


GIVES_WAY_AT_MOST = 5
"""How often in a row groups of one database give way to those who alter its tables once more."""
GIVES_WAY_AFTER_S = 0.5
"""A group that has run for less ends soon, or will be asked again."""


class BusyTableError(ServerError):
    """A table is written to faster than its changes can be drained."""

    REASON = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class SchemaGroup:
    """A group that has taken a change, before its commit. ``synced``: the database from here on. ``version``: the
    schema version that the change made; None where nothing is different in the end. ``drained``: captured changes;
    ``rows``: effects that tell values; ``words``: the change in words."""

    synced: SyncedDatabase
    recorded: Recorded
    version: int | None
    drained: int
    rows: int
    words: str


def take_change(
    context: Context, cache: Cache, head: Head, work: SchemaWork, *, without: Set[str] = frozenset()
) -> SchemaGroup:
    """Run the group that takes ``work``; its commit is left to the caller. ``without``: tables whose captured changes
    are left out, for a trial.

    Raises:
        AlteredMeanwhileError: somebody waits to alter a table that it reads; it has to be tried again.
        BusyTableError: it has to be tried again.
        UndecodableError: a table has drifted.
        psycopg.Error: Postgres refused a statement.
    """
    conn, database, position = context.conn, context.synced.database, context.position
    begun_s = time.monotonic()
    forget_plans(conn)
    entered = enter(conn, database, work.changes, position=position, now_ms=context.now_ms)
    marked.delete(conn, database.id, work.markers)
    changes = work.changes if entered is None else entered.changes
    context = replace(context, synced=_synced(conn, load(conn, cache, head.name), work, changes, without))
    batches = drain_through(context, work.last)
    message = words(changes, work.markers, entered.version if entered is not None else database.ddl_version)
    batch = ServerBatch(schema_batch_id(position), SchemaOrigin(work.markers[0].role, message), position)
    counted = Recount()
    _tell(context, changes, batches, batch, counted, lambda: _give_way(conn, cache, begun_s))
    for change in changes:
        _note_readers(context.synced, change, batch)
    drained = Drained([*batches, batch], (), NOTHING_CAUSED)
    recorded = record(
        context,
        head,
        (),
        Progress(View(), drained=drained),
        {},
        {},
        dropped=(),
        while_waiting=lambda: None,
        counted=counted if entered is not None else None,
    )
    return SchemaGroup(
        _afterwards(conn, context.synced),
        recorded,
        None if entered is None else entered.version,
        sum(one.ordinal for one in batches),
        counted.rows,
        message,
    )


def _synced(
    conn: Session, database: Database, work: SchemaWork, changes: Sequence[TableChange], without: Set[str]
) -> SyncedDatabase:
    """The database from here on, as the group reads captured changes. Those of tables that are read as a whole and that
    nobody knows yet are left out."""
    # While others wait, as in a trial, nothing is known of drift.
    synced = compile_now(conn, database, altered=bool(without))
    whole = {one.after.name for one in changes if one.after is not None and (one.before is None or one.pulled)}
    shapes = image_shapes(conn, database.id)
    growing = {number: places for number, places in synced.growing.items() if number not in shapes.older}
    unreadable = synced.unreadable | whole | without
    return replace(synced, older=OlderImages(shapes, work.unknown), unreadable=unreadable, growing=growing)


def _afterwards(conn: Session, synced: SyncedDatabase) -> SyncedDatabase:
    """The same database for the groups that follow."""
    shapes = image_shapes(conn, synced.database.id)
    older = OlderImages(shapes) if shapes.older else None
    return replace(synced, older=older, unreadable=set(synced.database.torn))


def _give_way(conn: Session, cache: Cache, begun_s: float) -> None:
    if time.monotonic() - begun_s < GIVES_WAY_AFTER_S:
        return
    if cache.gave_way < GIVES_WAY_AT_MOST and is_in_the_way(conn):
        cache.gave_way += 1
        raise AlteredMeanwhileError("somebody waits to alter a table that the group reads")


def _tell(
    context: Context,
    changes: Sequence[TableChange],
    batches: list[ServerBatch],
    batch: ServerBatch,
    counted: Recount,
    give_way: Callable[[], None],
) -> None:
    conn, database = context.conn, context.synced.database
    read = [one.after.id for one in changes if one.after is not None and is_read(one)]
    for _ in range(_ROUNDS):
        try:
            tell_values(context, changes, batch, counted, give_way)
        except UndrainedError:
            found = concerned(conn, database.id, {}, read)
            if found is not None:
                batches += drain_through(context, found[1], number=len(batches))
        else:
            return
    raise BusyTableError("an altered table is written to faster than its changes are drained")


def _note_readers(synced: SyncedDatabase, change: TableChange, batch: ServerBatch) -> None:
    """Have everybody's audiences evaluated anew where a membership query reads the table."""
    for table in (change.before, change.after):
        if table is not None and any(table.name in one.tables for one in synced.database.audience_rules.memberships):
            batch.changed.before[table.name] = batch.changed.after[table.name] = None
