"""A group's changes of audiences: of the sums of their rows, and of the sets of principals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import structlog

from anabranch.runtime import metrics
from anabranch.store.audiences.affected import (
    AT_ONCE,
    ChangedRows,
    affected,
    evaluate_known,
    everybody,
    is_missed,
    note_missed,
)
from anabranch.store.audiences.evaluated import QUERY_FAILS, read_failure
from anabranch.store.audiences.principals import Given
from anabranch.store.audiences.row_audiences import Audiences
from anabranch.store.audiences.sums import AudienceSums, read_audience_sums
from anabranch.store.catalog.databases import Database
from anabranch.store.group.waves import DatabaseError
from anabranch.store.session.engine import Session
from anabranch.values.canonical import SUM_MODULUS
from anabranch_conflict_resolver.batch.results import Change
from anabranch_conflict_resolver.batch.shown import AudienceChanges, add_sums, add_to_all
from anabranch_conflict_resolver.group.table import SyncedTable

T = TypeVar("T")
_MOST_FAILING = 40
"""Evaluations that fail for one group: enough to single out three of two thousand principals."""
_log = structlog.get_logger()


def new_audience_sums(
    conn: Session, tables: Mapping[str, SyncedTable], of_rows: AudienceChanges, known: AudienceSums
) -> AudienceSums:
    """The sums after the group of the audiences whose rows it changed; those that are read are added to ``known``."""
    changes = {(tables[name].table.id, audience): change for (name, audience), change in of_rows.items()}
    unknown = changes.keys() - known.keys()
    if unknown:
        known.update(read_audience_sums(conn, unknown))
    after: AudienceSums = {}
    for place, (count_change, hash_change) in changes.items():
        count, total = known.get(place, (0, 0))
        after[place] = (count + count_change, (total + hash_change) % SUM_MODULUS)
    return after


def changed_sets(conn: Session, database: Database, changed: ChangedRows) -> Mapping[str, tuple[Given, Given]]:
    """The principals whose sets the group changes, each with what membership queries gave before and give with it.

    Where a query fails on the tables as they are, that is logged, and the sets of those for whom it fails stay as they
    were: nothing waits for its owner. That they may be others is noted, and each group that changes what queries read
    evaluates everybody, until none fails.

    Raises:
        psycopg.Error: Postgres refused something else.
    """
    if not changed:
        return {}
    missed = is_missed(conn, database)
    found: dict[str, tuple[Given, Given]] = {}
    failing = _Failing(database)
    concerned = failing.tried(conn, lambda: affected(conn, database, changed))
    if concerned is not None:
        _evaluate(conn, failing, concerned, found)
    if missed or concerned is None:
        _evaluate(conn, failing, sorted(set(everybody(conn, database)) - set(concerned or ())), found)
    if missed != failing.any:
        note_missed(conn, database, failing.any)
    return found


class _Failing:
    """Counts what failed of one group's evaluations; each is undone by itself."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.left = _MOST_FAILING

    @property
    def any(self) -> bool:
        """Whether something failed."""
        return self.left < _MOST_FAILING

    def tried(self, conn: Session, work: Callable[[], T]) -> T | None:
        """The work's result; None where a query failed."""
        try:
            with conn.transaction():
                return work()
        except QUERY_FAILS as error:
            if not self.any:
                log_failure(self.database, error)
            self.left -= 1
            return None


def _evaluate(
    conn: Session, failing: _Failing, principals: Sequence[str], found: dict[str, tuple[Given, Given]]
) -> None:
    """Evaluate principals; where that fails, each half by itself, down to the one for whom it does, as long as not too
    much has failed."""
    waiting = [principals[first : first + AT_ONCE] for first in range(0, len(principals), AT_ONCE)]
    while waiting and failing.left > 0:
        some = waiting.pop()
        given = failing.tried(conn, partial(evaluate_known, conn, failing.database, some))
        if given is not None:
            found.update(given)
        elif len(some) > 1:
            middle = len(some) // 2
            waiting += [some[:middle], some[middle:]]


def log_failure(database: Database, error: DatabaseError) -> None:
    """Log and count that a membership query fails."""
    metrics.count("anabranch_membership_query_failures", database=database.name)
    _log.error(
        "a membership query fails: for whom it does, audiences stay as they were until it, or what it reads, is mended",
        database=database.name,
        **read_failure(error),
    )


def add_changed_rows(sums: AudienceChanges, changes: Sequence[Change]) -> None:
    """Add a batch's changes to those of the sums of audiences. Rows that stand together are mostly of the same
    audiences: these are added as one."""
    table, count, total = "", 0, 0
    whose: Audiences = ()
    for change in changes:
        shown, effect = change.shown, change.effect
        if shown is None:
            continue
        if shown.sums:
            add_sums(sums, change.write.table, shown, effect)
        elif effect.count_change or effect.hash_change:
            of_row = shown.after or shown.before
            if of_row is not whose or change.write.table != table:
                add_to_all(sums, table, whose, count, total)
                table, whose, count, total = change.write.table, of_row, 0, 0
            count += effect.count_change
            total += effect.hash_change
    add_to_all(sums, table, whose, count, total)
