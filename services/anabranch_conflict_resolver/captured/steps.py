"""Captured rows as changes of the rows that the rules know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from anabranch.merge import RowState
from anabranch.store.capture import captured
from anabranch.store.capture.captured import Captured
from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.changes import AlteredMeanwhileError
from anabranch.store.ddl.notice import notice
from anabranch.store.group.rows import Row
from anabranch.store.session.engine import Session
from anabranch.values import Table, key_text
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.captured.server_batches import Step
from anabranch_conflict_resolver.group.table import SyncedTable
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View, read_histories


def steps_of(conn: Session, synced: SyncedDatabase, rows: Sequence[Captured]) -> dict[int, list[Step]]:
    """The changes in captured rows, by transaction, in their order. An update of a key is a delete and an insert. Rows
    of a table that is not synced any more, or can't be read, are left out.

    Raises:
        AlteredMeanwhileError: a table was altered, and nothing had told of it.
        UndecodableError: a table has drifted; it is ``unreadable`` from now on, and the group is to be tried again.
    """
    made: dict[int, list[Step]] = {row.xid: [] for row in rows}
    older = synced.older
    altered = partial(_look_at, conn, synced.database)
    before, after = captured.images(conn, synced.database, rows, synced.unreadable, older, altered)
    tables = {table.table.id: table for table in synced.tables.values()}
    for row, old, new in zip(rows, before, after, strict=True):
        table = tables.get(row.table_id)
        if table is None or (old is None and new is None):
            continue
        steps = made[row.xid]
        era = 0 if older is None else older.era_of(row.table_id, row.id)
        at, new_at = _at(table, old), _at(table, new)
        if at is None or new_at is None or at == new_at:
            both = at or new_at
            assert both is not None
            steps.append(Step(table, both, old, new, (row.old, row.new), row.depth, era=era))
        else:
            steps.append(Step(table, at, old, None, (row.old, None), row.depth, rekeyed=True, era=era))
            steps.append(Step(table, new_at, None, new, (None, row.new), row.depth, rekeyed=True, era=era))
    return made


def _look_at(conn: Session, database: Database, table: Table) -> None:
    """Images of other columns than are registered may be older than their table; or event triggers missed a change."""
    if notice(conn, database, table.id):
        raise AlteredMeanwhileError(f'table "{table.sql_name}" was altered, and nothing had told of it')


def _at(table: SyncedTable, row: Row | None) -> RowKey | None:
    return None if row is None else (table.table.name, key_text([row[i] for i in table.table.key_index]))


def know(conn: Session, synced: SyncedDatabase, view: View, rows: Iterable[RowKey]) -> None:
    """Add the histories of ``rows`` to the view, where it does not have them. The values of such a row are not added:
    it is not locked."""
    found = read_histories(conn, synced.tables, [at for at in rows if at not in view.states])()
    for at, version in found.items():
        view.states[at] = RowState(None if version.tombstone_batch is not None else {}, version)
        if version.audience is not None:
            view.audiences[at] = version.audience
    if found:
        view.versioned |= found.keys()
