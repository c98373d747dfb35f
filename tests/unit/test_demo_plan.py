"""The demo's plan: the same for the same seed, and with everything in it that the demo is to show."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

from anabranch.demo import plan
from anabranch.demo.changes import Batch, Change, named

AIRPORTS = ("EWR", "JFK", "LGA")


def departures() -> list[dict[str, Any]]:
    made = []
    for number in range(300):
        cancelled = number % 10 == 0
        made.append(
            {
                "flight_date": date(2013, 3, 8),
                "carrier": ("AA", "B6", "UA")[number % 3],
                "flight": number,
                "origin": AIRPORTS[number % 3],
                "sched_dep_time": 100 * (6 + number // 60) + number % 60,
                "dep_time": None if cancelled else 605 + number,
                "dep_delay": None if cancelled else (number * 7) % 130 - 5,
                "tailnum": None if cancelled else f"N{number}",
            }
        )
    return made


def changes(work: dict[str, list[Batch]]) -> list[Change]:
    return [change for batches in work.values() for batch in batches for change in batch]


def editors(work: dict[str, list[Batch]], kind: str) -> dict[int, set[str]]:
    """The tablets that make such a change of a flight, by its number."""
    found: dict[int, set[str]] = {}
    for tablet, batches in work.items():
        for change in (change for batch in batches for change in batch):
            if (change.table, change.type) == ("flights", kind):
                found.setdefault(change.values["flight"], set()).add(tablet)
    return found


def test_the_same_seed_gives_the_same_work_and_another_seed_other_work() -> None:
    assert plan.plan(departures(), 1) == plan.plan(departures(), 1)
    assert plan.plan(departures(), 1) != plan.plan(departures(), 2)


def test_every_tablet_works_in_the_order_of_the_day_through_flights_of_its_own_airport() -> None:
    work = plan.plan(departures(), 1)
    assert set(work) == set(plan.TABLETS) == set(plan.RETURN_ORDER)
    assert tuple(work) != plan.RETURN_ORDER
    handled: Counter[str] = Counter()
    for tablet, airport in plan.TABLETS.items():
        gates = [batch[0].values for batch in work[tablet] if batch[0].values.get("gate", "")[:1] in tuple("ABCD")]
        first = [values["flight"] for values in gates]
        assert first == sorted(first)
        assert {values["origin"] for values in gates} == {airport}
        handled[airport] += len(first)
        assert len(first) == (50 if airport == "EWR" else 100)
    assert handled == dict.fromkeys(AIRPORTS, 100)


def test_no_tablet_touches_rows_of_another_airport_but_for_one_note() -> None:
    work = plan.plan(departures(), 1)
    strange = [
        (tablet, change)
        for tablet, batches in work.items()
        for batch in batches
        for change in batch
        if change.table != "planes" and change.values["origin"] != plan.TABLETS[tablet]
    ]
    [(tablet, change)] = strange
    assert (tablet, change.type, change.table) == (plan.STRAYING, "insert", "gate_notes")


def test_edits_meet_at_the_airport_with_two_tablets() -> None:
    work = plan.plan(departures(), 1)
    pair = {"gate-ewr-1", "gate-ewr-2"}
    met = [tablets for tablets in editors(work, "update").values() if len(tablets) > 1]
    assert met == [pair] * (plan.SHARED + plan.REMOVED)


def test_without_such_an_airport_nothing_meets_and_the_rest_is_there() -> None:
    work = plan.plan([d for d in departures() if d["origin"] == "JFK"], 1)
    assert {tablet: bool(batches) for tablet, batches in work.items()} == {
        "gate-ewr-1": False,
        "gate-ewr-2": False,
        "gate-jfk": True,
        "gate-lga": True,
    }
    assert plan.plan([], 1) == {tablet: [] for tablet in plan.TABLETS}


def test_the_plan_holds_conflicts_removals_and_planes_that_do_not_exist() -> None:
    work = plan.plan(departures(), 1)
    kinds = Counter(change.type for change in changes(work))
    assert kinds["delete"] == plan.REMOVED
    ghosts = [c for c in changes(work) if "GHOST" in str(c.values.get("tailnum"))]
    assert len(ghosts) == plan.UNKNOWN_PLANES
    assert [c.values["tailnum"] for c in changes(work) if c.table == "planes"] == ["N1NEW"]


def test_a_removed_flight_is_edited_by_another_tablet_of_its_airport() -> None:
    work = plan.plan(departures(), 1)
    edited = editors(work, "update")
    for flight, removers in editors(work, "delete").items():
        assert len(edited[flight] - removers) == 1


def test_notes_have_ids_of_their_own() -> None:
    ids = [c.values["id"] for c in changes(plan.plan(departures(), 1)) if c.table == "gate_notes"]
    assert len(ids) == len(set(ids)) > 30
    assert {len(one) for one in ids} == {26}


def test_rows_are_named_as_people_do() -> None:
    flight = departures()[4]
    assert named("flights", flight) == "B6 4 from JFK"
    assert named("gate_notes", {"id": "01HZ", **flight}) == "a note on B6 4 from JFK"
    assert named("gate_notes", {"id": "01HZ"}) == "gate_notes 01HZ"
