"""No principal is passed over by two groups in a row that others are in, however groups are cut."""

from __future__ import annotations

from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.resolver.made import taken

from anabranch.store.inbox.take import KILLED, Taken
from anabranch_conflict_resolver.group.undertaking import choose, passed_over

PRINCIPALS = "abcd"


def of(number: int, principal: str, failure: str | None) -> Taken:
    attempts = int(failure is not None and not failure.startswith(KILLED))
    return taken(f"{number:026}")._replace(principal=principal, attempts=attempts, failure=failure)


@st.composite
def batches(draw: st.DrawFn) -> list[Taken]:
    """Batches of some principals, in the order in which they are taken."""
    owners = draw(st.lists(st.sampled_from(PRINCIPALS), min_size=1, max_size=30))
    failures = st.sampled_from([None, None, None, "57014", f"{KILLED} 3"])
    return [of(number, owner, draw(failures)) for number, owner in enumerate(draw(st.permutations(owners)))]


@given(batches(), st.integers(1, 40), st.sets(st.sampled_from(PRINCIPALS)))
def test_a_group_is_some_of_what_was_taken(queue: list[Taken], most: int, owed: Set[str]) -> None:
    chosen = choose(queue, most, owed)
    assert chosen.now
    assert {t.batch_id for t in chosen.now} <= {t.batch_id for t in queue[:most]}
    assert not {t.batch_id for t in chosen.now} & {t.batch_id for t in chosen.later}
    assert len(chosen.later) <= max(most, len(queue) - most)
    assert not chosen.owed & {t.principal for t in chosen.now}
    waiting = {t.principal for t in queue[:most]} & owed
    assert not waiting or {t.principal for t in chosen.now} <= waiting


@pytest.mark.slow
@given(batches(), st.data())
def test_every_principal_is_served_in_as_many_groups_as_there_are(queue: list[Taken], data: st.DataObject) -> None:
    """A group decides some of what it chose, the lowest id at least, whoever's that is."""
    owed: Set[str] = frozenset()
    never = {t.principal for t in queue}
    groups = len(never)
    left = queue
    for _ in range(groups):
        if not left:
            break
        chosen = choose(left, len(left), owed)
        now = sorted(chosen.now, key=lambda t: t.batch_id)
        done = now[: data.draw(st.integers(1, len(now)))]
        owed = chosen.owed | passed_over(now, done)
        never -= {t.principal for t in done}
        left = [t for t in left if t not in done]
    assert not never
