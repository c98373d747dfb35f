"""The form of ids: nodes and batches have ULIDs."""

from __future__ import annotations

import re

_is_ulid = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}").fullmatch


def is_ulid(text: str) -> bool:
    """Whether ``text`` is a ULID in its canonical form."""
    return _is_ulid(text) is not None
