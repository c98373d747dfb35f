"""The order of writes: places, and the keys by which columns are judged.

The *place* of a batch is the position that it would have had without coming late: the smallest position among the
accepted batches of its node with a higher id, whatever rows those touched; its own position where there is none. So one
node's batches are ordered by their ids, in whatever order they come, and a late one is placed before the first that it
should have preceded, and after all batches that had been decided before that one.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.merge.model import Batch

SERVER_NODE = "server"
"""The node of changes that no batch made. Their ids are the smallest of their position, and hold no time."""

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

    ``server``: ``(place, id)``, as a rule the order of arrival. ``edit``: ``(min(time in the ULID, place), id)``, the
    order in which people wrote; the time of a clock that is ahead counts no later than the arrival, and a clock that is
    behind affects only its own node's writes. A write of the server's own sessions has the time of its capture.
    """
    if order == "edit" and node != SERVER_NODE:
        return min(ulid_time_ms(batch_id), place), batch_id
    return place, batch_id


def batch_key(order: str, batch: Batch) -> Key:
    """The key of all writes of ``batch``."""
    if order == "edit" and batch.node != SERVER_NODE:
        return min(batch.time_ms, batch.place), batch.id
    return batch.place, batch.id
