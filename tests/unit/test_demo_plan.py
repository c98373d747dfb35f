"""The demo's plan: the same for the same seed, and with everything in it that the demo is to show."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

from anabranch.demo import plan


def departures() -> list[dict[str, Any]]:
    made = []
    for number in range(300):
        cancelled = number % 10 == 0
        made.append(
            {
                "flight_date": date(2013, 3, 8),
                "carrier": ("AA", "B6", "UA")[number % 3],
                "flight": number,
                "origin": ("EWR", "JFK", "LGA")[number % 3],
                "sched_dep_time": 100 * (6 + number // 60) + number % 60,
                "dep_time": None if cancelled else 605 + number,
                "dep_delay": None if cancelled else (number * 7) % 130 - 5,
                "tailnum": None if cancelled else f"N{number}",
            }
        )
    return made


def changes(work: dict[str, list[plan.Batch]]) -> list[plan.Change]:
    return [change for batches in work.values() for batch in batches for change in batch]


def test_the_same_seed_gives_the_same_work_and_another_seed_other_work() -> None:
    assert plan.plan(departures(), 1) == plan.plan(departures(), 1)
    assert plan.plan(departures(), 1) != plan.plan(departures(), 2)


def test_every_tablet_works_in_the_order_of_the_day_through_its_own_airport() -> None:
    work = plan.plan(departures(), 1)
    assert set(work) == set(plan.TABLETS) == set(plan.RETURN_ORDER)
    assert tuple(work) != plan.RETURN_ORDER
    for tablet, airport in plan.TABLETS.items():
        first = [batch[0].values["flight"] for batch in work[tablet] if batch[0].values.get("gate")]
        own = [flight for flight in first if flight % 3 == ("EWR", "JFK", "LGA").index(airport)]
        assert own == sorted(own)
        assert len(own) == 100


def test_the_plan_holds_conflicts_removals_and_planes_that_do_not_exist() -> None:
    work = plan.plan(departures(), 1)
    edited: Counter[int] = Counter()
    for batches in work.values():
        edited.update({c.values["flight"] for batch in batches for c in batch if c.table == "flights"})
    assert sum(count > 1 for count in edited.values()) >= plan.SHARED
    kinds = Counter(change.type for change in changes(work))
    assert kinds["delete"] == plan.REMOVED
    ghosts = [c for c in changes(work) if "GHOST" in str(c.values.get("tailnum"))]
    assert len(ghosts) == plan.UNKNOWN_PLANES
    assert [c.values["tailnum"] for c in changes(work) if c.table == "planes"] == ["N1NEW"]


def test_a_removed_flight_is_edited_by_another_tablet() -> None:
    work = plan.plan(departures(), 1)
    removed = {c.values["flight"]: t for t, batches in work.items() for b in batches for c in b if c.type == "delete"}
    for flight, owner in removed.items():
        editors = {
            t
            for t, batches in work.items()
            for b in batches
            for c in b
            if c.type == "update" and c.values["flight"] == flight
        }
        assert editors - {owner}


def test_notes_have_ids_of_their_own() -> None:
    ids = [c.values["id"] for c in changes(plan.plan(departures(), 1)) if c.table == "gate_notes"]
    assert len(ids) == len(set(ids)) > 30
    assert {len(one) for one in ids} == {26}
