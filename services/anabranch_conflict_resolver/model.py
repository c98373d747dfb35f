"""A batch on its way through a group, and what can become of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.merge import Accepted, Batch, Write
from anabranch.schema import Cell
from anabranch.store.rows import Row
from anabranch.store.take import Parking, Taken
from anabranch.wire.effects import Effect
from anabranch_conflict_resolver.decode import Decoded


@dataclass(slots=True, eq=False)
class Candidate:
    """A batch that the rules decide. ``may_wait``: its park time is not over. ``batch`` is made when it is resolved."""

    taken: Taken
    decoded: Decoded
    place: int
    may_wait: bool
    batch: Batch | None = None


@dataclass(slots=True)
class Change:
    """A write that was carried out, and its effect."""

    write: Write
    effect: Effect


@dataclass(slots=True)
class Applied:
    """The batch is in the tables. ``superseded``: by mutation, the row as it then stands (None: there is none) where a
    value of the mutation lost."""

    candidate: Candidate
    decision: Accepted
    changes: Sequence[Change]
    superseded: Mapping[int, Row | None]


@dataclass(slots=True)
class Rejection:
    """Nothing of the batch is. ``reason`` is an ``anabranch.v1.Reason``; ``table`` is "" where no mutation is to blame,
    ``key`` empty where no row is; ``server_row`` the row as it stands, where there is one."""

    taken: Taken
    reason: int
    message: str
    mutation: int = 0
    table: str = ""
    key: Sequence[Cell] = ()
    columns: Sequence[str] = ()
    server_row: Row | None = None
    constraint: str = ""
    sqlstate: str = ""


@dataclass(slots=True)
class Waiting:
    """The batch stays in the inbox. ``why`` says in words what for."""

    taken: Taken
    parking: Parking
    why: str


Result = Applied | Rejection | Waiting
