"""Builds the statement that appends the submissions of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.store.inbox.append import Arrival
from anabranch.store.inbox.verdicts import Key
from anabranch.store.nodes.tokens import Call, Mode
from anabranch_ingest.queueing import Submission


@dataclass(frozen=True, slots=True)
class AppendStatement:
    """The calls and the batches of one append. ``doubled``: the ``id()`` of the arrivals that are left out, because
    another submission of the group brings the same batch."""

    calls: list[Call]
    arrivals: list[Arrival]
    doubled: set[int]


def one_of_each_node(group: Sequence[Submission]) -> tuple[list[Submission], list[Submission]]:
    """Those that can be in one statement, and those that come after another call of their node."""
    seen: set[tuple[int, str]] = set()
    ready: list[Submission] = []
    later: list[Submission] = []
    for submission in group:
        if submission.call is not None:
            node = (submission.call.database_id, submission.call.node_id)
            if node in seen:
                later.append(submission)
                continue
            seen.add(node)
        ready.append(submission)
    return ready, later


def statement_of(group: Sequence[Submission], *, admitted: bool = False) -> AppendStatement:
    """The append of a group with one call a node. Calls stand in the order of their nodes, so that two statements lock
    rows in the same order. Each gets a number by its place; those without a token, which are surely not let in, are
    left out. ``admitted``: all of them were let in a moment ago."""
    calls: list[Call] = []
    arrivals: dict[Key, Arrival] = {}
    doubled: set[int] = set()
    for number, submission in enumerate(group, 1):
        let_in = admitted or submission.admitted
        call = submission.call
        if call is not None and not (let_in and call.mode is not Mode.EXTEND):
            call.number = number
            if not let_in and not call.token:
                continue
            calls.append(call)
        for arrival in submission.open:
            arrival.number = 0 if let_in else number
            if arrivals.setdefault((arrival.database_id, arrival.batch_id), arrival) is not arrival:
                doubled.add(id(arrival))
    calls.sort(key=lambda call: (call.database_id, call.node_id))
    return AppendStatement(calls, list(arrivals.values()), doubled)
