"""Names for what the app does not know: columns and tables that are gone, or came later than the app.

These are told by their identities. An identity outlives renames, so that another column may have it for its name in SQL
by now: then a mark stands behind it, and nobody takes the one for the other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

GONE = " (gone)"
"""Behind the identity of a column that the table lacks, where another column has it for its name."""
LATER = " (later)"
"""Behind that of a column which came later than the app, which is tied to a schema version."""


def apart(identity: str, names: Container[str], mark: str) -> str:
    """An identity as it is told beside ``names``, which others have."""
    while identity in names:
        identity += mark
    return identity


def became(identity: str, identities: Iterable[str]) -> str:
    """The one of ``identities``, a table's columns, that an earlier column was retyped into; "" where that can't be
    told. A retyped column has the identity of the one before it with the next number behind it (``n``, ``n~2``) unless
    it was renamed in between. A column that was dropped, and made anew under its name, has such an identity as well:
    the server knows the two apart."""
    stem, number = _parts(identity)
    later = [one for one in identities if _parts(one)[0] == stem and _parts(one)[1] > number]
    return later[0] if len(later) == 1 else ""


def _parts(identity: str) -> tuple[str, int]:
    stem, mark, number = identity.rpartition("~")
    if mark and stem and number.isascii() and number.isdigit():
        return stem.casefold(), int(number)
    return identity.casefold(), 1
