"""Judges whether a batch is at fault, by its failures so far.

States of a batch: *untried*; *failed in company* (it says nothing: the group is halved until one batch is left);
*failed alone*, of which only what follows counts:

* nothing, while a group without a batch fails as well (``store.group.control``): Postgres refuses everything, no batch
  is at fault, and this one stays where it is in the queue;
* nothing, where the control passes and Postgres itself says that it has no room or that another session holds a lock
  (``_STATES``): the control may be too small to notice. The batch *rests* for ``REST_MS``, so that it delays no other;
* once, where the control passes: it is *suspected*, rests, and is tried again. A session that ended may have been ended
  by any operator at any moment, so that many controls have to pass in a row. One that has lost its prepared statements
  is replaced by a new one, which has none to lose: a batch that fails so again has caused it itself.

A process that is killed leaves a mark of what it was trying (``group.undertaking``): a batch that was alone in its
group then counts as one that failed alone. Nobody is left to try a control, so that none is.

An error that a function of the application raises by itself counts against its batch, whatever its SQLSTATE.

After ``FAILURES_AT_MOST`` failures that count it is *given up*, with a reason that has a name; at once where it ran out
of the longer time that it had alone, since it delays all others of its database for so long.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.store.inbox.take import KILLED, LOST, PROGRAM
from anabranch.store.session.errors import Fault
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.decode import Refusal

FAILURES_AT_MOST = 3
GIVEN_UP = frozenset({errors_pb2.REASON_INTERNAL, errors_pb2.REASON_TOO_SLOW, errors_pb2.REASON_DATABASE_FAILURE})
"""The reasons of batches that are given up."""
CONTROLS = 3
CONTROLS_OF_A_LOST_SESSION = 12
"""So many in a row do not pass by chance where sessions are ended every few milliseconds."""
LOCK_NOT_AVAILABLE = "55P03"
"""A statement waited for a lock that another session holds (a row that a foreign key points to, or a key that is being
inserted) longer than ``lock_timeout``: no batch's fault, and no reason to delay others."""
NO_SUCH_STATEMENT = "26000"
"""The driver believes that the session has a prepared statement, and it has not: only another session helps."""
OUT_OF_TIME = "57014"
READ_ONLY = "25006"
_DISK_FULL, _TOO_MANY_CONNECTIONS, _CANNOT_CONNECT_NOW = "53100", "53300", "57P03"
# That the transaction takes no writes is none of them: the control sees that, however small it is.
_STATES = frozenset({_DISK_FULL, _TOO_MANY_CONNECTIONS, _CANNOT_CONNECT_NOW, LOCK_NOT_AVAILABLE})
REST_MS = 2_000
REST_GROWS = 4
"""By how many times longer a batch rests each time that it has failed alone."""
_ENDED = frozenset({"", "57P01", "57P02", "57P05", "08000", "08003", "08006"})


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The weight of a failure alone. ``failure``: the text that is kept (``store.inbox.take.Taken``). ``controls``:
    how many groups without a batch have to pass in a row before it counts. ``last``: it is not tried again. ``counts``:
    False where the batch only rests."""

    failure: str
    controls: int
    last: bool = False
    counts: bool = True


def suspicion(fault: Fault | None, *, tried_long: bool) -> Suspicion:
    """Return the weight of the failure of a batch that was alone.

    ``fault``: Postgres's, None for a fault of the program itself. ``tried_long``: the batch had the time that it has
    alone.
    """
    if fault is None:
        return Suspicion(PROGRAM, CONTROLS)
    if fault.sqlstate in _STATES and not fault.raised:
        return Suspicion(fault.sqlstate, CONTROLS, counts=False)
    if fault.sqlstate in _ENDED and not fault.raised:
        return Suspicion(fault.sqlstate or LOST, CONTROLS_OF_A_LOST_SESSION)
    return Suspicion(fault.sqlstate, CONTROLS, last=tried_long and fault.sqlstate == OUT_OF_TIME)


def of_captured(fault: Fault | None) -> bool:
    """Whether a failure may come from captured changes. Draining them runs no function of the application, so that
    failures of the session, or of Postgres itself, come from elsewhere."""
    if fault is None or fault.raised:
        return True
    return fault.sqlstate not in _STATES and fault.sqlstate not in (READ_ONLY, NO_SUCH_STATEMENT)


def given_up(failure: str) -> Refusal:
    """The refusal of a batch that has failed alone too often, the last time by ``failure``."""
    if failure == PROGRAM:
        text = "the server's program failed on the batch, alone, while others passed: its log has the fault"
        return Refusal(errors_pb2.REASON_INTERNAL, text)
    if failure == KILLED:
        text = (
            "the server's process was killed whenever the batch was tried alone: by a lack of memory, or its own fault"
        )
        return Refusal(errors_pb2.REASON_INTERNAL, text)
    if failure == OUT_OF_TIME:
        text = "the batch took longer than one may that has a group of its own (group_alone_timeout_ms)"
        return Refusal(errors_pb2.REASON_TOO_SLOW, text, sqlstate=failure)
    if failure == LOST:
        text = "Postgres ended the session, without an error, whenever the batch was tried alone, while others passed"
        return Refusal(errors_pb2.REASON_DATABASE_FAILURE, text)
    text = f"Postgres failed with SQLSTATE {failure} whenever the batch was tried alone, while others passed"
    return Refusal(errors_pb2.REASON_DATABASE_FAILURE, text, sqlstate=failure)
