"""New databases on a server: empty ones, and copies of one prepared once."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql

CONNECT_TIMEOUT_S = 10


def create_database(url: str, name: str, *, template: str | None = None) -> str:
    """Make database `name` on the server of `url` and return its URL: empty, or a copy of `template`.

    Nobody may be connected to `template`. Raises psycopg.errors.DuplicateDatabase when there is one of that
    name, ObjectInUse when somebody is connected to the template, and psycopg.OperationalError.
    """
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    statement += sql.SQL(" template {}").format(sql.Identifier(template or "template0"))
    _run(url, statement)
    return urlsplit(url)._replace(path=f"/{quote(name, safe='')}").geturl()


def drop_database(url: str, name: str) -> None:
    """Remove database `name`, ending connections that are left; harmless when it is not there."""
    _run(url, sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _run(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        connection.execute(statement)
