"""One ordinary group is followed from module to module: its way goes forward, and hardly ever back."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any, NamedTuple

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group.commit import commit_group

PACKAGE = "anabranch_conflict_resolver."
MOST_ENTRIES = 25
MOST_RETURNS = 6


class Entry(NamedTuple):
    """A call from one module of the resolver, or from outside, into another one."""

    caller: str
    module: str
    function: str


def _resolver_module(frame: FrameType | None) -> str:
    """The module of the nearest frame that is the resolver's, "" where there is none."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(PACKAGE):
            return name.removeprefix(PACKAGE)
        frame = frame.f_back
    return ""


def entries_of_a_group(rig: ResolverRig, batches: int) -> list[Entry]:
    """How the resolver's modules are entered while it commits one group of as many batches, each of a node of its own
    and of one row."""
    nodes = [rig.node(f"{batches}-{i}") for i in range(batches)]
    for i, node in enumerate(nodes):
        node.see()
        node.update("todo", {"id": f"{i}", "title": f"of {batches}"})
    made: list[Entry] = []

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not str(frame.f_globals.get("__name__", "")).startswith(PACKAGE):
            return
        entry = Entry(_resolver_module(frame.f_back), _resolver_module(frame), frame.f_code.co_qualname)
        # The objects that the rig makes before are no part of the group.
        if entry.caller != entry.module and (made or entry.function == commit_group.__name__):
            made.append(entry)

    assert rig.commit is not None
    sys.setprofile(follow)
    try:
        done = rig.commit(rig.database.id, 1_000, 0)
    finally:
        sys.setprofile(None)
    assert done == batches
    return made


def test_the_way_through_a_group_goes_forward(rig: ResolverRig) -> None:
    """Every call is counted, also one that makes a value, but for those of which a group of twice as many batches has
    more."""
    values = ", ".join(f"('{i}', 'before', false)" for i in range(20))
    rig.sql(f"insert into app.todo values {values}")
    rig.drain()
    entries_of_a_group(rig, 10)
    ten, twenty = (entries_of_a_group(rig, batches) for batches in (10, 20))
    often, oftener = Counter(ten), Counter(twenty)
    way = [entry for entry in ten if often[entry] == oftener[entry]]
    assert {"group.commit", "group.attempt", "group.waves", "group.statements", "group.records"} <= {
        e.module for e in way
    }
    assert len(way) <= MOST_ENTRIES, "\n".join(map(str, way))
    back = [entry for place, entry in enumerate(way) if entry.module in {before.module for before in way[:place]}]
    assert len(back) <= MOST_RETURNS, "\n".join(map(str, back))
    rig.check()
