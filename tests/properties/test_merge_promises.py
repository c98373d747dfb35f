"""The promises, as far as the rules keep them, over small histories of two nodes and a server in memory."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.merge import MutationType, Policy, RowState
from anabranch.testkit.memory_node import MemoryNode
from anabranch.testkit.memory_oracle import Lost, told
from anabranch.testkit.memory_server import Key, Logged, MemoryServer, Row
from anabranch.testkit.memory_story import (
    SLOT_MS,
    TABLES,
    Arrival,
    Making,
    makings,
    new_server,
    tell,
    tell_again,
)

policies = st.builds(
    Policy,
    order=st.sampled_from(["server", "edit"]),
    resurrect=st.booleans(),
    delete=st.sampled_from(["rejects", "wins"]),
    columns=st.sampled_from([{}, {"rank": "max"}, {"rank": "counter"}, {"title": "reject"}]),
)
rejecting = st.builds(Policy, order=st.sampled_from(["server", "edit"]), resurrect=st.booleans())
park_times = st.sampled_from([0, 2 * SLOT_MS, 1000 * SLOT_MS])
clocks = st.tuples(st.integers(-5000, 5000), st.integers(-5000, 5000))


def laid(rows: Mapping[Key, Row], log: list[Logged]) -> dict[Key, Row]:
    """``rows`` with what the log says became of them."""
    result = dict(rows)
    for logged in log:
        for effect in logged.effects:
            key = effect.table, effect.key
            if effect.type is MutationType.INSERT:
                assert key not in result
                result[key] = effect.values
            elif effect.type is MutationType.UPDATE:
                result[key] = {**result[key], **effect.values}
            elif effect.type is MutationType.DELETE:
                del result[key]
    return result


@given(story=makings(), policy=policies, park_ms=park_times)
@settings(deadline=None)
def test_promise_2_a_rejected_batch_leaves_nothing_and_an_accepted_one_everything(
    story: list[Making], policy: Policy, park_ms: int
) -> None:
    server = new_server(policy, park_ms)
    start = server.live()
    _, arrivals = tell(server, story)
    assert server.live() == laid(start, server.log)
    accepted = {logged.id: logged for logged in server.log}
    for arrival in arrivals:
        verdict = server.verdicts[arrival.sent.id]
        assert (verdict.reason == "") == (arrival.sent.id in accepted)
        if not verdict.reason:
            changes = [(m.table, change.key) for m in arrival.sent.mutations for change in m.rows]
            assert [(e.table, e.key) for e in accepted[arrival.sent.id].effects] == changes
            assert len(verdict.outcomes) == len(arrival.sent.mutations)


@pytest.mark.slow
@given(story=makings(), policy=policies, park_ms=park_times, data=st.data())
@settings(deadline=None)
def test_promise_3_sent_again_a_batch_gets_the_same_verdict_and_has_no_second_effect(
    story: list[Making], policy: Policy, park_ms: int, data: st.DataObject
) -> None:
    once = new_server(policy, park_ms)
    _, arrivals = tell(once, story)
    again = [
        Arrival(a.sent, a.slot + later)
        for a in arrivals
        for later in data.draw(st.lists(st.integers(0, 3), max_size=3))
    ]
    server = tell_again(new_server(policy, park_ms), arrivals + again)
    server.commit(server.head + 10 * park_ms)
    assert server.verdicts == once.verdicts
    assert server.log == once.log
    assert server.live() == once.live()


@given(story=makings(), policy=policies, park_ms=park_times)
@settings(deadline=None)
def test_promise_4_a_reader_never_finds_anything_at_or_below_what_it_has_read(
    story: list[Making], policy: Policy, park_ms: int
) -> None:
    server = new_server(policy, park_ms)
    read: list[Logged] = []
    heads = [server.head]

    def read_on(server: MemoryServer, nodes: list[MemoryNode]) -> None:
        new = [logged for logged in server.log if logged.position > heads[-1]]
        assert server.log == read + new
        read.extend(new)
        heads.append(server.head)

    tell(server, story, read_on)
    order = [(logged.position, logged.id) for logged in read]
    assert order == sorted(set(order))
    assert heads == sorted(heads)
    assert [v.position for v in server.verdicts.values() if v.position > server.head] == []


@pytest.mark.slow
@given(story=makings(), policy=policies, park_ms=park_times, clocks_ms=clocks)
@settings(deadline=None, max_examples=300)
def test_promise_5_whoever_has_read_everything_holds_the_servers_rows(
    story: list[Making], policy: Policy, park_ms: int, clocks_ms: tuple[int, int]
) -> None:
    """At every position the base is the server's rows there, and with nothing left to send it is what is shown."""
    server = new_server(policy, park_ms)

    def compare(server: MemoryServer, nodes: list[MemoryNode]) -> None:
        for node in nodes:
            reader = copy.copy(node)
            reader.base, reader.dead = dict(node.base), dict(node.dead)
            reader.queue = [copy.copy(queued) for queued in node.queue]
            reader.read(server)
            assert reader.base == server.live()
            if not reader.queue:
                assert reader.all_shown() == server.live()

    nodes, _ = tell(server, story, compare, clocks_ms)
    for node in nodes:
        assert node.queue == []
        assert node.all_shown() == server.live()


