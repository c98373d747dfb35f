"""Puts the schema changes of the log into a stretch of it: none is left out, and each counts among a page's bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from anabranch.store.log.stretch import GroupEnd, Stretch, after


class LoggedChange(NamedTuple):
    """A schema change, serialized, with the chain and the sums of its group; without these where the group is gone,
    because the floor has passed it meanwhile."""

    position: int
    change: bytes
    chain: bytes | None
    sums: Sequence[bytes] | None


def end_of_page(stretch: Stretch, sizes: Mapping[int, int], max_bytes: int, *, most: int) -> int | None:
    """The position before which a stretch has to end, so that it is no larger than ``max_bytes`` with its schema
    changes, whose sizes are by position in order; None where it fits as it is. It is one of theirs; a change that
    begins the stretch goes with it, whatever its size. With ``most`` changes there may be more of them."""

    def size(end: int) -> int:
        items = (item.content for item in stretch.items if item.position < end)
        changes = sum(size for position, size in sizes.items() if position < end)
        return changes + sum(len(content) for content in items if isinstance(content, bytes))

    if len(sizes) < most and size(stretch.end.position + 1) <= max_bytes:
        return None
    first = min([*sizes, *(item.position for item in stretch.items[:1])])
    ends = [position for position in sizes if position > first]
    return next((end for end in reversed(ends) if size(end) <= max_bytes), ends[0] if ends else None)


def cut_before(stretch: Stretch, position: int) -> Stretch:
    """The part of a stretch that comes before a position of one of its groups."""
    items = [item for item in stretch.items if item.position < position]
    ends = {at: end for at, end in stretch.ends.items() if at < position}
    # Groups before another one are whole. Without items it begins with a schema change, which will say how far it is.
    last = items[-1].position if items else 0
    return replace(
        stretch,
        items=items,
        ends=ends,
        effect_incomplete=False,
        end=after(position - 1),
        reached=last,
        chain=ends[last].chain if items else None,
        exhausted=False,
        at_head=False,
    )


def with_changes(stretch: Stretch, floor: int, changes: Iterable[LoggedChange]) -> Stretch:
    """The stretch with its schema changes. ``floor`` was read with them: a group of which something is missing is at or
    below it."""
    with_items = {item.position for item in stretch.items}
    ends = dict(stretch.ends)
    reached, chain = stretch.reached, stretch.chain
    found: dict[int, bytes] = {}
    for one in changes:
        found[one.position] = one.change
        if one.position not in with_items and one.chain is not None:
            ends[one.position] = GroupEnd(one.chain, one.sums or ())
            if one.position > reached:
                reached, chain = one.position, one.chain
    return replace(stretch, ends=ends, reached=reached, chain=chain, floor=floor, changes=found)
