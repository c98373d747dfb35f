"""Finds the table whose captured changes can't be drained, where some can't.

It is asked when the transaction that ends first has failed several times with nothing beside it. Each trial drains it
with the changes of some tables only, in a transaction that is rolled back. Where an empty group fails
(``store.group.control``), no table is at fault, nor where the cause is one of Postgres's own (a full disk, an operator,
a lost session, another session's lock). A table is at fault if its changes fail where nothing else does, twice in a
row; where each table's changes pass alone, the one without which the others pass.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from anabranch.store.capture.captured import UndecodableError
from anabranch.store.capture.large import tables_of
from anabranch.store.group import control
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox import take
from anabranch.store.inbox.claim import allow, claim
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session.engine import Session
from anabranch.store.session.errors import is_nobodys
from anabranch.store.session.told import told
from anabranch_conflict_resolver.captured.backlog import drain_backlog
from anabranch_conflict_resolver.captured.outstanding import Outstanding
from anabranch_conflict_resolver.group.cache import Cache, current
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.records import gather, new_sums, write
from anabranch_conflict_resolver.group.tables import SyncedDatabase

TRIAL_MS = 60_000
"""How long a statement of a trial may take."""


@dataclass(frozen=True, slots=True)
class AtFault:
    """A table, and the reason why its changes can't be drained. ``called``: its name in SQL."""

    table: str
    why: str
    called: str


def table_at_fault(conn: Session, cache: Cache, database_id: int, now_ms: int, clock_offset_ms: int) -> AtFault | None:
    """The table whose captured changes can't be drained; None where none is shown to be at fault. Nothing is written.

    Raises:
        psycopg.Error: the session is lost.
    """
    trials = _Trials(conn, cache, database_id, now_ms, clock_offset_ms)
    tables = trials.tables()
    for name in sorted(tables):
        why = trials.fails({name}) and trials.fails({name})
        if why is None:
            return None
        if why:
            return AtFault(name, why, trials.called(name))
    together = trials.fails(tables) if len(tables) > 1 else ""
    for name in sorted(tables) if together else ():
        without = trials.fails(tables - {name})
        if without is None:
            return None
        if not without:
            return AtFault(name, str(together), trials.called(name))
    return None


@dataclass(slots=True)
class _Trials:
    conn: Session
    cache: Cache
    database_id: int
    now_ms: int
    clock_offset_ms: int

    def tables(self) -> set[str]:
        """The synced tables that the first transaction has changed; none where nothing can be said now."""
        try:
            begun = self._begin(None)
            if begun is None:
                return set()
            context, outstanding = begun
            outstanding.scan(self.conn, self.database_id)
            transactions = outstanding.next_ones()
            found = tables_of(self.conn, self.database_id, transactions[0]) if transactions else []
            synced = context.synced
            names = {synced.database.tables_by_id[number].name for number in found if number in _known(synced)}
            return names - synced.unreadable
        finally:
            self._end()

    def called(self, name: str) -> str:
        """The name in SQL of a table that was tried."""
        assert self.cache.synced is not None
        return self.cache.synced.tables[name].table.sql_name

    def fails(self, only: Set[str]) -> str | None:
        """Return why the changes of some tables can't be drained without the others; "" where they can, None where
        nothing can be said now."""
        if not control.passes(self.conn, self.database_id):
            return None
        try:
            begun = self._begin(only)
            if begun is None:
                return None
            try:
                self._drain(*begun)
            except UndecodableError as error:
                return str(error)
            except DatabaseError as error:
                return None if self.conn.closed or is_nobodys(error) else told(error)
            except Exception as error:
                # A fault of this program that some value triggers.
                return told(error)
            return ""
        finally:
            self._end()

    def _begin(self, only: Set[str] | None) -> tuple[Context, Outstanding] | None:
        claimed = claim(self.conn, self.database_id, lambda: lambda: None)
        head = claimed.head
        if not claimed.ours or head is None:
            return None
        allow(self.conn, TRIAL_MS)
        synced = current(self.conn, self.cache, head)
        if self.cache.altered:
            return None
        if only is not None:
            synced = replace(synced, unreadable=synced.unreadable | (synced.tables.keys() - only))
        position = max(head.clock_ms + self.clock_offset_ms, head.position + 1)
        return Context(self.conn, synced, position + 1, self.now_ms, 0), Outstanding(one_by_one=True)

    def _end(self) -> None:
        self.cache.sums.clear()
        if not self.conn.closed:
            self.conn.rollback()

    def _drain(self, context: Context, outstanding: Outstanding) -> None:
        progress = drain_backlog(context, outstanding)
        tables = context.synced.tables
        records = gather(context.synced, context.position, (), progress.drained)
        known = take.read_sums(self.conn, {tables[name].table.id for name in records.sum_changes})
        sums = new_sums(tables, records, known)
        write(context, records, progress.view, sums, progress.drained, EMPTY_CHAIN, (), True, lambda: None)


def _known(synced: SyncedDatabase) -> Set[int]:
    return synced.database.tables_by_id.keys()
