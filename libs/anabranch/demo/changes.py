"""Changes of rows as the demo's tablets make them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any, Literal, TypeAlias

KEY = ("flight_date", "carrier", "flight", "origin")
"""The key of a flight."""
PLANE: Mapping[str, Any] = {
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
"""The row of a new plane."""


@dataclass(frozen=True, slots=True)
class Change:
    """One mutation of one row. ``values`` holds the key too; for a delete only the key."""

    type: Literal["insert", "update", "delete"]
    table: str
    values: Mapping[str, Any]


Batch: TypeAlias = tuple[Change, ...]


def update(departure: Mapping[str, Any], **values: Any) -> Change:
    """Columns of a flight get other values."""
    return Change("update", "flights", {**_key(departure), **values})


def removal(departure: Mapping[str, Any]) -> Change:
    """A flight is removed."""
    return Change("delete", "flights", _key(departure))


def note(departure: Mapping[str, Any], tablet: str, body: str, rng: random.Random) -> Change:
    """A note on a flight is added. Its id has the form of a ULID and comes from the seed, so that a run can be
    repeated."""
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = "01HZ" + "".join(rng.choice(alphabet) for _ in range(22))
    minutes = divmod(int(departure["sched_dep_time"]), 100)
    written = datetime.combine(departure["flight_date"], time(minutes[0] % 24, minutes[1]), UTC)
    return Change(
        "insert",
        "gate_notes",
        {"id": number, **_key(departure), "tablet": tablet, "body": body, "written_at": written},
    )


def named(table: str, row: Mapping[str, Any]) -> str:
    """A row as people name it. All flights that tablets change are of one day."""
    if not row.keys() >= set(KEY):
        return f"{table} {', '.join(map(str, row.values()))}"
    return f"{'' if table == 'flights' else 'a note on '}{row['carrier']} {row['flight']} from {row['origin']}"


def _key(departure: Mapping[str, Any]) -> dict[str, Any]:
    return {column: departure[column] for column in KEY}
