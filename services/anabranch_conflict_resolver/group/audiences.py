"""A group's changes of audiences: of the sums of their rows, and of the sets of principals."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from anabranch.runtime import metrics
from anabranch.store.audiences.affected import ChangedRows, affected, evaluate_known, note_missed
from anabranch.store.audiences.evaluated import QUERY_FAILS, read_failure
from anabranch.store.audiences.principals import Given
from anabranch.store.audiences.sums import AudienceSums, read_audience_sums
from anabranch.store.catalog.databases import Database
from anabranch.store.group.waves import DatabaseError
from anabranch.store.session.engine import Session
from anabranch.values.canonical import SUM_MODULUS
from anabranch_conflict_resolver.batch.shown import AudienceChanges
from anabranch_conflict_resolver.group.table import SyncedTable

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
    Where a query fails on the tables as they are, that is logged, and every set stays as it was: nothing waits for its
    owner. The next group that changes what queries read makes up for it, if they work by then.

    Raises:
        psycopg.Error: Postgres refused something else.
    """
    if not changed:
        return {}
    try:
        with conn.transaction():
            found = evaluate_known(conn, database, affected(conn, database, changed))
            note_missed(conn, database, missed=False)
            return found
    except QUERY_FAILS as error:
        log_failure(database, error)
        note_missed(conn, database, missed=True)
        return {}


def log_failure(database: Database, error: DatabaseError) -> None:
    """Log and count that a membership query fails."""
    metrics.count("anabranch_membership_query_failures", database=database.name)
    _log.error(
        "a membership query fails: audiences stay as they were until the query or what it reads is mended",
        database=database.name,
        **read_failure(error),
    )
