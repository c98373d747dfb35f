"""The triggers that write every direct change of a synced table into ``anabranch.captured``.

The writer of the row decides which of them captures it:

* *any session but the resolver's* (statement triggers): a statement's rows come as transition tables, all at once; a
  COPY, a MERGE or an upsert is one or more such statements, and so is a change that a cascade or a function makes
  inside another one.
* *the resolver*: its own statements are in the log already; the changes that they cause are not. Row triggers recognise
  rows changed by a cascade or another trigger by the depth of triggers at the moment of the change. A trigger
  *function* could not: there a cascaded row and a direct one look alike, so the trigger's condition decides. A change
  that a function makes outside of all triggers (in a default, a check, a generated or index expression, a type, a
  trigger's condition) is a statement within a statement, of depth 0: the statement triggers distinguish it from the
  resolver's own statements by the calls on the stack, since there are none around one of the latter. The statement
  triggers have no condition: of two for one table in one statement Postgres keeps the last, which can be that of a
  cascade onto the same table. A row that comes by both ways is captured twice, with the same images.
* TRUNCATE, by any session: the rows are captured as deletes before they go.

The resolver marks its session once a transaction (``MARK_RESOLVER``). The mark is the session's process number, so that
no setting that a role or a server happens to have hides a write, and it counts only for a session whose role may delete
from ``anabranch.captured`` and could thus hide writes anyway.

All are ENABLE ALWAYS: ``session_replication_role = replica`` keeps no write from the log. The row trigger for deletes
names a transition table that it does not use; with it Postgres refuses to make the table a partition or a child of
another one, through which rows could be written past the triggers.

While a table with foreign writers is registered (``gather``), its triggers capture for the database of the negative
number, which no resolver knows: the registration counts the captured changes, and they enter no log.

Every function here runs inside the caller's transaction. Installing needs a lock that keeps writers out (SHARE ROW
EXCLUSIVE), removing one that keeps all other sessions out, both to the transaction's end.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple

import psycopg

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.steps import Statement, Steps, run

Connection = psycopg.Connection[Any]

MARK_RESOLVER: LiteralString = """
select pg_catalog.set_config('anabranch.resolver', pg_catalog.pg_backend_pid()::text, true)
"""
"""Makes the session the resolver's until the transaction ends."""

DELETE_CAPTURED: LiteralString = "delete from anabranch.captured where database_id = %s and table_id = %s"

_RESOLVER = """
case when pg_catalog.current_setting('anabranch.resolver', true) = pg_catalog.pg_backend_pid()::text
     then pg_catalog.has_table_privilege(session_user, 'anabranch.captured'::pg_catalog.regclass, 'DELETE')
     else false end
"""
_ROW = f"for each row when (pg_catalog.pg_trigger_depth() > 0 and {_RESOLVER})"


@dataclass(frozen=True, slots=True)
class _Trigger:
    """``definition`` stands between the names of trigger and table and the function, ``%s`` for the table."""

    name: str
    definition: str
    function: str

    def create(self, relation: str, database_id: int, table_id: int) -> bytes:
        when = self.definition % relation
        call = f"anabranch.{self.function}('{database_id}', '{table_id}')"
        return f"create or replace trigger {quote(self.name)} {when} execute function {call}".encode()


# Of the triggers for one event the last by name is the last to run: after an earlier one, rows could still come.
TRUNCATE_TRIGGER = "~anabranch_truncate"

_TRIGGERS = (
    _Trigger("anabranch_insert", "after insert on %s referencing new table as new_rows for each statement", "capture"),
    _Trigger(
        "anabranch_update",
        "after update on %s referencing old table as old_rows new table as new_rows for each statement",
        "capture",
    ),
    _Trigger("anabranch_delete", "after delete on %s referencing old table as old_rows for each statement", "capture"),
    _Trigger("anabranch_row_write", f"after insert or update on %s {_ROW}", "capture_row"),
    _Trigger("anabranch_row_delete", f"after delete on %s referencing old table as old_rows {_ROW}", "capture_row"),
    _Trigger(TRUNCATE_TRIGGER, "before truncate on %s for each statement", "capture_truncate"),
)

# By function and arguments, wherever the table is now and whatever it is called.
_INSTALLED: LiteralString = """
select n.nspname, c.relname, t.tgname, t.tgenabled::text, t.tgargs, t.tgqual is not null and f.proname = 'capture'
from pg_catalog.pg_trigger t
join pg_catalog.pg_proc f on f.oid = t.tgfoid join pg_catalog.pg_namespace o on o.oid = f.pronamespace
join pg_catalog.pg_class c on c.oid = t.tgrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where o.nspname = 'anabranch' and f.proname = any(array['capture', 'capture_row', 'capture_truncate'])
  and t.tgargs = any(%(arguments)s::bytea[])
order by c.oid, t.tgname
"""


def install(conn: Connection, schema_name: str, table: str, database_id: int, table_id: int) -> None:
    """Capture all writes to the table from now on, by triggers that replace any earlier ones of ours. A caller that has
    to begin with the rows of this moment takes the table's lock first (``lock``) and reads them in a later statement of
    the same transaction.

    Raises:
        psycopg.Error: among others InsufficientPrivilege where the role does not own the table.
    """
    relation = f"{quote(schema_name)}.{quote(table)}"
    for trigger in _TRIGGERS:
        conn.execute(trigger.create(relation, database_id, table_id))
    _switch(conn, relation, "enable always")


