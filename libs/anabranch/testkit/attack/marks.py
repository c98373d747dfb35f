"""Marked values: each is written once into a restricted table, and is found again in any bytes.

A mark tells the audiences under which it was made, for whoever reads a report; a check goes by the history of the rows
alone. Its end is as sure as its beginning, since columns of Arrow stand without anything between their values.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterable

_MARK = re.compile(rb"secret-[\w:.+]*-[0-9]{10}")
LONGEST = 400
"""Bytes of the longest mark: a value that is cut into parts is put together over so many."""


class Marks:
    """Makes marks, for several threads."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def new(self, audiences: Iterable[str]) -> str:
        """A mark that nobody has. ``audiences`` have letters, digits, colons, dots and underscores.

        Raises:
            ValueError: they have others, or are too long together.
        """
        with self._lock:
            number = next(self._numbers)
        mark = f"secret-{'+'.join(sorted(audiences))}-{number:010d}"
        if not _MARK.fullmatch(mark.encode()) or len(mark) > LONGEST:
            raise ValueError(f"{mark!r} would not be found again")
        return mark


def marks_in(data: bytes) -> set[str]:
    """The marks that stand in ``data`` as plain text, whatever is around them."""
    return {found.decode() for found in _MARK.findall(data)} if b"secret-" in data else set()
