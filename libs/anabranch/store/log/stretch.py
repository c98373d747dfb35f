"""The forms in which the log is read: its items, and stretches of it.

The log is one sequence of *items*: of each batch first its effects, then the values that lost because of it. A *cursor*
is the place of the next item to read; it may lie inside a group, inside a batch, and inside the bytes of one effect, so
that nothing is too large to be read in parts. A group may begin with a schema change, which is no item: it belongs to
each part of its group, and may be all that the group has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.store.log.history import SeenGroup

_AFTER_ALL_IDS = "~"
"""Sorts after every batch id in the collation "C"."""


class Cursor(NamedTuple):
    """The place of the next item. ``offset`` counts bytes of that item's effect that were read already."""

    position: int
    batch_id: str
    ordinal: int
    offset: int

    @property
    def least_needed(self) -> int:
        """The smallest position whose rows a reader at this place still needs."""
        return self.position + 1 if self.batch_id == _AFTER_ALL_IDS else self.position

    @property
    def between_groups(self) -> bool:
        """Whether every group that was begun has been read to its end."""
        return self.batch_id == _AFTER_ALL_IDS


def after(position: int) -> Cursor:
    """The place behind everything at ``position``."""
    return Cursor(position, _AFTER_ALL_IDS, 0, 0)


@dataclass(frozen=True, slots=True)
class Loser:
    """A value that lost. ``value`` is a serialized ``anabranch.v1.Value``, None where it was left out for its size;
    ``column`` is "" where a whole row lost."""

    table_id: int
    key: str
    column: str
    value: bytes | None
    batch_id: str
    node_id: str
    winner_batch_id: str
    cause: int = 0
    """An ``anabranch.v1.LossCause``."""


class Scope(NamedTuple):
    """The audiences of an item's row before and after it, as far as the log says: None in a table that was open to
    everybody. ``type`` is that of an effect, an ``anabranch.v1.EffectType``, and ``head`` its first bytes, which name
    its table. ``goes_on``: the item is not the effect's beginning."""

    table_id: int
    key: str
    type: int
    before: Sequence[str] | None
    after: Sequence[str] | None
    head: bytes
    goes_on: bool


class Item(NamedTuple):
    """An effect (serialized bytes, or a part of them) or a loser of a batch. ``scope``: where it was asked for."""

    position: int
    batch_id: str
    node_id: str
    content: bytes | Loser
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """A group that a stretch completes. ``sums`` are serialized ``anabranch.v1.TableSum``."""

    chain: bytes
    sums: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The result of one read.

    ``items`` in order; ``ends`` the groups completed, by position; ``effect_incomplete``: the last item is an effect
    that goes on; ``end`` the cursor for the next read. ``reached`` is the last position of which nothing is missing,
    and ``chain`` its chain, None where the log has no group at the position that the read started from. ``exhausted``:
    there is nothing more up to the position where the read was to stop, ``at_head``: nothing more at all.
    ``known_base``: the log has a group at ``base``, or ``base`` is 0 or the floor. ``lost``: of the positions that this
    history must have, those that it lacks. ``changes``: the schema changes with which its groups begin, by position,
    each a serialized ``anabranch.v1.SchemaChange``.
    """

    items: Sequence[Item]
    ends: dict[int, GroupEnd]
    effect_incomplete: bool
    end: Cursor
    reached: int
    chain: bytes | None
    exhausted: bool
    at_head: bool
    head: int
    head_chain: bytes
    known_base: bool
    lost: Sequence[SeenGroup]
    epoch: str
    floor: int
    schema_version: int
    changes: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def positions(self) -> Iterable[int]:
        """The positions of its groups, in order: a group has an item or a schema change."""
        with_items = dict.fromkeys(item.position for item in self.items)
        return sorted({**with_items, **self.changes}) if self.changes else with_items
