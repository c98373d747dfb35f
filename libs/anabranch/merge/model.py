"""The input and output of the conflict rules. Cells are opaque here except for equality (see ``same``).

The classes that are made once a change (``RowChange``, ``Write``, ``Stamp``, ``RowVersion``, ``RowState``) are not
frozen, because making a frozen one costs three times as much. Their objects are values all the same: the rules change
none that they were given and share parts between those that they make, so no caller may change them either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Cell = Any


class MutationType(IntEnum):
    """The numbers are those of ``anabranch.v1.MutationType``."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3


class Outcome(IntEnum):
    """Ordered by strength; the numbers are those of ``anabranch.v1.Outcome``."""

    APPLIED = 1
    MERGED = 2
    OVERWROTE = 3
    SUPERSEDED = 4


class RejectionReason(IntEnum):
    """Why the rules reject; the numbers are those of ``anabranch.v1.Reason``. Each has its words in ``MESSAGES`` of the
    resolver's ``group.rules``, CONSTRAINT those of its cause."""

    ROW_EXISTS = 1
    ROW_DELETED = 2
    ROW_NOT_FOUND = 3
    ALREADY_DELETED = 4
    CONCURRENT_UPDATE = 5
    CONSTRAINT = 6
    """Only where a column's policy has no value to store, as when a ``counter`` leaves 64 bits."""


@dataclass(slots=True)
class RowChange:
    """One row of a mutation. ``key`` is its key text; ``values`` holds every given column of an insert (the key's too),
    the changed columns of an update (the key's never), and nothing for a delete. ``before`` holds the values that the
    device showed before, from the batch's undo: only the ``counter`` columns of an update, and those that a function
    decides, are read."""

    key: str
    values: Mapping[str, Cell]
    before: Mapping[str, Cell] | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """Changes of rows of one table, in their order."""

    table: str
    type: MutationType
    rows: Sequence[RowChange]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the rules see it. ``node`` is the sender, ``basis`` the position that this node had applied,
    ``time_ms`` the time inside its id; ``position`` the position it is decided at, ``place`` the smallest position
    among accepted batches of its node with a higher id, or ``position`` where there is none. ``earlier_pending``: an
    earlier batch of its node has no verdict yet and the park time is not over, so that an unknown row may still
    come."""

    id: str
    node: str
    basis: int
    time_ms: int
    position: int
    place: int
    mutations: Sequence[Mutation]
    earlier_pending: bool = False


@dataclass(slots=True)
class Stamp:
    """The writer of a column's stored value: ``(place, batch)`` is its key in the order, ``position`` the real
    position."""

    place: int
    batch: str
    node: str
    position: int


OVERTAKEN_LIMIT = 32


@dataclass(slots=True)
class RowVersion:
    """The history of one row that the rules need; one row of ``anabranch.row_versions``.

    ``last_batch`` is the greatest id among the batches of ``last_node`` since it became the last writer.
    ``other_position`` is the last position of any node other than ``last_node``, 0 where there is none. ``stamps``
    holds the columns that an update wrote; every other column counts as stamped by the insert. ``tombstone_batch`` is
    set when the row is deleted, by that batch at ``last_position``. ``overtaken`` holds, for nodes that wrote the row
    before another one became its last writer, the greatest id of their batches that did (the ``OVERTAKEN_LIMIT``
    greatest, and only with ``delete: wins`` or ``resurrect``, which use them)."""

    last_position: int
    last_node: str
    last_batch: str
    other_position: int = 0
    insert_position: int = 0
    insert_place: int = 0
    insert_node: str = ""
    insert_batch: str = ""
    tombstone_batch: str | None = None
    stamps: dict[str, Stamp] = field(default_factory=dict)
    overtaken: dict[str, str] = field(default_factory=dict)
    audience: tuple[str, ...] | None = None
    """Of a tombstone as it was read: whom its row was for. The rules don't look at it."""


@dataclass(slots=True)
class RowState:
    """The present state of a row. ``values`` is None where the row is not in the table; ``version`` is None where no
    batch ever touched it (a live row without a version was there before registration: version 0)."""

    values: Mapping[str, Cell] | None
    version: RowVersion | None


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of a table: the database's, with the table's own laid over them. ``columns`` names the policy
    of each column that is not "lww"."""

    order: str = "server"
    resurrect: bool = False
    delete: str = "rejects"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Write:
    """The write for one row: INSERT with ``values`` as given, UPDATE of the columns in ``values``, DELETE, or nothing
    (``type`` None: a wholly SUPERSEDED change, logged as NONE). ``mutation`` and ``row`` are the places of the change
    that it came from.

    A late insert of a live row has ``late_insert`` and is an UPDATE, or no write where it changes no value; it names no
    column that it would not change, so never the key's. ``defaults`` are columns that such an UPDATE sets to DEFAULT,
    because the insert did not give them. ``kept`` are columns whose stamp stays as it was (see ``applied``).
    ``remember``: the table's rules use overtaken writers, so they are to be kept."""

    table: str
    key: str
    type: MutationType | None
    values: Mapping[str, Cell]
    mutation: int
    row: int
    late_insert: bool = False
    defaults: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    remember: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """A decision in which a value lost. Where a row lost to a delete, there is one for each column of it that
    was written by another node after the basis."""

    table: str
    key: str
    column: str
    losing_value: Cell
    losing_batch: str
    losing_node: str
    winning_batch: str
    winning_node: str


@dataclass(slots=True)
class MutationOutcome:
    """``key`` and ``columns`` name the first row with the strongest outcome and its columns that decided; the
    first row, and no columns, where everything was APPLIED."""

    outcome: Outcome
    table: str
    key: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """``writes`` stand in the order of the batch's rows, one for each; ``outcomes`` one for each mutation."""

    writes: Sequence[Write]
    outcomes: Sequence[MutationOutcome]
    conflicts: Sequence[Conflict]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The whole batch is rejected; ``mutation`` and the fields after it name the first change that was refused.
    ``sqlstate`` and ``text`` are the code and message that Postgres would give (only for CONSTRAINT)."""

    reason: RejectionReason
    mutation: int
    table: str
    key: str
    columns: tuple[str, ...] = ()
    sqlstate: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """The batch depends on a row that may still come."""

    table: str
    key: str


@dataclass(frozen=True, slots=True)
class Question:
    """A call of a function: the value that the device had seen (``base``, None where the batch does not give it), the
    stored one and the incoming one. ``mutation``, ``row`` and ``column`` say where the answer belongs."""

    mutation: int
    row: int
    column: str
    table: str
    key: str
    function: str
    base: Cell
    stored: Cell
    incoming: Cell


@dataclass(frozen=True, slots=True)
class Asked:
    """The batch can't be decided before these are answered: call ``resolve`` again with their answers, and with the
    earlier ones. One more call is enough unless the batch changes one row several times."""

    questions: Sequence[Question]


Answers = Mapping[tuple[int, int], Mapping[str, Cell]]
"""Answers of functions: (mutation, row) to column to value."""

Decision = Accepted | Rejected | Parked | Asked
View = Mapping[tuple[str, str], RowState]
