"""Registration: make a schema a database, and sync tables of it.

``add_table`` is one transaction, for tables that are small or have no writers; for others there is ``gather``.

A table's first sum, its ``first_position``, its registration and the beginning of its capture are one moment.
``add_table`` takes the table's lock against writers before it scans (readers go on), holds it to its end, and takes the
claim of the database only once the sum is known: no group commits while it reads the head and registers. Earlier writes
are committed and in the sum; the triggers capture later ones. A resolver that claims afterwards finds a higher
``schema_version``; it must compare that with its own ``Database`` after every claim.

Every function runs in one transaction (a savepoint of the caller's, if there is one), which holds its locks
to its end. Time is a parameter, in milliseconds since 1970; left out, it is this machine's.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import psycopg
from psycopg.types.json import Jsonb
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random
from ulid import ULID

from anabranch.store.audiences.evaluated import EvaluationError, evaluate_anew
from anabranch.store.audiences.rules import rules_from_json
from anabranch.store.capture import triggers
from anabranch.store.catalog import former_tables
from anabranch.store.catalog.databases import Database, columns_to_json, former_columns_to_json, load_database
from anabranch.store.catalog.judging import (
    Judged,
    RegistrationError,
    find_database,
    lock_and_judge,
    refuse,
    warnings,
)
from anabranch.store.catalog.policy import PolicyError, database_policy
from anabranch.store.catalog.refusals import TableRefusal, name_clashes
from anabranch.store.catalog.sums import RowSums, scan_sums, sum_to_bytes
from anabranch.store.ddl.install import install
from anabranch.store.session.channels import CATALOG_CHANNEL
from anabranch.store.session.errors import violated
from anabranch.store.session.own_locks import MAKE_CLAIMS, wait_for_claim
from anabranch.store.writers import writer
from anabranch.store.writers.schema_rights import is_reserved
from anabranch.values import Table

Connection = psycopg.Connection[Any]

_R = TypeVar("_R")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_SEAL_KEY_BYTES = 32
ATTEMPT_LOCK_MS = 400
"""The longest that one attempt waits for a lock, and that writers of the table wait behind it."""
_PAUSE_S = (0.1, 0.4)

_LIMITS = """
select set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true)
"""
_SCHEMA = "select 1 from pg_namespace where nspname = %s"
_INSERT_DATABASE = """
insert into anabranch.databases (name, schema_name, epoch, policy, seal_key, created_ms)
values (%s, %s, %s, %s, %s, %s)
"""
_NOTIFY_NEW = "select pg_notify(%s, id::text) from anabranch.databases where name = %s"
# Keeps two registrations of one database apart, without blocking inserts of rows that refer to it.
_LOCK_DATABASE = "select audience_rules from anabranch.databases where id = %s for no key update"
_SYNCED = "select coalesce(sql_name, name) from anabranch.synced_tables where database_id = %s"
_INSERT_TABLE = """
with head as (
    select coalesce(max(position), 0) as position from anabranch.groups where database_id = %(database)s
), added as (
    insert into anabranch.synced_tables
        (id, database_id, name, columns, key_columns, policy, registered_ms, first_position,
         audience, audience_columns, audience_is_list, sql_name, former_columns, column_numbers,
         relation, shape)
    overriding system value
    select %(number)s, %(database)s, %(name)s::text, %(columns)s, %(key_columns)s::text[], %(policy)s, %(now_ms)s,
           position, %(audience)s, %(audience_columns)s::text[], %(audience_is_list)s,
           nullif(%(sql_name)s::text, %(name)s::text),
           %(former_columns)s, %(column_numbers)s::int2[], c.oid,
           anabranch.shape_of(c.oid) || jsonb_build_object('seen', anabranch.seen_of(c.oid))
    from head left join (
        select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %(schema)s and c.relname = %(sql_name)s::text and c.relkind in ('r', 'p')
    ) c on true
    returning id, first_position
)
insert into anabranch.table_sums (table_id, position, row_count, row_hash)
select id, first_position, %(count)s, %(sum)s from added
returning table_id
"""
_INSERT_AUDIENCE_SUMS = """
insert into anabranch.audience_sums (table_id, audience, position, row_count, row_hash)
select t.id, s.audience, t.first_position, s.row_count, s.row_hash
from anabranch.synced_tables t
cross join unnest(%(audiences)s::text[], %(counts)s::int8[], %(sums)s::bytea[]) s (audience, row_count, row_hash)
where t.id = %(number)s
"""
_NUMBER = "select nextval(pg_get_serial_sequence('anabranch.synced_tables', 'id'))"
_DELETE_VERSIONS = "delete from anabranch.row_versions where table_id = %s"
_CHANGED = """
with changed as (
    update anabranch.databases set schema_version = schema_version + 1 where id = %s returning id
)
select pg_notify(%s, id::text) from changed
"""

_CONSTRAINTS: Mapping[str, tuple[TableRefusal, str]] = {
    "databases_name_key": (TableRefusal.DATABASE_EXISTS, 'there is a database "{name}" already'),
    "databases_schema_name_key": (
        TableRefusal.SCHEMA_TAKEN,
        'schema "{schema}" belongs to another database already',
    ),
    "synced_tables_name_key": (TableRefusal.ALREADY_SYNCED, 'table "{table}" is synced already'),
}
"""Our own constraints that a registration may violate, each with its refusal and text."""


@dataclass(frozen=True, slots=True)
class Added:
    """A table as registered, the number of its rows, and warnings about it."""

    table: Table
    rows: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegistrationLimits:
    """How long a registration may wait for a lock, and one statement of it may take, in milliseconds."""

    lock_timeout_ms: int = 10_000
    statement_timeout_ms: int = 600_000


def create_database(
    conn: Connection,
    name: str,
    schema: str,
    policy: Mapping[str, Any] | None = None,
    *,
    now_ms: int | None = None,
) -> Database:
    """Make the Postgres schema ``schema``, which must exist, a database called ``name``. No table is synced
    yet.

    Raises:
        RegistrationError: INVALID_NAME, INVALID_POLICY, RESERVED_SCHEMA, UNKNOWN_SCHEMA, DATABASE_EXISTS or
            SCHEMA_TAKEN.
    """
    what = f'database "{name}" can\'t be created'
    if not _NAME.fullmatch(name):
        text = "a name has 1 to 63 letters, digits, underscores, dots and dashes, the last two not in front"
        raise refuse(what, TableRefusal.INVALID_NAME, text)
    if is_reserved(schema):
        raise refuse(what, TableRefusal.RESERVED_SCHEMA, f'schema "{schema}" is not the application\'s')
    given = policy or {}
    try:
        database_policy(given)
    except PolicyError as error:
        raise refuse(what, TableRefusal.INVALID_POLICY, str(error)) from error
    now = at_ms(now_ms)
    try:
        with conn.transaction():
            if conn.execute(_SCHEMA, (schema,)).fetchone() is None:
                raise refuse(what, TableRefusal.UNKNOWN_SCHEMA, f'there is no schema "{schema}"')
            epoch = str(ULID.from_timestamp(now / 1000))
            seal_key = secrets.token_bytes(_SEAL_KEY_BYTES)
            conn.execute(_INSERT_DATABASE, (name, schema, epoch, Jsonb(dict(given)), seal_key, now))
            conn.execute(MAKE_CLAIMS)
            writer.welcome(conn, schema)
            install(conn)
            conn.execute(_NOTIFY_NEW, (CATALOG_CHANNEL, name))
    except psycopg.errors.UniqueViolation as error:
        raise _taken(what, error, name=name, schema=schema) from error
    return load_database(conn, name)


def add_table(
    conn: Connection,
    database: str,
    table: str,
    policy: Mapping[str, Any] | None = None,
    *,
    audience: str | None = None,
    now_ms: int | None = None,
    limits: RegistrationLimits | None = None,
) -> Added:
    """Sync table ``table`` of the database's schema from now on. ``audience``: the expression that says who sees which
    rows; every device sees every row where it is left out.

    Writers of the table wait until the transaction ends; the rows are read once for their sum.

    Raises:
        RegistrationError: with every reason why the table can't be synced, see ``TableRefusal``.
    """
    what = f'table "{table}" can\'t be synced'
    given = policy or {}
    try:
        with conn.transaction():
            limit(conn, limits)
            found = find_database(conn, what, database)
            judged = lock_and_judge(conn, what, found, table, given, audience)
            triggers.forget_gathered(conn, found.schema_name, table, found.id)
            sums = scan_sums(conn, found.schema_name, *judged)
            claim(conn, found.id)
            enter(conn, what, found, judged, given, new_number(conn), sums, now_ms=now_ms)
            after = load_database(conn, database)
    except psycopg.DataError as error:
        if audience is None:
            raise
        raise not_for_a_row(what, error) from error
    except psycopg.errors.UniqueViolation as error:
        raise _taken(what, error, table=table) from error
    except psycopg.errors.UndefinedTable as error:
        raise refuse(what, TableRefusal.UNKNOWN_TABLE, f'there is no table "{table}" any more') from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise refuse(what, TableRefusal.BUSY, "another session holds a lock on it; try again") from error
    identity = judged.table.name
    return Added(after.tables[identity], sums.count, tuple(warnings(after, identity)))


def not_for_a_row(what: str, error: psycopg.DataError) -> RegistrationError:
    """The refusal of an audience expression that fails for a row."""
    text = f"the audience expression fails for a row that is there (SQLSTATE {error.sqlstate})"
    return refuse(what, TableRefusal.AUDIENCE_EXPRESSION, text)


def new_number(conn: Connection) -> int:
    """A new number for a registration; no other registration gets it."""
    row = conn.execute(_NUMBER).fetchone()
    assert row is not None
    return int(row[0])


def claim(conn: Connection, database_id: int) -> None:
    """Keep groups of the database from committing until the transaction ends."""
    wait_for_claim(conn, database_id)


def enter(
    conn: Connection,
    what: str,
    database: Database,
    judged: Judged,
    policy: Mapping[str, Any],
    number: int,
    sums: RowSums,
    *,
    now_ms: int | None,
) -> None:
    """Sync a table whose rows have the sums ``sums``, and capture direct writes to it. The caller holds its lock and
    the database's claim.

    Raises:
        RegistrationError: NAME_CLASH; MEMBERSHIP_QUERY where a membership query that reads the table fails.
    """
    table, audience = judged
    [(rules,)] = conn.execute(_LOCK_DATABASE, (database.id,)).fetchall()
    # Also the tables that were registered while the rows were read.
    others = [name for (name,) in conn.execute(_SYNCED, (database.id,)).fetchall()]
    if table.sql_name in others:
        raise refuse(what, TableRefusal.ALREADY_SYNCED, f'table "{table.sql_name}" is synced already')
    if clashes := list(name_clashes(table.sql_name, others)):
        raise RegistrationError(what, clashes)
    parameters = {
        "number": number,
        "database": database.id,
        "schema": database.schema_name,
        "name": table.name,
        "sql_name": table.sql_name,
        "columns": Jsonb(columns_to_json(tuple(replace(column, number=0) for column in table.columns))),
        "column_numbers": [column.number for column in table.columns],
        "former_columns": Jsonb(former_columns_to_json(table.former)),
        "key_columns": list(table.key_columns),
        "policy": Jsonb(dict(policy)),
        "now_ms": at_ms(now_ms),
        "count": sums.count,
        "sum": sum_to_bytes(sums.total),
        "audience": None if audience is None else audience.expression,
        "audience_columns": None if audience is None else list(audience.columns),
        "audience_is_list": audience is not None and audience.is_list,
    }
    conn.execute(_INSERT_TABLE, parameters)
    if sums.audiences:
        counts, totals = zip(*sums.audiences.values(), strict=True)
        of_audiences = {"counts": list(counts), "sums": list(map(sum_to_bytes, totals))}
        conn.execute(_INSERT_AUDIENCE_SUMS, {"number": number, "audiences": list(sums.audiences), **of_audiences})
    triggers.install(conn, database.schema_name, table.sql_name, database.id, number)
    writer.admit(conn, database.schema_name, table.sql_name)
    install(conn)
    if any(table.name in one.tables for one in rules_from_json(rules).memberships):
        # Its changes were not followed while it was not synced.
        try:
            evaluate_anew(conn, load_database(conn, database.name))
        except EvaluationError as error:
            text = f"{error}; give the database other rules first (`anabranch database audiences`)"
            raise refuse(what, TableRefusal.MEMBERSHIP_QUERY, text) from error
    tell(conn, database.id)


def remove_table(conn: Connection, database: str, table: str, *, limits: RegistrationLimits | None = None) -> None:
    """Stop the sync of ``table``, as SQL calls it. The table itself and its entries in the log stay; the history that
    conflicts are decided by goes, and so do its triggers and the captured changes, so that a later ``add_table`` starts
    anew. Where another session uses the table, this call waits for it, and all later sessions wait behind this call, at
    most ``limits.lock_timeout_ms``.

    Raises:
        RegistrationError: UNKNOWN_DATABASE, NOT_SYNCED or BUSY.
    """
    what = f'table "{table}" can\'t be removed'
    try:
        with conn.transaction():
            limit(conn, limits)
            found = find_database(conn, what, database)
            claim(conn, found.id)
            synced = found.by_sql_name.get(table)
            number = None if synced is None else leave(conn, found, synced.name)
            if number is None:
                # Never by its identity: whoever removes a table twice would remove one that had its name before.
                before = found.tables.get(table)
                now = ""
                if before is not None and before.sql_name != table:
                    now = f'; the table that was "{table}" is called "{before.sql_name}" now'
                raise refuse(what, TableRefusal.NOT_SYNCED, f'"{table}" is no synced table of "{database}"{now}')
            triggers.remove(conn, found.id, number)
            triggers.end_gathering(conn, found.schema_name, table, found.id)
            tell(conn, found.id)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise refuse(what, TableRefusal.BUSY, "the database is being written to; try again") from error


def leave(conn: Connection, database: Database, table: str) -> int | None:
    """Delete the registration of the table of an identity, and the history of its rows; return its number, None where
    it was not synced. ``former_tables`` keeps its columns. The caller holds the database's claim, and removes the
    triggers."""
    row = conn.execute(former_tables.KEEP, (database.id, table)).fetchone()
    if row is None:
        return None
    conn.execute(_DELETE_VERSIONS, row)
    return int(row[0])


def limit(conn: Connection, limits: RegistrationLimits | None) -> None:
    """Set the transaction's limits."""
    chosen = limits or RegistrationLimits()
    conn.execute(_LIMITS, {"lock": str(chosen.lock_timeout_ms), "statement": str(chosen.statement_timeout_ms)})


