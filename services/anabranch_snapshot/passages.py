"""Passages: stretches of the log of a database with restricted tables, in the form from which any reader's page can be
made (``visible``). Nothing is left out of them but the sums of whole restricted tables, which nobody sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.store.catalog.databases import Database
from anabranch.store.log.reader_statements import EFFECT_OVERHEAD_BYTES, LOSER_OVERHEAD_BYTES
from anabranch.store.log.stretch import GroupEnd, Item, Stretch
from anabranch.v1 import position_pb2
from anabranch_snapshot.page_tokens import Place


@dataclass(slots=True)
class PassageBatch:
    """The part of a batch that a passage has: effects, then values that lost."""

    id: str
    node_id: str
    items: list[Item] = field(default_factory=list)


@dataclass(slots=True)
class PassageGroup:
    """The part of a group that a passage has. ``began_before``: it is not the first one. ``sums``: of open tables, with
    the audience "", and of audiences. ``schema_change``: the one that the group begins with, as in a stretch."""

    position: int
    began_before: bool
    end: GroupEnd | None
    batches: list[PassageBatch] = field(default_factory=list)
    sums: list[position_pb2.TableSum] = field(default_factory=list)
    schema_change: bytes = b""


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch from ``start`` on, in parts. ``touched``: the audiences on which it depends what readers see of it;
    ``nodes``: those that made its batches. It has the groups behind the position ``after``, up to ``up_to``, and ends
    behind all that is at ``settled``."""

    database: Database
    stretch: Stretch
    start: Place
    groups: Sequence[PassageGroup]
    touched: frozenset[str]
    nodes: frozenset[str]
    names: Mapping[str, str]

    @property
    def end(self) -> Place:
        """The place of a reader that has read it."""
        return Place(self.stretch.reached, self.stretch.end)

    @property
    def after(self) -> int:
        """The position behind which its groups begin."""
        return self.start.cursor.least_needed - 1

    @property
    def up_to(self) -> int:
        """The position of its last group, which may go on."""
        return self.stretch.end.position

    @property
    def settled(self) -> int:
        """The last position of which nothing comes behind it."""
        return self.stretch.end.least_needed - 1

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        return sum(map(len, self.stretch.changes.values())) + sum(
            EFFECT_OVERHEAD_BYTES + len(one.content) if isinstance(one.content, bytes) else LOSER_OVERHEAD_BYTES
            for one in self.stretch.items
        )


def passage_of(database: Database, stretch: Stretch, start: Place, names: Mapping[str, str]) -> Passage:
    """Put a stretch that was read with scopes, from ``start`` on, into its parts. ``names``: of the nodes in it."""
    groups = {position: _group(database, stretch, start, position) for position in stretch.positions}
    touched = {one.audience for group in groups.values() for one in group.sums}
    nodes: set[str] = set()
    for item in stretch.items:
        batches = groups[item.position].batches
        if not batches or batches[-1].id != item.batch_id:
            batches.append(PassageBatch(item.batch_id, item.node_id))
            nodes.add(item.node_id)
        batches[-1].items.append(item)
        scope = item.scope
        assert scope is not None
        touched.update(scope.before or (), scope.after or ())
    touched.discard("")
    return Passage(database, stretch, start, list(groups.values()), frozenset(touched), frozenset(nodes), names)


def _group(database: Database, stretch: Stretch, start: Place, position: int) -> PassageGroup:
    began_before = not start.cursor.between_groups and position == start.cursor.position
    end = stretch.ends.get(position)
    sums = [] if end is None else list(map(position_pb2.TableSum.FromString, end.sums))
    # The sum of a whole restricted table is nobody's.
    shown = [one for one in sums if one.audience or _is_open(database, one.table)]
    return PassageGroup(position, began_before, end, [], shown, stretch.changes.get(position, b""))


def _is_open(database: Database, table: str) -> bool:
    return table in database.tables and table not in database.restricted
