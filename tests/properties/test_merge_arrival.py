"""The order in which one node's batches arrive: within the park time it can't be told from the right one, and what
comes later still takes its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.merge import Policy
from anabranch.testkit.memory_server import MemoryServer, MemoryVerdict
from anabranch.testkit.memory_story import (
    LOOSE,
    SLOT_MS,
    Arrival,
    Making,
    makings,
    moved,
    new_server,
    one_row_offline,
    tell,
    tell_again,
)

IN_TIME_MS = 1000 * SLOT_MS
policies = st.builds(
    Policy,
    order=st.sampled_from(["server", "edit"]),
    resurrect=st.booleans(),
    delete=st.sampled_from(["rejects", "wins"]),
)


def verdicts(server: MemoryServer) -> list[tuple[str, MemoryVerdict]]:
    return sorted(server.verdicts.items())


def in_order(arrival: Arrival, own: list[Arrival]) -> int:
    """The slot of a batch that was kept until every earlier one of its node had come."""
    return max(a.slot for a in own if a.sent.id <= arrival.sent.id)


def in_place(arrival: Arrival, own: list[Arrival]) -> int:
    """The slot of a batch that came before every later one of its node."""
    return min(a.slot for a in own if a.sent.id >= arrival.sent.id)


@pytest.mark.slow
@given(story=makings(), policy=policies)
@settings(max_examples=400, deadline=None)
def test_any_arrival_within_the_park_time_ends_as_the_right_order_does(story: list[Making], policy: Policy) -> None:
    """Rows, verdicts with their positions and outcomes, log and conflicts: nothing can tell them apart. Inserts,
    deletes, a foreign key and a unique column are in it, and a second node."""
    server = new_server(policy, IN_TIME_MS)
    _, arrivals = tell(server, story)
    right = tell_again(new_server(policy, IN_TIME_MS), moved(arrivals, in_order))
    assert server.live() == right.live()
    assert verdicts(server) == verdicts(right)
    assert server.log == right.log
    assert server.conflicts == right.conflicts


@pytest.mark.slow
@given(story=makings(), policy=policies)
@settings(max_examples=600, deadline=None)
def test_what_comes_later_still_takes_its_place(story: list[Making], policy: Policy) -> None:
    """Without any park time, rows end as if each batch had come just before the first that it should have preceded,
    wherever both histories accept everything."""
    server = new_server(policy, 0, LOOSE)
    _, arrivals = tell(server, story)
    placed = moved(arrivals, in_place)
    again = tell_again(new_server(policy, 0, LOOSE), placed)
    if any(v.reason for s in (server, again) for v in s.verdicts.values()):
        return
    assert server.live() == again.live()


@pytest.mark.slow
@given(story=one_row_offline(), policy=policies)
@settings(max_examples=600, deadline=None)
def test_a_late_batch_is_accepted_where_the_right_order_accepts_it(story: list[Making], policy: Policy) -> None:
    """One node, one row, no park time. What comes late when everything before it has been accepted is never refused,
    though the row was deleted, inserted or changed by what it should have preceded; and then the rows are right."""
    server = new_server(policy, 0, LOOSE)
    _, arrivals = tell(server, story)
    right = tell_again(new_server(policy, 0, LOOSE), moved(arrivals, in_place))
    order = tell_again(new_server(policy, 0, LOOSE), moved(arrivals, lambda arrival, own: 1))
    assert not any(v.reason for v in order.verdicts.values()), "a node alone is never refused in order"
    accepted = {logged.id: logged.position for logged in server.log}
    for arrival in arrivals:
        earlier = [a for a in arrivals if a.sent.id < arrival.sent.id]
        come = all(accepted.get(a.sent.id, server.head + 1) < arrival.slot * SLOT_MS for a in earlier)
        late = any(p < arrival.slot * SLOT_MS for i, p in accepted.items() if i > arrival.sent.id)
        if come and late:
            assert server.verdicts[arrival.sent.id].reason == ""
    if len(accepted) == len(arrivals):
        assert server.live() == order.live()
        assert server.live() == right.live()