@pytest.mark.slow
@given(story=makings(), policy=rejecting, park_ms=park_times, clocks_ms=clocks)
@settings(deadline=None, max_examples=300)
def test_promise_6_every_batch_ends_in_the_log_or_dead_and_every_value_that_lost_is_kept(
    story: list[Making], policy: Policy, park_ms: int, clocks_ms: tuple[int, int]
) -> None:
    """The rows and the conflicts, neither more nor fewer, are those of registers that keep the greatest key."""
    server = new_server(policy, park_ms)
    preset = server.live()
    nodes, arrivals = tell(server, story, clocks_ms=clocks_ms)
    logged = {entry.id for entry in server.log}
    for node in nodes:
        assert {sent.id for sent in node.made} == (logged & {s.id for s in node.made}) | node.dead.keys()
        assert all(node.dead.values())
    oracle = told(TABLES, policy.order, preset, server.log, {a.sent.id: a.sent for a in arrivals})
    assert server.live() == oracle.rows()
    kept = [Lost((c.table, c.key), c.column, c.losing_value, c.losing_batch, c.winning_batch) for c in server.conflicts]
    assert Counter(kept) == Counter(oracle.lost)


BEHIND_ITS_GROUP = [
    Making(slot=1, node=0, reads=False, delay=1, picks=((2, 0),)),
    Making(slot=1, node=0, reads=False, delay=0, picks=((2, 0),)),
    Making(slot=1, node=0, reads=False, delay=0, picks=((2, 0),)),
]
"""A row is made, deleted and made again; the first is late, and the last brings the row in the group in which the
second was to be decided before it."""


@given(story=makings(), policy=policies, park_ms=park_times)
@example(story=BEHIND_ITS_GROUP, policy=Policy(order="server", delete="rejects"), park_ms=0)
@settings(deadline=None)
def test_promise_7_nothing_waits_longer_than_the_park_time_but_for_a_row_of_its_node(
    story: list[Making], policy: Policy, park_ms: int
) -> None:
    """Nor for anything but an earlier batch of its own node that has no verdict: beyond the park time where that may
    bring a row that was not there when the group began."""
    server = new_server(policy, park_ms)
    arrived: dict[str, int] = {}
    there = set(server.rows)

    def look(server: MemoryServer, nodes: list[MemoryNode]) -> None:
        made = [sent for node in nodes for sent in node.made]
        for waiting in server.waiting.values():
            sent = waiting.sent
            over = server.now >= arrived.setdefault(sent.id, server.now) + park_ms
            named = {(m.table, row.key) for m in sent.mutations if m.type is not MutationType.INSERT for row in m.rows}
            assert not over or not named <= there
            assert any(s.node == sent.node and s.id < sent.id and s.id not in server.verdicts for s in made)
        there.clear()
        there.update(server.rows)

    tell(server, story, look)
    assert server.waiting == {}


@given(story=makings(), policy=policies, park_ms=park_times)
@settings(deadline=None)
def test_the_history_of_each_row_is_that_of_its_log_entries(story: list[Making], policy: Policy, park_ms: int) -> None:
    server = new_server(policy, park_ms)
    tell(server, story)
    for key, state in server.rows.items():
        writes = [
            (logged, effect) for logged in server.log for effect in logged.effects if (effect.table, effect.key) == key
        ]
        if state.version is None:
            assert all(effect.type is None for _, effect in writes)
            continue
        if any(effect.type is None for _, effect in writes):
            continue  # it may be a late insert that changed nothing and became the row's all the same
        last = writes[-1][0]
        since = [logged for logged, _ in writes if logged.node != last.node]
        version = state.version
        assert (version.last_position, version.last_node) == (last.position, last.node)
        assert version.other_position == max((logged.position for logged in since), default=0)
        reign = writes[1 + max((n for n, (w, _) in enumerate(writes) if w.node != last.node), default=-1) :]
        assert version.last_batch == max(logged.id for logged, _ in reign)
        gone = writes[-1][1].type is MutationType.DELETE
        assert version.tombstone_batch == (last.id if gone else None)
        for node, batch_id in version.overtaken.items():
            assert batch_id in {logged.id for logged, _ in writes if logged.node == node}


@given(story=makings(), policy=policies)
@settings(deadline=None)
def test_deciding_changes_nothing_that_was_given(story: list[Making], policy: Policy) -> None:
    server = new_server(policy, 0)
    held: list[tuple[RowState, str]] = []

    def hold(server: MemoryServer, nodes: list[MemoryNode]) -> None:
        assert [text for state, text in held if repr(state) != text] == []
        held.extend((state, repr(state)) for state in server.rows.values())

    _, arrivals = tell(server, story, hold)
    frozen = [repr(a.sent) for a in arrivals]
    tell_again(new_server(policy, 0), arrivals)
    assert frozen == [repr(a.sent) for a in arrivals]
