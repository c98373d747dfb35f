"""Registrations that were cut off: the triggers that they left, and the changes that these have gathered.

A registration of tables with foreign writers (``gather``) holds a lock for each as long as its session lives.
So where a table's triggers gather and no session holds its lock, they gather in vain: its writers pay for them, and no
registration reads the gathered changes. Two steps clear that up:

1. *the triggers go* (``end``), or, where the table was synced before, they are installed for that registration again,
   and disabled. It is done under the table's advisory lock, so that no registration of it begins meanwhile.
2. *the gathered changes go* (``forget``), in pieces, also where the table and its triggers are gone. The numbers that
   no registration counts for any more are known while no registration runs at all (``dead_upto``): a registration takes
   the lock before it takes its number.
"""

from __future__ import annotations

from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch.store.capture import triggers
from anabranch.store.session.own_locks import REGISTRATION_RUNS, begin_registration, registered_now

Connection = psycopg.Connection[Any]

CUT_OFF: LiteralString = f"""
select distinct d.id, d.name, n.nspname, c.relname,
       pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 2)::int
from pg_catalog.pg_trigger t
join pg_catalog.pg_proc f on f.oid = t.tgfoid join pg_catalog.pg_namespace o on o.oid = f.pronamespace
join pg_catalog.pg_class c on c.oid = t.tgrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join anabranch.databases d on pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 1) = (-d.id)::text
where o.nspname = 'anabranch' and (%(name)s::text is null or d.name = %(name)s)
  and not {registered_now("d.name || ' ' || c.relname")}
order by d.name, c.relname
"""
"""Tables whose triggers gather, though no session registers them."""

LIMIT: LiteralString = "select set_config('lock_timeout', %s, true)"
SYNCED: LiteralString = """
select t.id from anabranch.synced_tables t join anabranch.databases d on d.id = t.database_id
where d.id = %s and d.schema_name = %s and coalesce(t.sql_name, t.name) = %s
"""
NEWEST: LiteralString = """
select coalesce(pg_sequence_last_value(pg_get_serial_sequence('anabranch.synced_tables', 'id')::regclass), 0)
"""
FORGET: LiteralString = """
delete from anabranch.captured c using (
    select id from anabranch.captured
    where database_id = -%(database)s::int and table_id <= %(upto)s order by id limit %(most)s
) first_ones
where c.database_id = -%(database)s::int and c.id = first_ones.id
"""


class CutOff(NamedTuple):
    """A table whose triggers gather in vain, with the number of the registration that was cut off."""

    database_id: int
    database: str
    schema_name: str
    table: str
    number: int


def cut_off(conn: Connection, database: str | None = None) -> list[CutOff]:
    """The registrations that were cut off in all databases, or in one. Raises psycopg.Error."""
    rows = conn.execute(CUT_OFF, {"name": database}).fetchall()
    return [CutOff(*row) for row in rows]


def in_words(database: str, table: str) -> str:
    """A message about one registration that was cut off, with its remedy."""
    return (
        f'the registration of table "{table}" of "{database}" was cut off, and its triggers go on gathering: '
        "the retention-janitor's next sweep removes them, and so does registering it again"
    )


def end(conn: Connection, one: CutOff, lock_timeout_ms: int) -> bool:
    """Stop a table's triggers from gathering; False where it is being registered, or cleared up already.

    Raises:
        psycopg.Error: among others the errors for which ``may_wait`` is true.
    """
    database_id, database, schema_name, table, number = one
    with conn.transaction():
        conn.execute(LIMIT, (str(lock_timeout_ms),))
        ours = begin_registration(conn, f"{database} {table}", for_transaction=True)
        if ours is None or number not in triggers.gathering(conn, schema_name, table, database_id):
            return False
        was = conn.execute(SYNCED, (database_id, schema_name, table)).fetchone()
        if was is None:
            triggers.drop_triggers(conn, -database_id, number)
        else:
            triggers.lock(conn, schema_name, table)
            triggers.install(conn, schema_name, table, database_id, was[0])
            triggers.switch(conn, schema_name, table, on=False)
    return True


def may_wait(error: Exception) -> bool:
    """Whether ``end`` may succeed later: a session holds the table, has just changed it, or its owner has to do it."""
    return isinstance(
        error,
        psycopg.errors.LockNotAvailable
        | psycopg.errors.QueryCanceled
        | psycopg.errors.DeadlockDetected
        | psycopg.errors.UndefinedTable
        | psycopg.errors.UndefinedObject
        | psycopg.errors.InsufficientPrivilege,
    )


def dead_upto(conn: Connection) -> int:
    """The number up to which no registration gathers any more; 0 while one is under way. Call it outside of a
    transaction: the look for running registrations must come after the number was read. Raises psycopg.Error."""
    [(newest,)] = conn.execute(NEWEST).fetchall()
    [(runs,)] = conn.execute(f"select {REGISTRATION_RUNS}".encode()).fetchall()
    return 0 if runs else int(newest)


def forget(conn: Connection, database_id: int, upto: int, most: int) -> int:
    """Delete at most ``most`` changes that were gathered for numbers up to ``upto``; return how many. Raises
    psycopg.Error."""
    return conn.execute(FORGET, {"database": database_id, "upto": upto, "most": most}).rowcount
