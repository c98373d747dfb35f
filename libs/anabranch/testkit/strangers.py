"""Roles that may log in, and nothing more: for tests of what such a one can do, or is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from anabranch.store.session.engine import Session, connect

_PASSWORD = "stranger"


@contextmanager
def login(url: str, name: str = "stranger") -> Iterator[tuple[str, str]]:
    """A new role without rights in the database of the superuser's ``url``: its name, and its URL."""
    parts = urlsplit(url)
    role = f"{name}_{parts.path.lstrip('/')}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"create role \"{role}\" login password '{_PASSWORD}'".encode())
        try:
            place = parts.netloc.rpartition("@")[2]
            yield role, parts._replace(netloc=f"{role}:{_PASSWORD}@{place}").geturl()
        finally:
            owner.execute(f'drop owned by "{role}"; drop role "{role}"'.encode())


@contextmanager
def stranger(url: str) -> Iterator[Session]:
    """A session of such a role, in autocommit."""
    with login(url) as (_, own), connect(own, application_name="stranger", autocommit=True) as session:
        yield session
