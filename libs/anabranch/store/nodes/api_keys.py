"""API keys: random secrets of which only the hash is kept, scoped to a database and a role; how a service finds and
proves them. ``key_administration`` makes them.

A key reads ``ak_<id>_<secret>``: the id finds the row, the secret (256 random bits, so that a plain SHA-256
is as good as a slow hash) proves possession. The row of a revoked or expired key is kept, so that one can look up
what a key was.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import psycopg

_is_key = re.compile(r"ak_([0-9a-f]{16})_([0-9a-f]{64})").fullmatch
Role = Literal["device", "admin"]
Row = tuple[Any, ...]

FIND = """
select k.id, k.secret_hash, k.subject, d.name, k.role, k.created_ms, k.expires_ms, k.revoked_ms
from anabranch.api_keys k left join anabranch.databases d on d.id = k.database_id
where k.id = any(%s)
"""
"""The keys of these ids."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is kept. Times are in milliseconds since 1970."""

    id: str
    secret_hash: bytes
    subject: str
    database: str | None
    """The only database that it opens; None opens all."""
    role: Role
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None

    def ended(self, now_ms: int) -> bool:
        """Whether it was revoked or has expired."""
        return self.revoked_ms is not None or (self.expires_ms is not None and now_ms >= self.expires_ms)


def split_key(text: str) -> tuple[str, str] | None:
    """Id and secret of a key, or None for a text of another form: none such gets into a look-up."""
    found = _is_key(text)
    return (found[1], found[2]) if found is not None else None


def proves(key: ApiKey, secret: str) -> bool:
    """Whether the secret is the key's, in constant time."""
    return hmac.compare_digest(key.secret_hash, sha256(secret.encode()).digest())


async def afind(conn: psycopg.AsyncConnection[Row], ids: Sequence[str]) -> dict[str, ApiKey]:
    """The keys among ``ids`` that exist, by id; one statement."""
    cursor = await conn.execute(FIND, (list(ids),))
    return {row[0]: ApiKey(*row) for row in await cursor.fetchall()}


def is_good(conn: psycopg.Connection[Row], text: str, now_ms: int) -> bool:
    """Whether a key is known here, and neither revoked nor expired."""
    parts = split_key(text)
    if parts is None:
        return False
    row = conn.execute(FIND, ([parts[0]],)).fetchone()
    if row is None:
        return False
    key = ApiKey(*row)
    return proves(key, parts[1]) and not key.ended(now_ms)
