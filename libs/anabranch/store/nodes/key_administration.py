"""Make, list and revoke API keys: what commands do with them. Services find and prove them by ``api_keys``."""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import Any

import psycopg
from sqlalchemy import bindparam, func, insert, select, update

from anabranch.errors import ServerError
from anabranch.store.nodes.api_keys import ApiKey, Role
from anabranch.store.schema import API_KEYS, DATABASES
from anabranch.store.session.channels import KEYS_CHANNEL
from anabranch.store.session.core import execute

LIST = (
    select(
        API_KEYS.c.id,
        API_KEYS.c.secret_hash,
        API_KEYS.c.subject,
        DATABASES.c.name,
        API_KEYS.c.role,
        API_KEYS.c.created_ms,
        API_KEYS.c.expires_ms,
        API_KEYS.c.revoked_ms,
    )
    .select_from(API_KEYS.outerjoin(DATABASES))
    .order_by(API_KEYS.c.created_ms, API_KEYS.c.id)
)
"""All keys, in the order in which they were made."""

INSERT = insert(API_KEYS)
"""A new key."""

_GIVEN = ("id", "secret_hash", "subject", "role", "created_ms", "expires_ms")
INSERT_FOR_DATABASE = insert(API_KEYS).from_select(
    [*_GIVEN, "database_id"],
    select(*(bindparam(name, type_=API_KEYS.c[name].type) for name in _GIVEN), DATABASES.c.id).where(
        DATABASES.c.name == bindparam("database")
    ),
)
"""A new key that opens one database; no row where there is none of that name."""

REVOKE = (
    update(API_KEYS)
    .where(API_KEYS.c.id == bindparam("key"), API_KEYS.c.revoked_ms.is_(None))
    .values(revoked_ms=bindparam("now_ms"))
    .returning(func.pg_notify(KEYS_CHANNEL, ""))
)
"""Revokes a key that is not revoked yet, and tells every service to look."""


class KeyOfNoDatabaseError(ServerError, LookupError):
    """There is no database of that name."""

    REASON = "UNKNOWN_DATABASE"


def list_keys(conn: psycopg.Connection[Any]) -> list[ApiKey]:
    """All keys, oldest first."""
    return [ApiKey(*row) for row in execute(conn, LIST)]


def create(
    conn: psycopg.Connection[Any],
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
    values = {
        "id": key_id,
        "secret_hash": sha256(secret.encode()).digest(),
        "subject": subject,
        "role": role,
        "created_ms": now_ms,
        "expires_ms": expires_ms,
    }
    if database is None:
        execute(conn, INSERT, **values, database_id=None, revoked_ms=None)
    elif execute(conn, INSERT_FOR_DATABASE, **values, database=database).rowcount != 1:
        raise KeyOfNoDatabaseError(database)
    return f"ak_{key_id}_{secret}"


def revoke(conn: psycopg.Connection[Any], key_id: str, now_ms: int) -> bool:
    """Revoke a key. False where there is none of that id, or it was revoked before."""
    return execute(conn, REVOKE, key=key_id, now_ms=now_ms).rowcount == 1
