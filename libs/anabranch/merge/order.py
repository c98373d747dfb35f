"""The order of writes: places, and the keys by which columns are judged.

*Place* is where a batch would have stood, had it not come late: the smallest position among the accepted
batches of its node with a higher id, whatever rows those touched; its own position where there is none. So
one node's batches are ordered by their ids whatever order they come in, and a late one slips in front of the
first that it should have preceded, behind everything that had been decided before that one.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.merge.model import Batch

SERVER_NODE = "server"
"""The node of changes that no batch named. Their ids are the smallest of their position, and hold no time."""

Key = tuple[int, str]

_DIGITS = {digit: value for value, digit in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}


def place_of(batch_id: str, position: int, accepted: Iterable[tuple[str, int]]) -> int:
    """The place of a batch that is decided at ``position``. ``accepted``: id and position of its node's
    accepted batches, in any order."""
    return min((p for other, p in accepted if other > batch_id), default=position)


def ulid_time_ms(ulid: str) -> int:
    """The time inside a ULID, in milliseconds.

    Raises:
        ValueError: it is not 26 characters long, or the first ten are not those of a ULID.
    """
    time = 0
    try:
        for digit in ulid[:10]:
            time = time << 5 | _DIGITS[digit]
    except KeyError:
        raise ValueError(f"not a ULID: {ulid!r}") from None
    if len(ulid) != 26:
        raise ValueError(f"not a ULID: {ulid!r}")
    return time


def key(order: str, place: int, batch_id: str, node: str) -> Key:
    """The key of a write under a table's ``order``.

    ``server``: ``(place, id)``, as a rule the order of arrival. ``edit``: ``(min(time in the ULID, place),
    id)``, the order in which people wrote, where a clock that is ahead counts no later than the arrival and
    one that is behind harms only its own. What the server's own sessions wrote was written when it was
    captured.
    """
    if order == "edit" and node != SERVER_NODE:
        return min(ulid_time_ms(batch_id), place), batch_id
    return place, batch_id


def batch_key(order: str, batch: Batch) -> Key:
    """The key of everything that ``batch`` writes."""
    if order == "edit" and batch.node != SERVER_NODE:
        return min(batch.time_ms, batch.place), batch.id
    return batch.place, batch.id