def lock(conn: Connection, schema_name: str, table: str) -> None:
    """Keep writers of the table out until the transaction ends; readers go on.

    Raises:
        psycopg.errors.LockNotAvailable: a transaction wrote to it for longer than the session's ``lock_timeout``.
        psycopg.errors.UndefinedTable: it is gone.
    """
    conn.execute(f"lock table {quote(schema_name)}.{quote(table)} in share row exclusive mode".encode())


def remove(conn: Connection, database_id: int, table_id: int) -> None:
    """Stop capturing the table, and delete its captured changes, also where it was renamed, moved to another schema or
    dropped."""
    drop_triggers(conn, database_id, table_id)
    conn.execute(DELETE_CAPTURED, (database_id, table_id))


def drop_triggers(conn: Connection, database_id: int, table_id: int) -> None:
    """Stop capturing the table, whatever its name and schema are now."""
    for schema_name, table, name in _found(conn, database_id, table_id):
        conn.execute(f"drop trigger {quote(name)} on {quote(schema_name)}.{quote(table)}".encode())


_GATHERING: LiteralString = """
select distinct pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 2)::int
from pg_catalog.pg_trigger t
join pg_catalog.pg_proc f on f.oid = t.tgfoid join pg_catalog.pg_namespace o on o.oid = f.pronamespace
join pg_catalog.pg_class c on c.oid = t.tgrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where o.nspname = 'anabranch' and n.nspname = %(schema)s and c.relname = %(table)s
  and pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 1) = (-%(database)s::int)::text
"""


def gathering(conn: Connection, schema_name: str, table: str, database_id: int) -> list[int]:
    """The numbers for which a table's triggers gather now: that of a registration under way, or of one that was cut
    off."""
    statement = Statement(_GATHERING, {"schema": schema_name, "table": table, "database": database_id})

    def steps() -> Steps[list[int]]:
        return [number for (number,) in (yield statement)]

    return run(conn, steps())


def forget_gathered(conn: Connection, schema_name: str, table: str, database_id: int) -> None:
    """Delete the changes that a table's triggers have gathered; the triggers are about to be created again."""
    for number in gathering(conn, schema_name, table, database_id):
        conn.execute(DELETE_CAPTURED, (-database_id, number))


def end_gathering(conn: Connection, schema_name: str, table: str, database_id: int) -> None:
    """Remove triggers that gather, and the changes that they have gathered."""
    for number in gathering(conn, schema_name, table, database_id):
        remove(conn, -database_id, number)


def switch(conn: Connection, schema_name: str, table: str, *, on: bool) -> None:
    """Enable or disable the table's triggers. They must be installed."""
    _switch(conn, f"{quote(schema_name)}.{quote(table)}", "enable always" if on else "disable")


def _switch(conn: Connection, relation: str, how: str) -> None:
    actions = ", ".join(f"{how} trigger {quote(trigger.name)}" for trigger in _TRIGGERS)
    conn.execute(f"alter table {relation} {actions}".encode())


def _found(conn: Connection, database_id: int, table_id: int) -> list[tuple[str, str, str]]:
    """Schema, table and name of each trigger of that registration."""
    statement = Statement(_INSTALLED, {"arguments": [_arguments(database_id, table_id)]})

    def steps() -> Steps[list[tuple[str, str, str]]]:
        return [(schema_name, table, name) for schema_name, table, name, *_ in (yield statement)]

    return run(conn, steps())


def _arguments(database_id: int, table_id: int) -> bytes:
    """The triggers' arguments as pg_trigger holds them."""
    return b"%d\0%d\0" % (database_id, table_id)


class TriggerFault(NamedTuple):
    """The fault of a table's triggers, in words, and whether there are none at all."""

    text: str
    all_gone: bool


def trigger_faults(
    schema_name: str, database_id: int, tables: Mapping[str, int], resting: Container[str] = ()
) -> Steps[dict[str, TriggerFault]]:
    """The faults that keep the writes of tables (name to number) from being captured; a table whose triggers are as
    installed is left out. ``resting`` are the tables that are not captured on purpose."""
    arguments = {table: _arguments(database_id, number) for table, number in tables.items()}
    found: dict[tuple[str, str, bytes], dict[str, str]] = {}
    conditional: dict[tuple[str, str, bytes], str] = {}
    rows = yield Statement(_INSTALLED, {"arguments": list(arguments.values())})
    for schema, table, name, enabled, of, has_condition in rows:
        found.setdefault((schema, table, bytes(of)), {})[name] = enabled
        if has_condition:
            conditional[schema, table, bytes(of)] = name
    faults = {}
    for table, of in arguments.items():
        triggers = found.get((schema_name, table, of), {})
        missing = [trigger.name for trigger in _TRIGGERS if trigger.name not in triggers]
        disabled = [name for name, enabled in triggers.items() if enabled != "A"]
        if missing:
            text = f"direct writes are not captured: trigger {missing[0]} is gone"
            # The triggers of a table that is being registered anew capture for the registration.
            faults[table] = TriggerFault(text, all_gone=not triggers and table not in resting)
        elif disabled and table not in resting:
            text = f"direct writes are not captured: trigger {disabled[0]} is disabled"
            faults[table] = TriggerFault(text, all_gone=False)
        elif (schema_name, table, of) in conditional:
            name = conditional[schema_name, table, of]
            text = f"writes of functions in its defaults and checks are not captured: trigger {name} is an old one"
            faults[table] = TriggerFault(text, all_gone=False)
    return faults
