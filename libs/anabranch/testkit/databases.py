"""New databases on a server: empty ones, and copies of one prepared once."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import quote, unquote, urlsplit

import psycopg
from psycopg import sql

from anabranch.store import migrate

CONNECT_TIMEOUT_S = 10
RELEASED_AT_MOST = 20
"""The most released databases that wait to be dropped; dropped together, they cost one checkpoint, not one each."""

_WRITERS = """
select r.rolname from pg_database d join pg_roles r on r.rolname ~ ('^anabranch_writer_' || d.oid || '(_[0-9]+)?$')
where d.datname = %s
"""


def create_database(url: str, name: str, *, template: str | None = None, file_copy: bool = False) -> str:
    """Make database `name` on the server of `url` and return its URL: empty, or a copy of `template`. `file_copy`: by
    the files and two checkpoints, which is quicker where nothing is synced; Postgres 15 or newer.

    Nobody may be connected to `template`. Raises psycopg.errors.DuplicateDatabase when there is one of that
    name, ObjectInUse when somebody is connected to the template, and psycopg.OperationalError.
    """
    statement = sql.SQL("create database {} template {}" + (" strategy file_copy" if file_copy else ""))
    _run(url, statement.format(sql.Identifier(name), sql.Identifier(template or "template0")))
    return urlsplit(url)._replace(path=f"/{quote(name, safe='')}").geturl()


def drop_database(url: str, name: str) -> None:
    """Remove database `name`, ending connections that are left, and the writers that were made for it; harmless
    when it is not there."""
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        found = connection.execute(_WRITERS, (name,)).fetchall()
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        for (role,) in found:
            connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(role)))


class TestDatabases:
    """The databases of one test run on the server of `url`; their names don't meet those of other runs.

    `prepared` runs a slow preparation (migrations) once and hands out copies of what it made. `file_copies`: see
    `create_database`.
    """

    __test__ = False  # no test class, whatever its name looks like

    def __init__(self, url: str, *, file_copies: bool = False) -> None:
        self._url = url
        self._file_copies = file_copies
        self._prefix = f"anabranch_test_{secrets.token_hex(6)}"
        self._count = 0
        self._templates: dict[str, str] = {}
        self._released: list[str] = []

    def fresh(self) -> str:
        """URL of a new, empty database."""
        return self._create()

    def prepared(self, key: str, prepare: Callable[[str], object]) -> str:
        """URL of a new copy of the database that `prepare(url)` made at the first call with this `key`.

        `prepare` must have closed its connections when it returns.
        """
        template = self._templates.get(key)
        if template is None:
            made = self._create()
            prepare(made)
            template = self._templates[key] = _name(made)
        return self._create(template)

    def migrated(self) -> str:
        """URL of a new database with schema `anabranch` at this release's revision."""
        return self.prepared("migrated", migrate.upgrade)

    def release(self, url: str) -> None:
        """Mark the database of `url` as no longer needed. It is dropped soon, with others."""
        self._released.append(_name(url))
        if len(self._released) >= RELEASED_AT_MOST:
            self._drop_released()

    def close(self) -> None:
        """Drop the released databases, and the templates."""
        self._released += self._templates.values()
        self._templates.clear()
        self._drop_released()

    def _create(self, template: str | None = None) -> str:
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        return create_database(self._url, name, template=template, file_copy=self._file_copies)

    def _drop_released(self) -> None:
        while self._released:
            drop_database(self._url, self._released.pop())


def _name(url: str) -> str:
    return unquote(urlsplit(url).path.removeprefix("/"))


def _run(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        connection.execute(statement)
