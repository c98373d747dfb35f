"""The work of four gate tablets on one real day, derived from a seed: pure, the same for the same seed.

Each tablet works through departures of its own airport in the order of the schedule: it notes the gate, enters a first
guess of the delay, and corrects it later to the real delay, with a note. Two tablets share one airport. Some of its
flights are handled by both, so that their edits meet when the tablets come back: in other columns (they merge) or in
the same one (one value loses, and is kept). Cancelled flights are removed by one of the two and edited by the other. A
few flights are given a plane that does not exist, and one tablet adds a new plane and uses it at once. One tablet
writes a note on a flight of another airport, which it does not hold.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import cycle
from typing import Any, TypeAlias

from anabranch.demo.changes import KEY, PLANE, Batch, Change, note, removal, update

DAY = date(2013, 3, 8)
"""The day with the most long delays in the data: 979 departures planned, 180 of them cancelled."""
TABLETS: Mapping[str, str] = {"gate-ewr-1": "EWR", "gate-ewr-2": "EWR", "gate-jfk": "JFK", "gate-lga": "LGA"}
"""Tablets, and the airport that each looks after."""
RETURN_ORDER = ("gate-lga", "gate-ewr-2", "gate-jfk", "gate-ewr-1")
"""The tablets come back in another order than they left in."""
NEW_TABLET = "gate-b12"
"""This tablet is new: it starts when the day is over, and fetches everything that it may see."""
AIRPORTS: Mapping[str, str] = {**TABLETS, NEW_TABLET: "EWR"}
"""The airport of every tablet."""
STRAYING = "gate-lga"
"""This tablet writes a note on a flight of another airport."""

SHARED = 24
"""Flights that a second tablet edits too."""
REMOVED = 6
"""Cancelled flights that one tablet removes and another edits."""
UNKNOWN_PLANES = 3
"""Flights that are given a plane that does not exist."""

Departure: TypeAlias = Mapping[str, Any]


def plan(departures: Sequence[Departure], seed: int) -> dict[str, list[Batch]]:
    """The batches of each tablet, in the order in which it makes them.

    ``departures`` are rows of flights with the key's columns, ``sched_dep_time``, ``dep_time``, ``dep_delay`` and
    ``tailnum``; ``dep_time`` is None where the flight was cancelled.
    """
    rng = random.Random(seed)
    ordered = sorted(departures, key=lambda d: (d["sched_dep_time"], d["carrier"], d["flight"], d["origin"]))
    hands = _Hands(ordered)
    work: dict[str, list[tuple[float, Batch]]] = {tablet: [] for tablet in TABLETS}
    flown = [d for d in ordered if d["dep_time"] is not None]
    met = [d for d in flown if hands.others(d)]
    cancelled = [d for d in ordered if d["dep_time"] is None and hands.others(d)]
    removed = rng.sample(cancelled, min(REMOVED, len(cancelled)))
    shared = rng.sample(met, min(SHARED, len(met)))
    rest = [d for d in flown if d not in shared]
    odd = rng.sample(rest, min(UNKNOWN_PLANES, len(rest)))

    for departure in ordered:
        tablet = hands.own(departure)
        for offset, batch in _handled(departure, tablet, rng):
            work[tablet].append((_at(departure) + offset, batch))
    for departure in removed:
        # After its own tablet's last edit, so that what the tablet shows is what it removes.
        work[hands.own(departure)].append((_at(departure) + 2400, (removal(departure),)))
        edit = update(departure, gate=f"{rng.choice('XYZ')}{rng.randint(1, 9)}")
        work[rng.choice(hands.others(departure))].append((_at(departure) + 100, (edit,)))
    for i, departure in enumerate(shared):
        if i % 2:
            edit = update(departure, dep_delay=int(departure["dep_delay"]) + rng.choice((-5, 5, 10, 15)))
        else:
            edit = update(departure, arr_delay=rng.randint(-10, 90))
        work[rng.choice(hands.others(departure))].append((_at(departure) + 150, (edit,)))
    for departure in odd:
        ghost = f"N{rng.randint(10, 99)}GHOST"
        work[hands.own(departure)].append((_at(departure) + 60, (update(departure, tailnum=ghost),)))
    if flown:
        last = flown[-1]
        batch = (Change("insert", "planes", PLANE), update(last, tailnum=PLANE["tailnum"]))
        work[hands.own(last)].append((_at(last) + 200, batch))
    if others := [d for d in flown if d["origin"] != TABLETS[STRAYING]]:
        departure = rng.choice(others)
        work[STRAYING].append((_at(departure) + 100, (note(departure, STRAYING, "waits for a connection", rng),)))
    return {tablet: [batch for _, batch in sorted(items, key=lambda item: item[0])] for tablet, items in work.items()}


class _Hands:
    """The tablets that handle departures: those of an airport are dealt to its tablets in turn."""

    def __init__(self, departures: Sequence[Departure]) -> None:
        self._at = {airport: [t for t, a in TABLETS.items() if a == airport] for airport in set(TABLETS.values())}
        turns = {airport: cycle(tablets) for airport, tablets in self._at.items()}
        self._own = {_key(departure): next(turns[departure["origin"]]) for departure in departures}

    def own(self, departure: Departure) -> str:
        """The tablet to which the departure was dealt."""
        return self._own[_key(departure)]

    def others(self, departure: Departure) -> list[str]:
        """The other tablets of its airport."""
        return [tablet for tablet in self._at[departure["origin"]] if tablet != self.own(departure)]


def _key(departure: Departure) -> tuple[Any, ...]:
    return tuple(departure[column] for column in KEY)


def _at(departure: Departure) -> float:
    return float(departure["sched_dep_time"])


def _handled(departure: Departure, tablet: str, rng: random.Random) -> list[tuple[float, Batch]]:
    gate = f"{rng.choice('ABCD')}{rng.randint(1, 60)}"
    if departure["dep_time"] is None:
        return [(0.0, (update(departure, gate=gate), note(departure, tablet, "cancelled", rng)))]
    delay = int(departure["dep_delay"])
    batches: list[tuple[float, Batch]] = [(0.0, (update(departure, gate=gate),))]
    if delay > 15:
        guess = max(5, delay + rng.choice((-20, -10, 0, 10)))
        batches.append((30.0, (update(departure, dep_delay=guess),)))
    final = update(departure, dep_time=int(departure["dep_time"]), dep_delay=delay)
    late = (note(departure, tablet, f"left {delay} min late", rng),) if delay > 60 else ()
    return [*batches, (90.0, (final, *late))]
