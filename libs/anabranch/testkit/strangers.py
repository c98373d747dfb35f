"""A role that may connect, and nothing more: for tests of what such a one can hold up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg

from anabranch.store.session.engine import Session, connect

_PASSWORD = "stranger"


@contextmanager
def stranger(url: str) -> Iterator[Session]:
    """A session, in autocommit, of a new role without rights in the database of the superuser's ``url``."""
    parts = urlsplit(url)
    role = f"stranger_{parts.path.lstrip('/')}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"create role \"{role}\" login password '{_PASSWORD}'".encode())
        try:
            place = parts.netloc.rpartition("@")[2]
            own = parts._replace(netloc=f"{role}:{_PASSWORD}@{place}").geturl()
            with connect(own, application_name="stranger", autocommit=True) as session:
                yield session
        finally:
            owner.execute(f'drop owned by "{role}"; drop role "{role}"'.encode())
