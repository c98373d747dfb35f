"""Change the policy of an existing database or table.

A change is one transaction under the database's claim, so that every group is decided by one policy from beginning to
end; it moves the schema version, so that services and devices learn of it as they do of a table. Earlier decisions
stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy import Text, bindparam, cast, func, select, update

from anabranch.merge import function_of
from anabranch.store.catalog.databases import Database, UnknownDatabaseError, load_database
from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.policy import PolicyError, changed, database_policy, table_policy
from anabranch.store.catalog.refusals import Refused, TableRefusal, policy_refusals
from anabranch.store.schema import DATABASES, SYNCED_TABLES
from anabranch.store.session.channels import CATALOG_CHANNEL
from anabranch.store.session.core import execute
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.values import Table

_LOCK_TIMEOUT = "select set_config('lock_timeout', %s, true)"
LOCK_TIMEOUT_MS = 10_000
"""How long a change waits for the groups of the database."""
# Policies are read under the claim: of two changes at once neither must be lost.
_DATABASE_POLICY = (
    select(DATABASES.c.id, DATABASES.c.policy)
    .where(DATABASES.c.name == bindparam("database"))
    .with_for_update(key_share=True)
)
"""A database's number and policy, locked."""
_TABLE_POLICY = (
    select(SYNCED_TABLES.c.policy)
    .where(SYNCED_TABLES.c.database_id == bindparam("number"), SYNCED_TABLES.c.name == bindparam("table"))
    .with_for_update(key_share=True)
)
"""The policy of a synced table, locked."""
_SET_DATABASE = update(DATABASES).where(DATABASES.c.id == bindparam("number")).values(policy=bindparam("after"))
_SET_TABLE = (
    update(SYNCED_TABLES)
    .where(SYNCED_TABLES.c.database_id == bindparam("number"), SYNCED_TABLES.c.name == bindparam("table"))
    .values(policy=bindparam("after"))
)
# The version that services and devices compare.
_MOVED = (
    update(DATABASES)
    .where(DATABASES.c.id == bindparam("number"))
    .values(schema_version=DATABASES.c.schema_version + 1)
    .returning(DATABASES.c.id)
    .cte("moved")
)
_PUBLISH = select(func.pg_notify(bindparam("channel", type_=Text), cast(_MOVED.c.id, Text)))
"""Moves the schema version, and says so."""


def set_database_policy(conn: psycopg.Connection[Any], name: str, changes: Mapping[str, Any]) -> Database:
    """Apply ``changes`` to a database's policy; a value of None removes a key, so that its default holds.

    Raises:
        RegistrationError: UNKNOWN_DATABASE, INVALID_POLICY or BUSY.
    """
    what = f'the policy of database "{name}" can\'t be changed'
    try:
        with conn.transaction():
            number, policy = _claimed(conn, what, name)
            after = changed(policy, changes)
            database_policy(after)
            execute(conn, _SET_DATABASE, after=Jsonb(after), number=number)
            return _published(conn, number, name)
    except PolicyError as error:
        raise _refuse(what, TableRefusal.INVALID_POLICY, str(error)) from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise _refuse(what, TableRefusal.BUSY, "the database is being written to; try again") from error


def set_table_policy(
    conn: psycopg.Connection[Any],
    database: str,
    table: str,
    changes: Mapping[str, Any],
    functions: Collection[str],
) -> Database:
    """Apply ``changes`` to the policy of a table, as SQL calls it or by its identity, in ``columns`` column by column,
    which are named as the table is; a value of None removes a key. ``functions`` are the merge functions that are
    installed: a name that is none of them is refused.

    Raises:
        RegistrationError: UNKNOWN_DATABASE, NOT_SYNCED, INVALID_POLICY or BUSY.
    """
    what = f'the policy of table "{table}" can\'t be changed'
    try:
        with conn.transaction():
            number, _ = _claimed(conn, what, database)
            found = load_database(conn, database)
            synced = found.find(table)
            name = table if synced is None else synced.name
            row = execute(conn, _TABLE_POLICY, number=number, table=name).fetchone()
            if synced is None or row is None:
                raise _refuse(what, TableRefusal.NOT_SYNCED, f'"{table}" is no synced table of "{database}"')
            after = changed(row[0], _by_identity(synced, changes))
            policy = table_policy(after)
            refusals = list(policy_refusals(synced.columns, synced.key_columns, policy))
            refusals += unknown_functions(policy.columns, functions)
            if refusals:
                raise RegistrationError(what, refusals)
            execute(conn, _SET_TABLE, after=Jsonb(after), number=number, table=name)
            return _published(conn, number, database)
    except PolicyError as error:
        raise _refuse(what, TableRefusal.INVALID_POLICY, str(error)) from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise _refuse(what, TableRefusal.BUSY, "the database is being written to; try again") from error


def _by_identity(table: Table, changes: Mapping[str, Any]) -> dict[str, Any]:
    columns = changes.get("columns")
    if not isinstance(columns, Mapping):
        return dict(changes)
    known = {name: table.find(name) for name in columns}
    identities = {name: name if column is None else column.name for name, column in known.items()}
    return {**changes, "columns": {identities[name]: policy for name, policy in columns.items()}}


def unknown_functions(columns: Mapping[str, str], functions: Collection[str]) -> list[Refused]:
    """Policies of columns that name a function which is not installed."""
    known = ", ".join(sorted(functions)) or "none"
    return [
        Refused(
            TableRefusal.INVALID_POLICY,
            f'the policy of column "{column}" names merge function "{name}", which is not installed (there: {known})',
        )
        for column, policy in columns.items()
        if (name := function_of(policy)) and name not in functions
    ]


def _claimed(conn: psycopg.Connection[Any], what: str, name: str) -> tuple[int, dict[str, Any]]:
    conn.execute(_LOCK_TIMEOUT, (str(LOCK_TIMEOUT_MS),))
    try:
        number = load_database(conn, name).id
    except UnknownDatabaseError as error:
        raise _refuse(what, TableRefusal.UNKNOWN_DATABASE, str(error)) from error
    wait_for_claim(conn, number)
    row = execute(conn, _DATABASE_POLICY, database=name).fetchone()
    if row is None:
        raise _refuse(what, TableRefusal.UNKNOWN_DATABASE, f'there is no database "{name}" any more')
    return row[0], row[1]


def _published(conn: psycopg.Connection[Any], number: int, name: str) -> Database:
    execute(conn, _PUBLISH, number=number, channel=CATALOG_CHANNEL)
    return load_database(conn, name)


def _refuse(what: str, reason: TableRefusal, text: str) -> RegistrationError:
    return RegistrationError(what, [Refused(reason, text)])
