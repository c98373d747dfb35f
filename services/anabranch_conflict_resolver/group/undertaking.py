"""Which batches of those that were taken a group tries, and the mark that says so where the process may be killed.

A process that has just begun may have been killed by a batch, and may be again: by a lack of memory, or by a fault in a
library. So it writes down what each group tries, until it has seen all that waits (``Cache.is_careful``). Who claims
the database next finds the mark of a process that is gone. Where the mark names several batches, none is blamed: they
are tried in small groups, and where one of these ends in the same way each alone. A batch that was alone is counted,
as one that failed alone is (``blame.evidence``). So an innocent one that was in work when somebody else's fault, or an
operator, killed the process is decided at its next try.

While captured changes wait that have not been drained alone, they may be what kills: then they are, and nothing is
written down.

Whose batches a group passes over altogether comes next: a group that tries one batch alone, or is cut short, decides
those with the lowest ids, and they may all be one principal's, again and again. So no principal waits for two of them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import structlog

from anabranch.runtime import metrics
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox import take, undertaken
from anabranch.store.inbox.claim import claim
from anabranch.store.inbox.take import KILLED, Head, Taken
from anabranch.store.inbox.undertaken import OWNER
from anabranch.store.session.engine import Session
from anabranch_conflict_resolver.blame.evidence import REST_GROWS

_log = structlog.get_logger()
SHARES = 64
"""Of so many batches that were in work when a process was killed, one is tried at a time."""


class Chosen(NamedTuple):
    """``now``: the batches that the group tries; ``later``: those that the next one will probably take. ``failed``: its
    one batch has failed alone before. ``suspected``: one of them was in work when a process was killed. ``owed``: the
    principals whose batches it passes over for that."""

    now: list[Taken]
    later: Sequence[Taken]
    failed: bool = False
    suspected: bool = False
    owed: Set[str] = frozenset()

    @property
    def ids(self) -> list[str]:
        return [t.batch_id for t in (*self.now, *self.later)]


def choose(taken: list[Taken], most: int, owed: Set[str] = frozenset()) -> Chosen:
    """Choose from the batches that were taken. ``owed``: the principals that the last group passed over."""
    now = [t for t in taken[:most] if t.principal in owed] if owed else []
    later: Sequence[Taken] = [t for t in taken if t.principal not in owed][:most] if now else taken[most:]
    now = now or taken[:most]
    failed = [t for t in now if t.attempts]
    if failed:
        # It may be one that takes long, as a delete that cascades over a million rows: it has a group of its own, and
        # time for it. The others come next.
        alone = failed[:1]
        return Chosen(alone, (), failed=True, suspected=alone[0].company > 0, owed=passed_over(now, alone))
    suspected = [t for t in now if t.failure and t.company]
    if suspected:
        few = suspected[: max(1, suspected[0].company // SHARES)]
        return Chosen(few, (), suspected=True, owed=passed_over(now, few))
    return Chosen(now, later)


def passed_over(of: Sequence[Taken], served: Sequence[Taken]) -> Set[str]:
    """The principals of batches of which none is ``served``."""
    return {t.principal for t in of} - {t.principal for t in served}


def settle(conn: Session, database_id: int, head: Head, now_ms: int, rest_ms: int) -> bool:
    """Hold a mark against the batches that it names, where the process that has left it is gone, and commit that;
    whether it is so."""
    ids, owner = head.undertaken, head.owner
    if ids is None or owner is None or owner == OWNER or undertaken.is_alive(conn, owner):
        return False
    metrics.count("anabranch_group_retries", database=head.name, cause=KILLED)
    if len(ids) == 1:
        attempts = take.count_attempt(conn, database_id, ids[0], now_ms, rest_ms, REST_GROWS, failure=KILLED)
        text = "a resolver was killed while it tried a batch alone"
        _log.error(text, database=head.name, batch=ids[0], attempts=attempts)
    else:
        undertaken.suspect(conn, database_id, ids)
        text = "a resolver was killed while it tried batches: they are tried again, in smaller groups"
        _log.warning(text, database=head.name, batches=len(ids))
    undertaken.finish(conn, database_id)
    conn.commit()
    return True


def write_down(conn: Session, database_id: int, head: Head, ids: Sequence[str]) -> Head | None:
    """Commit a mark for these batches, and claim the database once more; the head as it is then. None where another
    resolver has come between."""
    undertaken.undertake(conn, database_id, ids)
    conn.commit()
    claimed = claim(conn, database_id, lambda: lambda: None)
    again = claimed.head
    if not claimed.ours or again is None or again.undertaken is None:
        return None
    same = (again.position, again.schema_version, again.owner) == (head.position, head.schema_version, OWNER)
    return again if same else None


def put_down(conn: Session, database_id: int) -> None:
    """Delete the mark of a group that has failed while the process lives; what the failure says is found otherwise."""
    try:
        undertaken.finish(conn, database_id)
        conn.commit()
    except DatabaseError as error:
        _log.debug("a mark stays until the next group", detail=error)
        if not conn.closed:
            conn.rollback()
