"""How a group is cut into waves, a batch into steps, and how large groups are."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from anabranch.merge import MutationType, Write
from anabranch.store.inbox.take import Taken
from anabranch_conflict_resolver.batch.decode import Decoded
from anabranch_conflict_resolver.batch.results import Candidate
from anabranch_conflict_resolver.group.cuts import by_mutation, levels, plans, runs
from anabranch_conflict_resolver.loop.pace import FIRST, Pace
from anabranch_conflict_resolver.loop.wakeups import Wakeups


def candidate(number: int, node: str, rows: Sequence[str], *, twice: bool = False) -> Candidate:
    taken = Taken(
        batch_id=f"{number:026}",
        node_id=node,
        principal="p",
        basis=0,
        prev=None,
        payload=b"",
        payload_sha256=b"",
        traceparent=None,
        arrived_ms=0,
        attempts=0,
        failure=None,
        refusal=None,
        refusal_message=None,
        decided=False,
        prev_decided=True,
        missing=None,
        last_accepted=None,
        size=0,
    )
    decoded = Decoded(keys={("t", row): (row,) for row in rows}, twice=twice)
    return Candidate(taken, decoded, 1, may_wait=True, may_await_row=True)


groups = st.lists(
    st.tuples(st.sampled_from("ab"), st.sets(st.sampled_from("uvwxyz"), min_size=1, max_size=3)), max_size=12
).map(lambda made: [candidate(i, node, sorted(rows)) for i, (node, rows) in enumerate(made)])


@given(groups)
def test_no_wave_touches_a_row_twice_and_none_is_left_out(group: list[Candidate]) -> None:
    for cut in (levels(group), runs(group)):
        assert sorted(c.taken.batch_id for wave in cut for c in wave) == [c.taken.batch_id for c in group]
        for wave in cut:
            rows = [at for c in wave for at in c.decoded.keys]
            assert len(rows) == len(set(rows))
            assert wave


@given(groups)
def test_batches_of_one_row_and_batches_of_one_node_keep_their_order(group: list[Candidate]) -> None:
    for cut in (levels(group), runs(group)):
        wave_of = {c.taken.batch_id: i for i, wave in enumerate(cut) for c in wave}
        for i, first in enumerate(group):
            for second in group[i + 1 :]:
                at = wave_of[first.taken.batch_id], wave_of[second.taken.batch_id]
                if not first.decoded.keys.keys().isdisjoint(second.decoded.keys):
                    assert at[0] < at[1]
                elif first.taken.node_id == second.taken.node_id:
                    assert at[0] <= at[1]


@given(groups)
def test_runs_keep_the_order_of_all(group: list[Candidate]) -> None:
    assert [c for wave in runs(group) for c in wave] == group


def test_a_hot_row_costs_the_others_no_wave() -> None:
    group = [candidate(i, f"n{i}", ["hot"] if i % 2 else [f"r{i}"]) for i in range(20)]
    assert len(levels(group)) == 10
    assert len(levels(group)[0]) == 11
    assert len(runs(group)) > 5


def write(mutation: int, row: int, key: str) -> Write:
    return Write("t", key, MutationType.UPDATE, {}, mutation, row)


def test_a_batch_is_run_mutation_by_mutation_and_a_row_again_is_a_step_of_its_own() -> None:
    writes = [write(0, 0, "x"), write(0, 1, "y"), write(1, 0, "x"), write(1, 1, "x"), write(2, 0, "z")]
    assert [[w.key for w in step] for step in by_mutation(writes)] == [["x", "y"], ["x"], ["x"], ["z"]]


def test_a_bad_batch_gets_every_chance_once() -> None:
    two_by_two = [write(0, 0, "x"), write(0, 1, "y"), write(1, 0, "z"), write(1, 1, "w")]
    one = candidate(1, "a", "xyzw")
    assert [[len(step) for step in plan] for plan in plans(one, two_by_two)] == [[4], [2, 2], [1, 1, 1, 1]]
    assert [[len(step) for step in plan] for plan in plans(one, two_by_two[:2])] == [[2], [1, 1]]
    assert [[len(step) for step in plan] for plan in plans(one, two_by_two[:1])] == [[1]]
    again = candidate(1, "a", "x", twice=True)
    assert [[len(step) for step in plan] for plan in plans(again, [write(0, 0, "x"), write(1, 0, "x")])] == [[1, 1]]


def test_groups_grow_while_they_are_full_and_quick_and_shrink_when_they_fail() -> None:
    pace = Pace(ceiling=1_000, target_ms=100)
    assert pace.most == FIRST
    pace.succeeded(10, 5)
    assert pace.most == FIRST, "not full: nothing to grow for"
    for _ in range(5):
        pace.succeeded(pace.most, 50)
    assert pace.most == 1_000
    pace.succeeded(1_000, 250)
    assert pace.most == 500
    sizes = []
    while pace.most > 1:
        pace.failed(41)
        sizes.append(pace.most)
    assert sizes == [20, 10, 5, 2, 1]
    pace.failed(1)
    assert (pace.most, pace.failures) == (1, 6)
    pace.succeeded(1, 1)
    assert (pace.most, pace.failures) == (2, 0)


def test_a_database_is_worked_on_by_one_worker_and_looked_at_again_when_woken_meanwhile() -> None:
    wakeups = Wakeups()
    wakeups.wake(1)
    wakeups.wake(2)
    wakeups.wake(1)
    assert wakeups.take(0) == 1
    assert wakeups.take(0) == 2
    wakeups.wake(1)
    assert wakeups.take(0) is None
    wakeups.done(1)
    assert wakeups.take(0) == 1
    wakeups.done(1)
    wakeups.done(2)
    assert wakeups.take(0) is None


def test_a_bell_wakes_who_waits_now_or_at_its_time() -> None:
    wakeups = Wakeups()
    taken: list[int | None] = []
    waiter = threading.Thread(target=lambda: taken.append(wakeups.take(10)))
    waiter.start()
    wakeups.wake(7)
    waiter.join(10)
    assert taken == [7]
    started = time.monotonic()
    wakeups.wake_in(8, 0.05)
    wakeups.wake_in(8, 5)
    assert wakeups.take(10) == 8
    assert 0.04 < time.monotonic() - started < 5
