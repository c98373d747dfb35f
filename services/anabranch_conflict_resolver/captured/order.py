"""Finds the order in which the captured changes of one row were really made.

A statement's rows are captured when it ends, so changes by a trigger of it are captured before its own changes: the
numbers of captured rows give the order of statements that follow one another, and not that of statements inside one
another. The images do: each change begins with the image that the one before it left. So the changes that one
transaction made to one row are laid end to end. Where that can be done in several ways (the row came back to an earlier
image), the image that stood before them, or after, decides between them.

Images are compared as they were captured, byte by byte, so that a NaN equals itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

Image = bytes | None
"""A captured row, None where there is none."""
Link = tuple[Image, Image]
"""The images before and after a change."""


def is_chain(links: Sequence[Link]) -> bool:
    """Whether each begins with the image that the one before it left."""
    return all(before[1] == after[0] for before, after in pairwise(links))


def is_settled(links: Sequence[Link]) -> bool:
    """Whether nothing but the one order of ``links`` can be right: they don't lead back to where they began."""
    return links[0][0] != links[-1][1] or len({image for link in links for image in link}) == 1


class Unknown(Enum):
    """An image that is not known: None is the image of a row that is not there."""

    IMAGE = 0


UNKNOWN = Unknown.IMAGE


def end_to_end(links: Sequence[Link], depths: Sequence[int], around: Image | Unknown = UNKNOWN) -> list[int] | None:
    """The places of ``links``, which stand in the order of their capture, in the order in which they were made; None
    where they don't fit end to end. ``depths``: how deep inside other statements each was made. ``around``: where they
    lead back to where they began, the image that they began with, if it is known; else what the least deep one began
    with, since what it set off came after it."""
    begins: dict[Image, list[int]] = {}
    balance: Counter[Image] = Counter()
    for place, (before, after) in reversed(list(enumerate(links))):
        begins.setdefault(before, []).append(place)
        balance[before] += 1
        balance[after] -= 1
    surplus = [image for image, count in balance.items() if count > 0]
    if surplus:
        start = surplus[0]
    elif around is not UNKNOWN and around in begins:
        start = around
    else:
        start = links[depths.index(min(depths))][0]
    # Hierholzer's path: from each image the earliest change that begins with it and was not taken yet.
    path: list[int] = []
    stack: list[tuple[Image, int]] = [(start, -1)]
    while stack:
        image, came_by = stack[-1]
        left = begins.get(image)
        if left:
            place = left.pop()
            stack.append((links[place][1], place))
        else:
            stack.pop()
            path.append(came_by)
    order = path[-2::-1]
    fits = len(order) == len(links) and is_chain([links[place] for place in order])
    return order if fits else None
