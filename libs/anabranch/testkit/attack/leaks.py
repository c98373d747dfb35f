"""Leaks: what a principal received of rows that it could see at no position reached.

``Wiretap`` (beside this) takes down what each principal gets, and ``leaks`` holds it against the ``History`` of the
restricted tables. Kinds of a leak:

* *value*: a marked value that the principal could not see, in any bytes: a row in the log or a pull, a row beside a
  verdict, a value that lost, the text of an error;
* *sum*: a sum of a restricted table that is of no audience, or of one that is not the principal's, or one that was
  never true of this audience, such as the whole table's;
* *count*: a number of rows, a comparison's or an estimate, that is larger than what the principal could see;
* *audience*: the name of an audience that was never the principal's;
* *batch*: somebody else's batch of which nothing was left to see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from anabranch.testkit.attack.history import History
from anabranch.testkit.attack.received import Counted, Received

ESTIMATE, ROWS_DONE = "Table.estimated_rows", "PullResponse.rows_done"
PULL = "/anabranch.v1.SnapshotService/Pull"
PRESENT = frozenset({PULL, "/anabranch.v1.ConflictResolverService/Explain"})
"""Methods that read tables as they are."""
VERDICTS = frozenset(
    {
        "/anabranch.v1.IngestService/Send",
        "/anabranch.v1.IngestService/SendStream",
        "/anabranch.v1.ConflictResolverService/GetVerdict",
    }
)
"""Methods that give a principal its verdicts: the same again, whatever its token claims by then."""
_SUMS = frozenset({"LoggedGroup", "GetResponse", "SubscribeResponse", "PullResponse"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The receiver of something: a principal, the audiences that the call's token gave by its claims, and the nodes
    that are the principal's own."""

    principal: str
    claimed: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Leak:
    """One leak. ``kind`` as above; ``what`` leaked, and in which ``method``'s answer."""

    kind: str
    principal: str
    method: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.principal} got {self.what} by {self.method}"


def leaks(history: History, caller: Caller, received: Received, reached: int) -> list[Leak]:
    """The leaks in one response. ``reached``: the greatest position that the caller had been told of by its end."""
    if not received.as_of:
        reached = max(reached, received.reached)
    if received.method in PRESENT:
        # Tables are ahead of the log: by the group that is being committed, and by what the one after it will drain.
        reached = history.later(reached, 2)
    return [
        Leak(kind, caller.principal, received.method, what) for kind, what in _leaks(history, caller, received, reached)
    ]


def _leaks(history: History, caller: Caller, received: Received, reached: int) -> Iterator[tuple[str, str]]:
    for mark in sorted(received.marks):
        between = received.method in PRESENT
        if not history.sees(caller.principal, caller.claimed, mark, reached, between=between):
            yield "value", f"{mark} of {_told(history, mark)} at {reached}"
    for counted in received.counted:
        if counted.table in history.tables:
            yield from _counted(history, caller, counted, reached)
    for audience in sorted(received.audiences):
        if not history.holds(caller.principal, caller.claimed, audience, reached):
            yield "audience", audience
    for batch, node in received.bare:
        if node not in caller.nodes:
            yield "batch", f"{batch} of node {node}, with nothing in it"


def _told(history: History, mark: str) -> str:
    if not history.knows(mark):
        return "nobody that the history knows"
    return ", then ".join("+".join(sorted(one)) or "nobody" for one in history.audiences(mark)) or "another sender"


def _counted(history: History, caller: Caller, counted: Counted, reached: int) -> Iterator[tuple[str, str]]:
    told = f"{counted.count} rows of {counted.table} in {counted.within}"
    if counted.within == ESTIMATE:
        if counted.count:
            yield "count", f"an estimate, {told}"
    elif counted.within in _SUMS:
        if not counted.audience:
            yield "sum", f"the whole table's sum, {told}"
        elif not history.holds(caller.principal, caller.claimed, counted.audience, reached):
            yield "sum", f"the sum of {counted.audience}, {told}"
        elif counted.count not in history.counts(counted.table, counted.audience, reached):
            yield "sum", f"a sum that {counted.audience} never had, {told}"
    else:
        # A pull that was resumed counts rows of several moments.
        count = history.rows_ever if counted.within == ROWS_DONE else history.most_rows
        most = count(caller.principal, caller.claimed, counted.table, reached)
        if counted.count > most:
            yield "count", f"{told}, of which it could see {most}"


def all_leaks(history: History, calls: Iterable[tuple[Caller, Collection[Received]]]) -> list[Leak]:
    """The leaks in calls, given in the order in which they were made, each with its responses. A response speaks of
    no later position than those that its principal had been told of by then; a pull of none later than the moments that
    it says its rows are of, which may be long past where they come from Parquet. A verdict goes by the claims with
    which its batch was sent, earlier or now."""
    found: dict[Leak, None] = {}
    told: dict[str, int] = defaultdict(int)
    claimed: dict[str, frozenset[str]] = defaultdict(frozenset)
    for caller, responses in calls:
        claimed[caller.principal] |= caller.claimed
        as_of = max((one.as_of for one in responses), default=0)
        if any(one.method == PULL for one in responses):
            told[caller.principal] = max([told[caller.principal], *(one.reached for one in responses)])
        for one in responses:
            told[caller.principal] = max(told[caller.principal], one.reached)
            by = replace(caller, claimed=claimed[caller.principal]) if one.method in VERDICTS else caller
            found.update(dict.fromkeys(leaks(history, by, one, as_of or told[caller.principal])))
    return list(found)
