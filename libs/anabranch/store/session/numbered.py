"""Statements with the driver's placeholders (``%s``, ``%(name)s``) as Postgres takes them (``$1``)."""

from __future__ import annotations

import re
from functools import lru_cache

import psycopg

_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?(.?)")


@lru_cache(maxsize=512)
def numbered(query: str | bytes) -> tuple[bytes, tuple[str, ...]]:
    """The statement, and the names of its parameters in their order; none where they have no names.

    Raises:
        psycopg.ProgrammingError: a placeholder is of another form.
    """
    text = query.decode() if isinstance(query, bytes) else query
    names: dict[str, int] = {}
    unnamed = 0

    def place(found: re.Match[str]) -> str:
        nonlocal unnamed
        name, form = found[1], found[2]
        if form == "%" and name is None:
            return "%"
        if form != "s":
            raise psycopg.ProgrammingError(f"no placeholder: {found[0]!r}")
        if name is None:
            unnamed += 1
            return f"${unnamed}"
        return f"${names.setdefault(name, len(names) + 1)}"

    statement = _PLACEHOLDER.sub(place, text)
    if names and unnamed:
        raise psycopg.ProgrammingError("placeholders with names and without them")
    return statement.encode(), tuple(names)
