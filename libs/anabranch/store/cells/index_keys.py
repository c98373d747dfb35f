"""Keys as they stand in an index of ours, where there is a limit to what an entry can hold.

The application's own index holds a key by its bytes, and packs them. The text by which we identify a row may be twice
as long, and SQL may have written any value into it. So a text that is too long to be sure of fitting is replaced by one
that fits: its SHA-256, and then as many dots as make it longer than all texts that are kept as they are. None of these
can be mistaken for it, and Postgres stores the dots in a few bytes.

``log`` and ``conflicts`` have the whole text, since no index holds it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from anabranch.limits import MAX_KEY_BYTES

_SURELY_SHORT = MAX_KEY_BYTES // 4
_DOTS = "." * MAX_KEY_BYTES


def index_key(key: str) -> str:
    """A key's text as ``row_versions`` and ``inbox`` hold it."""
    if len(key) <= _SURELY_SHORT:
        return key
    data = key.encode()
    return key if len(data) <= MAX_KEY_BYTES else sha256(data).hexdigest() + _DOTS


def index_keys(keys: Sequence[str]) -> Sequence[str]:
    """``index_key`` of each key, in their order."""
    if max(map(len, keys), default=0) <= _SURELY_SHORT:
        return keys
    return [index_key(key) for key in keys]
