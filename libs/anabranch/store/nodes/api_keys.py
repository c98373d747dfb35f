"""API keys: random secrets of which only the hash is kept, scoped to a database and a role.

A key reads ``ak_<id>_<secret>``: the id finds the row, the secret (256 random bits, so that a plain SHA-256
is as good as a slow hash) proves possession. The row of a revoked or expired key is kept, so that one can look up
what a key was.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import psycopg

from anabranch.errors import ServerError

Role = Literal["device", "admin"]
Row = tuple[Any, ...]

_COLUMNS = """
select k.id, k.secret_hash, k.subject, d.name, k.role, k.created_ms, k.expires_ms, k.revoked_ms
from anabranch.api_keys k left join anabranch.databases d on d.id = k.database_id
"""
FIND = _COLUMNS + "where k.id = any(%s)"
"""The keys of these ids."""
LIST = _COLUMNS + "order by k.created_ms, k.id"
"""All keys, in the order in which they were made."""
INSERT = """
insert into anabranch.api_keys (id, secret_hash, subject, database_id, role, created_ms, expires_ms)
select %(id)s, %(secret_hash)s, %(subject)s, d.id, %(role)s, %(created_ms)s, %(expires_ms)s
from (select 1) one left join anabranch.databases d on d.name = %(database)s
where %(database)s::text is null or d.id is not null
"""
"""A new key; no row where there is no database of that name."""
REVOKE = "update anabranch.api_keys set revoked_ms = %s where id = %s and revoked_ms is null"
"""Revokes a key that is not revoked yet."""


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


class KeyOfNoDatabaseError(ServerError, LookupError):
    """There is no database of that name."""

    REASON = "UNKNOWN_DATABASE"


def split_key(text: str) -> tuple[str, str] | None:
    """Id and secret of a key, or None where the text is no key."""
    parts = text.split("_")
    if len(parts) != 3 or parts[0] != "ak" or not parts[1] or not parts[2]:
        return None
    return parts[1], parts[2]


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


def list_keys(conn: psycopg.Connection[Row]) -> list[ApiKey]:
    """All keys, oldest first."""
    return [ApiKey(*row) for row in conn.execute(LIST).fetchall()]


def create(
    conn: psycopg.Connection[Row],
    *,
    subject: str,
    role: Role,
    database: str | None,
    now_ms: int,
    expires_ms: int | None = None,
) -> str:
    """Make a key and return its text; the text can't be read again later.

    Raises:
        KeyOfNoDatabaseError: ``database`` is given and there is none of that name.
    """
    key_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    cursor = conn.execute(
        INSERT,
        {
            "id": key_id,
            "secret_hash": sha256(secret.encode()).digest(),
            "subject": subject,
            "database": database,
            "role": role,
            "created_ms": now_ms,
            "expires_ms": expires_ms,
        },
    )
    if cursor.rowcount != 1:
        raise KeyOfNoDatabaseError(database)
    return f"ak_{key_id}_{secret}"


def revoke(conn: psycopg.Connection[Row], key_id: str, now_ms: int) -> bool:
    """Revoke a key. False where there is none of that id, or it was revoked before."""
    return conn.execute(REVOKE, (now_ms, key_id)).rowcount == 1
