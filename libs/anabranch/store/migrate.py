"""Upgrade schema ``anabranch`` to this release.

Any number of processes may do so at once: the whole upgrade is one transaction that first locks the table of the
schema's revision, or, before there is one, makes the schema, which one process can. One that waits there finds the work
done. A failed upgrade leaves nothing behind.

Services go on working meanwhile. A change that adds (*expand*) runs before the release that uses it; a later release
removes unused parts (*contract*). Each migration names in ``works_from`` the oldest revision whose release works with
the schema once it has run (left out: its own). From these every upgrade makes the list of revisions in
``code_revisions``, which releases that know nothing of newer migrations can read.

The last step makes the event triggers by which DDL of synced tables is noticed (``ddl.install``), where the role may.

The upgrade waits only shortly for a lock on a table, since all later sessions wait behind it: then it is rolled back
and tried again. A migration that changes existing tables locks them all at once (``table_locks.take_tables``); its slow
steps come before, or into a release of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.errors import DuplicateTable, LockNotAvailable, UniqueViolation
from sqlalchemy import Connection, NullPool, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from anabranch.errors import ServerError
from anabranch.store.ddl.install import install
from anabranch.store.revisions import CODE_TABLE, SCHEMA, VERSION_TABLE, head, revisions
from anabranch.store.session.engine import SessionOptions, connect
from anabranch.store.session.readiness import answers
from anabranch.store.session.table_locks import give_up_early
from anabranch.store.writers import writer

OLDEST_SERVER = 14
_APPLICATION_NAME = "anabranch-migrate"
_OPTIONS = SessionOptions(
    statement_timeout_ms=600_000, lock_timeout_ms=300_000, idle_in_transaction_session_timeout_ms=600_000
)
_PATIENCE_S = 300.0
_CLEAR_CODE_REVISIONS = f"delete from {SCHEMA}.{CODE_TABLE}"
_ADD_CODE_REVISIONS = f"insert into {SCHEMA}.{CODE_TABLE} (revision) select unnest(cast(:revisions as text[]))"
_IS_SERVED = f"select exists (select from {SCHEMA}.{CODE_TABLE} where revision = :revision)"
# Alembic keeps its context in module globals, so that one process can run one upgrade at a time.
_one_at_a_time = threading.Lock()


class MigrationError(ServerError, RuntimeError):
    """The upgrade can't be made on this server; the message says why and what to do."""


def require_server(version_num: int) -> None:
    """Check a server's version (``server_version_num``, 140005 for 14.5).

    Raises:
        MigrationError: it is older than Anabranch runs on.
    """
    if version_num // 10_000 < OLDEST_SERVER:
        raise MigrationError(
            f"the server is Postgres {version_num // 10_000}; Anabranch needs Postgres {OLDEST_SERVER} or newer"
        )


def code_revisions() -> tuple[str, ...]:
    """The revisions of the releases that work with this release's schema, the newest, its own, first."""
    scripts = list(_scripts().walk_revisions())
    places = {script.revision: place for place, script in enumerate(scripts)}
    oldest = len(scripts) - 1
    for place, script in enumerate(scripts):
        if place > oldest:
            break
        oldest = min(oldest, places[getattr(script.module, "works_from", script.revision)])
    return tuple(script.revision for script in scripts[: oldest + 1])


def await_server(url: str, patience_s: float) -> None:
    """Wait until the server at ``url`` answers and takes a session, as services do when they start; at most so long:
    what comes next finds out, and says, why it doesn't."""
    retrying = Retrying(
        retry=retry_if_result(lambda answer: not answer),
        wait=wait_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(patience_s),
        retry_error_callback=lambda _: None,
    )
    if patience_s > 0:
        retrying(answers, url, _APPLICATION_NAME)


def upgrade(url: str) -> bool:
    """Upgrade schema ``anabranch`` on the server at ``url``. True when there was something to do: there is
    nothing, too, where a newer release has made a schema that this one works with.

    Raises:
        MigrationError: the server is too old, or its schema was made by a newer release and is not for this one any
            more.
        psycopg.Error: the server can't be reached, or refuses something; LockNotAvailable: another session has held a
            table for five minutes.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(LockNotAvailable),
        wait=wait_random(0.5, 1.5),
        stop=stop_after_delay(_PATIENCE_S),
        reraise=True,
    )
    with _one_at_a_time:
        return retrying(_upgrade, url)


def _upgrade(url: str) -> bool:
    try:
        return _try_to_upgrade(url)
    except (UniqueViolation, DuplicateTable):
        if current(url) is None:
            raise
        # Another process has made the schema meanwhile, or even the tables.
        return _try_to_upgrade(url)


def _try_to_upgrade(url: str) -> bool:
    config = _config()
    with _transaction(url) as connection:
        require_server(connection.scalar(text("select current_setting('server_version_num')::int")) or 0)
        _wait_for_turn(connection)
        before, known = _current(connection), revisions()
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        if before == known[0]:
            # By a role that may make them, perhaps, where the one that made the schema may not.
            install(driver)
            return False
        if before is not None and before not in known:
            if _is_served(connection, known[0]):
                return False
            raise MigrationError(
                f"schema {SCHEMA} is at revision {before}, which this release ({known[0]}) doesn't know and doesn't "
                "work with: it was made by a newer one"
            )
        give_up_early(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.execute(text(_CLEAR_CODE_REVISIONS))
        connection.execute(text(_ADD_CODE_REVISIONS), {"revisions": list(code_revisions())})
        writer.refresh(driver)
        install(driver)
        return True


def _wait_for_turn(connection: Connection) -> None:
    """Keep all other upgrades away until the transaction's end. Of several that find no schema one makes it, and the
    others, which wait for it there, are told that it exists: they begin anew."""
    if inspect(connection).has_table(VERSION_TABLE, schema=SCHEMA):
        # Services go on reading it.
        connection.execute(text(f"lock table {SCHEMA}.{VERSION_TABLE} in exclusive mode"))
    else:
        connection.execute(text(f"create schema if not exists {SCHEMA}"))


def _is_served(connection: Connection, revision: str) -> bool:
    there = inspect(connection).has_table(CODE_TABLE, schema=SCHEMA)
    return there and bool(connection.scalar(text(_IS_SERVED), {"revision": revision}))


def current(url: str) -> str | None:
    """The revision of schema ``anabranch`` on the server at ``url``; None where there is none.

    Raises:
        psycopg.OperationalError: the server can't be reached.
    """
    with _transaction(url) as connection:
        return _current(connection)


def is_current(url: str) -> bool:
    """Whether the schema is at this release's revision."""
    return current(url) == head()


def fits(url: str) -> bool:
    """Whether this release works with the schema: it is at its revision, or at a newer one that still serves it.

    Raises:
        psycopg.OperationalError: the server can't be reached.
    """
    with _transaction(url) as connection:
        return _current(connection) == head() or _is_served(connection, head())


@contextmanager
def _transaction(url: str) -> Iterator[Connection]:
    """A transaction through SQLAlchemy; it raises the driver's own errors."""
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: connect(url, application_name=_APPLICATION_NAME, options=_OPTIONS),
        poolclass=NullPool,
    )
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        if error.orig is None:
            raise
        raise error.orig from error


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "version_table_schema": SCHEMA}
    )
    return context.get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["version_table"] = VERSION_TABLE
    config.attributes["schema"] = SCHEMA
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
