"""A migration, run on a structural copy: a database of its own on a scratch server, with our schema, the registrations
of one database and no rows. There the same code notices and understands it that does so in the real one.

Nothing of the migration ever runs in the real database, so that it may do what it likes: begin and commit, or make
indices concurrently. Of the real one the structure and the registrations are read, and nothing is locked that a SELECT
would not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from ulid import ULID

from anabranch.errors import ServerError
from anabranch.store import migrate
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.ddl.changes import changes_of
from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.install import install
from anabranch.store.ddl.markers import is_any_waiting, waiting
from anabranch.store.plan.script import Script, ScriptStatement, read_script
from anabranch.store.session.engine import Session, connect

STATEMENT_MS = 60_000
_APPLICATION = "anabranch-plan"
_LAST_NUMBER = 1_000_000_000
_DATABASE: LiteralString = "select to_jsonb(d) from anabranch.databases d where d.id = %s"
_TABLES: LiteralString = "select to_jsonb(t) from anabranch.synced_tables t where t.database_id = %s order by t.id"
_ROLES: LiteralString = "select rolname from pg_catalog.pg_roles where rolname !~ '^pg_' order by rolname"
_ROWS: LiteralString = """
select t.id, s.row_count from anabranch.synced_tables t left join anabranch.table_sums s on s.table_id = t.id
where t.database_id = %s
"""
_PUT_DATABASE: LiteralString = """
insert into anabranch.databases overriding system value
select * from jsonb_populate_record(null::anabranch.databases, %s)
"""
_PUT_TABLE: LiteralString = """
insert into anabranch.synced_tables overriding system value
select * from jsonb_populate_record(null::anabranch.synced_tables, %s)
"""
# A copy numbers columns anew, without those that were dropped.
_RENUMBER: LiteralString = """
update anabranch.synced_tables t
set relation = c.oid, shape = anabranch.shape_of(c.oid),
    columns = (select jsonb_agg(k.one - 'number' order by k.place)
               from jsonb_array_elements(t.columns) with ordinality k (one, place)),
    column_numbers = array(
        select a.attnum from jsonb_array_elements(t.columns) with ordinality k (one, place)
        join pg_catalog.pg_attribute a on a.attrelid = c.oid and not a.attisdropped
         and a.attname = coalesce(k.one ->> 'renamed', k.one ->> 'name')
        order by k.place)
from anabranch.databases d, pg_catalog.pg_class c
where t.database_id = d.id and c.relname = coalesce(t.sql_name, t.name)
  and c.relnamespace = (select n.oid from pg_catalog.pg_namespace n where n.nspname = d.schema_name)
returning t.id, cardinality(t.column_numbers) = jsonb_array_length(t.columns)
"""


class MigrationPlanError(ServerError, RuntimeError):
    """The migration can't be planned, or would fail; the message says why."""


@dataclass(frozen=True, slots=True)
class SourceDatabase:
    """The real database as a plan needs it. ``rows``: by table number, as far as they are counted; ``search_path``:
    that of sessions of its role."""

    database: Database
    kept: dict[str, Any]
    tables: Sequence[dict[str, Any]]
    rows: dict[int, int | None]
    roles: Sequence[str]
    search_path: str


@contextmanager
def scratch_database(url: str) -> Iterator[str]:
    """A database of its own on the server at ``url`` for the block: its URL.

    Raises:
        psycopg.Error: none can be made there.
    """
    name = f"anabranch_plan_{ULID()}".lower()
    quoted = psycopg.sql.Identifier(name)
    with psycopg.connect(url, autocommit=True, application_name=_APPLICATION) as conn:
        conn.execute(psycopg.sql.SQL("create database {} template template0").format(quoted))
        try:
            yield make_conninfo(url, dbname=name)
        finally:
            conn.execute(psycopg.sql.SQL("drop database {} with (force)").format(quoted))


def read_source(conn: Session, url: str, database: str) -> SourceDatabase:
    """Read what a plan needs of the real database. ``url``: that of its sessions.

    Raises:
        MigrationPlanError: the log does not have the present schema yet.
        UnknownDatabaseError: there is no such database.
        psycopg.Error: it can't be read.
    """
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read read only")
        found = load_database(conn, database)
        if is_any_waiting(conn, found.id):
            raise MigrationPlanError(
                "tables were altered a moment ago, and the log does not have that yet: plan again in a moment"
            )
        [(kept,)] = conn.execute(_DATABASE, (found.id,)).fetchall()
        tables = [one for (one,) in conn.execute(_TABLES, (found.id,)).fetchall()]
        rows: dict[int, int | None] = dict(conn.execute(_ROWS, (found.id,)).fetchall())
        roles = [name for (name,) in conn.execute(_ROLES).fetchall()]
    # With the settings that the role's own sessions have.
    with psycopg.connect(url, autocommit=True, application_name=_APPLICATION) as plain:
        [(search_path,)] = plain.execute("select current_setting('search_path')").fetchall()
    return SourceDatabase(found, kept, tables, rows, roles, search_path)


