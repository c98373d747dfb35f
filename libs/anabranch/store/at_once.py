"""Statements that need nothing of one another, sent as one.

For a few rows a statement costs more than what it does: its parameters, a message there and one back, a start and an
end of the executor. So the statements of a small group become the parts of one (``with a as (insert …), b as (…)``),
which Postgres carries out on one snapshot, in no particular order. A part is an INSERT, UPDATE or DELETE without
RETURNING, or a SELECT.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from anabranch.store.binary import Connection, Cursor, Parameter, run

_NUMBER = re.compile(rb"\$(\d+)")
_WRITES = re.compile(rb"\s*(insert|update|delete)\b")


class Part(NamedTuple):
    """A statement with ``$1`` and what follows, and its parameters."""

    statement: bytes
    parameters: Sequence[Parameter]


def send(conn: Connection, parts: Sequence[Part]) -> Cursor:
    """Execute all parts as one statement. The answer is one row: how many rows each of them has named.

    Raises:
        psycopg.Error: what Postgres refused; nothing was done.
    """
    statement = _joined(tuple([(part.statement, len(part.parameters)) for part in parts]))
    return run(conn, statement, [parameter for part in parts for parameter in part.parameters])


def _shifted(before: int, found: re.Match[bytes]) -> bytes:
    return b"$%d" % (int(found[1]) + before)


@lru_cache(maxsize=256)
def _joined(parts: tuple[tuple[bytes, int], ...]) -> bytes:
    bodies, before = [], 0
    for number, (statement, parameters) in enumerate(parts):
        body = _NUMBER.sub(partial(_shifted, before), statement)
        if _WRITES.match(statement):
            body += b" returning true"
        bodies.append(b"p%d as (%b)" % (number, body))
        before += parameters
    counts = b", ".join(b"(select count(*) from p%d)" % number for number in range(len(parts)))
    return b"with " + b",\n".join(bodies) + b"\nselect " + counts
