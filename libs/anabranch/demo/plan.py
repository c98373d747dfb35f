"""The work of three gate tablets on one real day, derived from a seed: pure, the same for the same seed.

Each tablet works through the departures of its own airport in the order of the schedule: it notes the gate, enters a
first guess of the delay, and corrects it later to the real delay, with a note. Some flights are handled by
two tablets, so that their edits meet when the tablets come back: in other columns (they merge) or in the same one (one
value loses, and is kept). Cancelled flights are removed by one tablet and edited by another. A few flights are given a
plane that does not exist, and one tablet adds a new plane and uses it at once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Literal

DAY = date(2013, 3, 8)
"""The day with the most long delays in the data: 979 departures planned, 180 of them cancelled."""
TABLETS: Mapping[str, str] = {"gate-ewr": "EWR", "gate-jfk": "JFK", "gate-lga": "LGA"}
"""Tablets, and the airport that each looks after."""
RETURN_ORDER = ("gate-lga", "gate-ewr", "gate-jfk")
"""The tablets come back in another order than they left in."""
NEW_TABLET = "gate-b12"
"""This tablet is new: it starts when the day is over, and fetches everything."""
KEY = ("flight_date", "carrier", "flight", "origin")

SHARED = 24
"""Flights that a second tablet edits too."""
REMOVED = 6
"""Cancelled flights that one tablet removes and another edits."""
UNKNOWN_PLANES = 3
"""Flights that are given a plane that does not exist."""


@dataclass(frozen=True, slots=True)
class Change:
    """One mutation of one row. ``values`` holds the key too; for a delete only the key."""

    type: Literal["insert", "update", "delete"]
    table: str
    values: Mapping[str, Any]


Batch = tuple[Change, ...]


def plan(departures: Sequence[Mapping[str, Any]], seed: int) -> dict[str, list[Batch]]:
    """The batches of each tablet, in the order in which it makes them.

    ``departures`` are rows of flights with the key's columns, ``sched_dep_time``, ``dep_time``, ``dep_delay`` and
    ``tailnum``; ``dep_time`` is None where the flight was cancelled.
    """
    rng = random.Random(seed)
    ordered = sorted(departures, key=lambda d: (d["sched_dep_time"], d["carrier"], d["flight"], d["origin"]))
    tablet_of = {airport: tablet for tablet, airport in TABLETS.items()}
    work: dict[str, list[tuple[float, Batch]]] = {tablet: [] for tablet in TABLETS}
    flown = [d for d in ordered if d["dep_time"] is not None]
    cancelled = [d for d in ordered if d["dep_time"] is None]
    removed = rng.sample(cancelled, min(REMOVED, len(cancelled)))
    shared = rng.sample(flown, min(SHARED, len(flown)))
    odd = rng.sample([d for d in flown if d not in shared], min(UNKNOWN_PLANES, len(flown)))

    for departure in ordered:
        tablet = tablet_of[departure["origin"]]
        at = float(departure["sched_dep_time"])
        for offset, batch in _handled(departure, tablet, rng):
            work[tablet].append((at + offset, batch))
    for departure in removed:
        own, other = _pair(departure, tablet_of, rng)
        at = float(departure["sched_dep_time"])
        # After its own tablet's last edit, so that what the tablet shows is what it removes.
        work[own].append((at + 2400, (Change("delete", "flights", _key(departure)),)))
        work[other].append((at + 100, (_update(departure, gate=f"{rng.choice('XYZ')}{rng.randint(1, 9)}"),)))
    for i, departure in enumerate(shared):
        _, other = _pair(departure, tablet_of, rng)
        at = float(departure["sched_dep_time"]) + 150
        if i % 2:
            change = _update(departure, dep_delay=int(departure["dep_delay"]) + rng.choice((-5, 5, 10, 15)))
        else:
            change = _update(departure, arr_delay=rng.randint(-10, 90))
        work[other].append((at, (change,)))
    for departure in odd:
        tablet = tablet_of[departure["origin"]]
        ghost = f"N{rng.randint(10, 99)}GHOST"
        work[tablet].append((float(departure["sched_dep_time"]) + 60, (_update(departure, tailnum=ghost),)))
    _new_plane(flown, tablet_of, work)
    return {tablet: [batch for _, batch in sorted(items, key=lambda item: item[0])] for tablet, items in work.items()}


def _handled(departure: Mapping[str, Any], tablet: str, rng: random.Random) -> list[tuple[float, Batch]]:
    gate = f"{rng.choice('ABCD')}{rng.randint(1, 60)}"
    if departure["dep_time"] is None:
        return [(0.0, (_update(departure, gate=gate), _note(departure, tablet, "cancelled", rng)))]
    delay = int(departure["dep_delay"])
    batches: list[tuple[float, Batch]] = [(0.0, (_update(departure, gate=gate),))]
    if delay > 15:
        guess = max(5, delay + rng.choice((-20, -10, 0, 10)))
        batches.append((30.0, (_update(departure, dep_delay=guess),)))
    final = _update(departure, dep_time=int(departure["dep_time"]), dep_delay=delay)
    note = (_note(departure, tablet, f"left {delay} min late", rng),) if delay > 60 else ()
    return [*batches, (90.0, (final, *note))]


def _new_plane(
    flown: Sequence[Mapping[str, Any]], tablet_of: Mapping[str, str], work: dict[str, list[tuple[float, Batch]]]
) -> None:
    if not flown:
        return
    last = flown[-1]
    plane = {
        "tailnum": "N1NEW",
        "year": 2013,
        "type": "Fixed wing multi engine",
        "manufacturer": "AIRBUS",
        "model": "A320-214",
        "engines": 2,
        "seats": 182,
        "speed": None,
        "engine": "Turbo-fan",
    }
    batch = (Change("insert", "planes", plane), _update(last, tailnum="N1NEW"))
    work[tablet_of[last["origin"]]].append((float(last["sched_dep_time"]) + 200, batch))


def _pair(departure: Mapping[str, Any], tablet_of: Mapping[str, str], rng: random.Random) -> tuple[str, str]:
    own = tablet_of[departure["origin"]]
    return own, rng.choice([tablet for tablet in TABLETS if tablet != own])


def _key(departure: Mapping[str, Any]) -> dict[str, Any]:
    return {column: departure[column] for column in KEY}


def _update(departure: Mapping[str, Any], **values: Any) -> Change:
    return Change("update", "flights", {**_key(departure), **values})


def _note(departure: Mapping[str, Any], tablet: str, body: str, rng: random.Random) -> Change:
    """A note. Its id has the form of a ULID and comes from the seed, so that a run can be repeated."""
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = "01HZ" + "".join(rng.choice(alphabet) for _ in range(22))
    minutes = divmod(int(departure["sched_dep_time"]), 100)
    written = datetime.combine(DAY, time(minutes[0] % 24, minutes[1]), UTC)
    return Change(
        "insert",
        "gate_notes",
        {"id": number, **_key(departure), "tablet": tablet, "body": body, "written_at": written},
    )
