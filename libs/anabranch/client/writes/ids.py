"""Ids of batches: ULIDs that only ever grow in one file."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ulid import ULID

_RANDOM_BITS = 80
_STEP_BITS = 40
_RANDOM_LIMIT = 1 << _RANDOM_BITS
_TIME_LIMIT = 1 << 48


def next_id(last_id: str, now_ms: int, seen_ms: int, random_bits: Callable[[int], int] = secrets.randbits) -> str:
    """The id after ``last_id`` ("" for the first one of a file).

    Its time is ``now_ms``, but never before the last id's, and strictly later than ``seen_ms``, the greatest position
    that the node has seen (both in milliseconds). Within a millisecond, and while the clock stands behind, it grows by
    a random step. Called inside the write transaction that uses the id.

    Raises:
        ValueError: ``last_id`` is no ULID, or the time does not fit into one.
    """
    last = int(ULID.from_str(last_id)) if last_id else 0
    last_ms, last_random = last >> _RANDOM_BITS, last & (_RANDOM_LIMIT - 1)
    time_ms = max(now_ms, seen_ms + 1, last_ms)
    if time_ms == last_ms:
        random = last_random + 1 + random_bits(_STEP_BITS)
        if random >= _RANDOM_LIMIT:
            time_ms, random = last_ms + 1, random_bits(_RANDOM_BITS)
    else:
        random = random_bits(_RANDOM_BITS)
    if not 0 <= time_ms < _TIME_LIMIT:
        raise ValueError(f"the time {time_ms} ms does not fit into an id")
    return str(ULID.from_int((time_ms << _RANDOM_BITS) | random))


def first_id_at(time_ms: int) -> str:
    """The smallest id of that millisecond: a bound for comparing ids with times."""
    return str(ULID.from_int(min(max(time_ms, 0), _TIME_LIMIT - 1) << _RANDOM_BITS))