def limit_attempt(conn: Connection, limits: RegistrationLimits) -> None:
    """Limit what one attempt may take of a lock, and of time."""
    limit(conn, replace(limits, lock_timeout_ms=min(ATTEMPT_LOCK_MS, limits.lock_timeout_ms)))


def patiently(limits: RegistrationLimits, table: str, work: Callable[[], _R]) -> _R:
    """Do ``work`` as soon as its locks are free. Each attempt is short, because later sessions wait behind it.

    Raises:
        RegistrationError: BUSY, or an error of ``work``.
    """
    retrying = Retrying(
        retry=retry_if_exception_type((psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)),
        wait=wait_random(*_PAUSE_S),
        stop=stop_after_delay(limits.lock_timeout_ms / 1000),
        reraise=True,
    )
    try:
        return retrying(work)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        what = f'table "{table}" can\'t be registered'
        raise refuse(what, TableRefusal.BUSY, "another session holds a lock on it; try again") from error


def tell(conn: Connection, database_id: int) -> None:
    """Increase the schema version, and notify listeners of it when the transaction commits."""
    conn.execute(_CHANGED, (database_id, CATALOG_CHANNEL))


def _taken(what: str, error: psycopg.errors.UniqueViolation, **names: str) -> Exception:
    known = _CONSTRAINTS.get(violated(error))
    return refuse(what, known[0], known[1].format(**names)) if known else error


def at_ms(now_ms: int | None) -> int:
    """The given time, else this machine's, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000 if now_ms is None else now_ms
