"""The plan of what may go: never past a bound, whatever the facts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.merge.retention import LEAST_KEPT_DAYS, Facts, Hold, Slowest, plan, proven_until

DAY_MS = 86_400_000
NOW = 1_800_000_000_000
POSITIONS = st.integers(NOW - 100 * DAY_MS, NOW)
RUNS = st.lists(st.tuples(POSITIONS, POSITIONS).map(sorted).map(tuple), max_size=6).map(sorted)


def facts(**changed: object) -> Facts:
    given: dict[str, object] = {
        "now_ms": NOW,
        "floor": 0,
        "head": NOW - 1,
        "retention_days": 30,
        "absence_days": 30,
        "compacted_from": None,
        "runs": (),
        "slowest": None,
    }
    return Facts(**{**given, **changed})  # type: ignore[arg-type]


def strictest(given: Facts) -> Hold:
    return plan(given).bounds[0].hold


def test_each_bound_holds_alone() -> None:
    old, older = NOW - 50 * DAY_MS, NOW - 60 * DAY_MS
    assert plan(facts()).target == NOW - 30 * DAY_MS
    assert strictest(facts()) is Hold.WINDOW
    assert (plan(facts(head=old)).target, strictest(facts(head=old))) == (old, Hold.HEAD)
    lagging = facts(slowest=Slowest("n", "gate-12", older))
    assert (plan(lagging).target, strictest(lagging)) == (older, Hold.NODE)
    assert "gate-12" in plan(lagging).bounds[0].detail
    compacted = facts(compacted_from=0, runs=[(0, older)])
    assert (plan(compacted).target, strictest(compacted)) == (older, Hold.COMPACTION)


def test_what_was_compacted_once_stays_behind_proof() -> None:
    """Another epoch's runs prove nothing of this one's log."""
    assert plan(facts(compacted_from=0, floor=5, runs=())).target == 5


def test_a_hole_between_runs_ends_the_proof() -> None:
    assert proven_until(10, [(10, 20), (20, 30), (31, 40)]) == 30
    assert proven_until(10, [(11, 20)]) == 10
    assert proven_until(15, [(10, 20)]) == 20
    assert proven_until(10, []) == 10


FACTS = st.builds(
    facts,
    floor=st.integers(0, NOW),
    head=POSITIONS,
    retention_days=st.integers(7, 90),
    absence_days=st.integers(1, 90),
    compacted_from=st.none() | st.just(0),
    runs=RUNS,
    slowest=st.none() | POSITIONS.map(lambda position: Slowest("n", "", position)),
)


@given(FACTS)
def test_never_past_a_bound_and_never_back(given: Facts) -> None:
    found = plan(given)
    assert found.target >= given.floor
    if found.target > given.floor:
        assert found.target <= given.head
        assert found.target <= NOW - given.retention_days * DAY_MS
        if given.slowest is not None:
            assert found.target <= given.slowest.acknowledged
        if given.compacted_from is not None:
            covered = [run for run in given.runs if run[0] < found.target <= run[1]]
            assert covered, "the floor's own position is in no run"
            assert any(run[0] <= given.floor < run[1] for run in given.runs), "what follows the floor is in no run"
    assert found.kept_since_ms <= NOW - LEAST_KEPT_DAYS * DAY_MS
    assert found.kept_since_ms <= NOW - given.retention_days * DAY_MS
    assert found.absent_since_ms <= found.kept_since_ms
    assert found.absent_since_ms <= NOW - given.absence_days * DAY_MS, "a node that holds the floor is not forgotten"
