"""The reason why a try of a group was undone, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from anabranch.merge import Write
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey


class Why(Enum):
    """The reason of a setback. Whichever it is, nothing of the try is left in the tables."""

    TOO_MUCH_CAPTURED = auto()
    """More captured changes wait than a group takes beside batches."""
    OUTDATED = auto()
    """A primary key was there that the view does not have: another session wrote in between."""
    OVERTAKEN = auto()
    """Others have changed rows that the group's batches have caused to change, or rest on: their change comes first."""
    UNFORESEEN = auto()
    """Statements changed further rows, in a try that was run as if that could not be."""
    ENTANGLED = auto()
    """Rows were changed when the constraints were judged, and several batches may have caused it."""
    OUT_OF_TURN = auto()
    """A batch caused a change of a row that a batch of the same group with a higher id had written, or names a row that
    one with a higher id has caused to change: waves had let that one go first, as neither names a row of the other. In
    the log, and for its readers, the order of the ids counts."""
    INEFFECTIVE = auto()
    """Statements changed fewer rows than they named."""
    FORBIDDEN = auto()
    """Batches left rows of restricted tables that their principals may not write."""
    MISJUDGED = auto()
    """A batch that was sure to be refused is not, or for another reason: others may have been written too early."""
    IN_COMPANY = auto()
    """A batch was refused for a foreign key after others of the group touched its rows; first on them, it may pass."""
    TABLE_LOCKED = auto()
    """Another session has locked as a whole a table that some of the batches touch."""
    REFUSED = auto()
    """Postgres refused a statement that one of the batches is to blame for."""
    KEYS_REFUSED = auto()
    """Some of the batches name keys that Postgres can't take, so that no row could be looked up."""


@dataclass(frozen=True, slots=True)
class RefusedKey:
    """A key that Postgres can't take, as it stands in a batch: the mutation, the row and the column; ``reason`` is
    an ``anabranch.v1.Reason``."""

    reason: int
    message: str
    mutation: int
    at: RowKey
    column: str
    constraint: str
    sqlstate: str


@dataclass(frozen=True, slots=True)
class Setback:
    """``batches``: the ids of those that it affects, where not all of them; ``writes``: of each the write that had no
    effect, or was not allowed. ``waited``: the statement waited too long for a lock. ``caused``: the rows that were
    changed without being named, with their keys. ``keys``: of each a key that is refused."""

    why: Why
    batches: frozenset[str] = frozenset()
    writes: Mapping[str, Write] = field(default_factory=dict)
    waited: bool = False
    caused: Mapping[RowKey, tuple[Cell, ...]] = field(default_factory=dict)
    keys: Mapping[str, RefusedKey] = field(default_factory=dict)
