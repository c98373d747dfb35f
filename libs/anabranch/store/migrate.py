"""Bringing schema ``anabranch`` up to this release.

Any number of processes may do so at once: the whole upgrade is one transaction that first takes the advisory
lock ``MIGRATION_LOCK``. Who waits there finds the work done. A failed upgrade leaves nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from anabranch.store.channels import MIGRATION_LOCK
from anabranch.store.engine import SessionOptions, core_engine

SCHEMA = "anabranch"
VERSION_TABLE = "schema_revision"
OLDEST_SERVER = 14
_APPLICATION_NAME = "anabranch-migrate"
_OPTIONS = SessionOptions(
    statement_timeout_ms=600_000, lock_timeout_ms=300_000, idle_in_transaction_session_timeout_ms=600_000
)
# Alembic keeps its context in module globals, so that one process can run one upgrade at a time.
_one_at_a_time = threading.Lock()


class MigrationError(RuntimeError):
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


def head() -> str:
    """The revision that this release works with."""
    revision = _scripts().get_current_head()
    if revision is None:
        raise MigrationError("this installation has no migrations")
    return revision


def upgrade(url: str) -> bool:
    """Upgrade schema ``anabranch`` on the server at ``url``. True when there was something to do.

    Raises:
        MigrationError: the server is too old, or its schema was made by a newer release.
        psycopg.Error: the server can't be reached, or refuses something.
    """
    config = _config()
    with _one_at_a_time, _transaction(url) as connection:
        require_server(connection.scalar(text("select current_setting('server_version_num')::int")) or 0)
        connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        before = _current(connection)
        if before == head():
            return False
        if before is not None and before not in {script.revision for script in _scripts().walk_revisions()}:
            raise MigrationError(
                f"schema {SCHEMA} is at revision {before}, which this release doesn't know: it was made by a newer one"
            )
        connection.execute(text(f"create schema if not exists {SCHEMA}"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        return True


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


@contextmanager
def _transaction(url: str) -> Iterator[Connection]:
    """A transaction through SQLAlchemy; the driver's errors come as such."""
    engine = core_engine(url, application_name=_APPLICATION_NAME, options=_OPTIONS)
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