def copy_structure(url: str, structure: str, source: SourceDatabase, *, roles: bool) -> list[str]:
    """Make the copy in the empty database at ``url``; gives what could not be copied, in words. ``roles``: the server
    is there for this alone, so that roles may be made in it.

    Raises:
        MigrationPlanError: a synced table can't be copied, or DDL would not be noticed there.
        psycopg.Error: Postgres refused something else.
    """
    migrate.upgrade(url)
    missing: list[str] = []
    with psycopg.connect(url, autocommit=True, application_name=_APPLICATION) as plain:
        for statement in _roles(source.roles) if roles else ():
            _try(plain, statement)
        for one in read_script(structure).statements:
            trouble = _try(plain, one.text)
            # Our own triggers are there already, or come with the registrations.
            if trouble and one.words[0] in ("create", "alter") and "anabranch" not in one.text:
                missing.append(f"{' '.join(one.text.split())[:80]}: {trouble}")
    with connect(url, application_name=_APPLICATION, autocommit=True) as conn:
        conn.execute(_PUT_DATABASE, (Jsonb(source.kept),))
        for table in source.tables:
            conn.execute(_PUT_TABLE, (Jsonb(table),))
        # New tables are numbered behind those.
        conn.execute("select setval(pg_get_serial_sequence('anabranch.synced_tables', 'id'), %s)", (_LAST_NUMBER,))
        there: dict[int, bool] = dict(conn.execute(_RENUMBER).fetchall())
        for synced in source.database.tables.values():
            if not there.get(synced.id) and synced.name not in source.database.torn:
                because = f": {'; '.join(missing)}" if missing else ""
                raise MigrationPlanError(f'table "{synced.sql_name}" can\'t be copied as it is registered{because}')
        if not install(conn):
            raise MigrationPlanError("the scratch server's role may make no event triggers: give one of a superuser")
    return missing


def _roles(names: Iterable[str]) -> Iterable[str]:
    return (f"create role {psycopg.sql.Identifier(name).as_string(None)}" for name in names)


def _try(conn: psycopg.Connection[Any], statement: str) -> str:
    """Run a statement; the reason why it could not be, "" where it was."""
    try:
        conn.execute(statement.encode())
    except psycopg.Error as error:
        if conn.closed:
            raise
        return error.diag.message_primary or str(error)
    return ""


def run_script(url: str, script: Script, source: SourceDatabase, *, search_path: str | None = None) -> None:
    """Run a migration in the copy, statement by statement.

    Raises:
        MigrationPlanError: a statement fails, with its line.
    """
    with psycopg.connect(url, autocommit=True, application_name=_APPLICATION) as plain:
        path = source.search_path if search_path is None else search_path
        plain.execute("select set_config('search_path', %s, false)", (path,))
        plain.execute("select set_config('statement_timeout', %s, false)", (str(STATEMENT_MS),))
        for statement in script.statements:
            _run(plain, statement, path)
        if plain.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            plain.execute("commit")


def _run(plain: psycopg.Connection[Any], statement: ScriptStatement, path: str) -> None:
    try:
        plain.execute(statement.text.encode())
    except psycopg.Error as error:
        words = error.diag.message_primary or str(error)
        more = [one for one in (error.diag.message_detail, error.diag.message_hint) if one]
        if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedObject):
            more.append(f"names are looked up in {path}; --search-path gives another one")
        raise MigrationPlanError(f"line {statement.line}: {'; '.join([words, *more])}") from error


def planned(url: str, name: str) -> list[TableChange]:
    """The changes that were made in the copy of the database ``name``, understood as a group would.

    Raises:
        psycopg.Error: they can't be read.
    """
    with connect(url, application_name=_APPLICATION, autocommit=True) as conn:
        database = load_database(conn, name)
        with conn.transaction(force_rollback=True):
            changes = changes_of(conn, database, waiting(conn, database.id), position=1)
    return [change for change in changes if change.is_known or change.refused]
