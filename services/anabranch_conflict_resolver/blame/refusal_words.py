"""The message of the verdict on a batch that Postgres refused: for people, without data that its sender may not see.

A message is made of names in the catalog (constraint, column, table, type), of the meaning of the SQLSTATE, and of the
sender's own value. The text, detail and hint of an error are never read, but for the name of what a role lacks rights
to (``Fault.denied``): a foreign key's or an exclusion's detail shows other rows, and an error that a function of the
application raises may hold anything. Such a function can inform people by the names that it gives to its error:
``raise … using constraint = 'seat_taken'``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import MappingProxyType

from anabranch.merge import MutationType, Write
from anabranch.store.group.denied import missing
from anabranch.store.group.value_probe import refused_column
from anabranch.store.session.errors import BatchReason, Fault
from anabranch.values import Cell, Column, Table
from anabranch_conflict_resolver.blame.taken_words import taken_words
from anabranch_conflict_resolver.group.context import Context

_NAME_CHARACTERS = 63
"""As long as a name in Postgres; the application's functions may put longer ones into their errors."""
_VALUE_CHARACTERS = 40
_ROLES = 3
"""The most roles that a message names as those of which one lacks rights."""
_OWN_POLICIES = frozenset({"lww", "reject"})
"""Policies with which the value that is written is the sender's, and not made from others' as well."""

_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "22001": "is too long for type {type}",
        "22003": "is out of range for type {type}",
        "22007": "is no date or time of type {type}",
        "22008": "is out of range for type {type}",
        "22P02": "is no value of type {type}",
        "22P05": "has a character that the server's encoding lacks",
        "22021": "has bytes that are no text in the server's encoding",
    }
)
"""The meaning of errors about a single value, by SQLSTATE."""
_NO_NULL, _FOREIGN_KEY, _UNIQUE, _CHECK, _EXCLUSION = "23502", "23503", "23505", "23514", "23P01"


def column_of(context: Context, write: Write, fault: Fault) -> str:
    """The identity of the column that a refusal is about: the one that Postgres names, else the one whose value alone
    is refused, or the only one of the type that is named. "" where it is not known. A name that is no synced column's
    stays as it is."""
    synced = context.synced.tables[write.table]
    if fault.column:
        named = _table_of(context, write, fault).by_sql_name.get(fault.column)
        return fault.column[:_NAME_CHARACTERS] if named is None else named.name
    if fault.data_type:
        of_type = [c.name for c in synced.table.columns if _last_name(c.postgres_type) == fault.data_type]
        return of_type[0] if len(of_type) == 1 else ""
    if fault.sqlstate in _VALUES:
        schema_name = context.synced.database.schema_name
        return refused_column(context.conn, schema_name, synced.table, write.values, fault.sqlstate) or ""
    return ""


def _table_of(context: Context, write: Write, fault: Fault) -> Table:
    """The table that Postgres names where that is synced, else the one that is written to."""
    named = context.synced.database.by_sql_name.get(fault.table)
    return context.synced.tables[write.table].table if named is None else named


def message(context: Context, write: Write, fault: Fault, column: str) -> str:
    """Return the message, with names as SQL knows them. ``column``: as ``column_of`` gives it."""
    written = context.synced.tables[write.table].table
    name, table = fault.constraint[:_NAME_CHARACTERS], (fault.table or written.sql_name)[:_NAME_CHARACTERS]
    about = (_table_of(context, write, fault) if fault.column else written).by_name.get(column)
    called = column if about is None else about.sql_name
    code = f"(SQLSTATE {fault.sqlstate})"
    if fault.reason is BatchReason.FORBIDDEN:
        return f'the database does not allow this change of table "{table}" {code}{_grant(context, fault)}'
    if fault.sqlstate in _VALUES:
        if not column:
            what = _VALUES[fault.sqlstate].replace("type {type}", "its type")
            return f'a value in this change of table "{table}" {what} {code}'
        return f"{_value(written, write, column, fault.sqlstate)} {code}"
    if fault.data_type and (name or fault.sqlstate == _NO_NULL):
        rule = f'constraint "{name}" of type "{fault.data_type}"' if name else f'type "{fault.data_type}", not null,'
        at = f' in column "{called}" of table "{written.sql_name}"' if column else f' in table "{written.sql_name}"'
        return f"{rule} refuses the value{at} {code}"
    if fault.sqlstate == _NO_NULL and column:
        return f'column "{called}" of table "{table}" takes no NULL {code}'
    if name:
        return f"{_constraint(context, write, fault.sqlstate, name, table)} {code}"
    if fault.sqlstate[:2] == "P0":
        return f'a function or trigger of the application refuses this change of table "{table}" {code}'
    return f'the database refuses this change of table "{table}" {code}'


def _grant(context: Context, fault: Fault) -> str:
    """Words about the grant that code of a table's owner lacks."""
    kind, name = fault.denied
    if not name:
        return ""
    found = context.missing.get(fault.denied)
    if found is None:
        found = context.missing[fault.denied] = missing(context.conn, kind, name)
    if not 0 < len(found.roles) <= _ROLES:
        return f': a role lacks rights to {kind} "{name}"'
    role, *others = found.roles
    if others:
        return f': one of the roles {", ".join(map(_quoted, found.roles))} lacks rights to {kind} "{name}"'
    of_groups = role == context.conn.info.user
    runs = "groups are committed" if of_groups else "code of the application runs"
    lacks = f': role "{role}", as which {runs}, lacks rights to {kind} "{name}"'
    if not found.grant:
        return lacks
    gives = f"{lacks}; `{found.grant}` gives them"
    command = shlex.join(("anabranch", "database", "writer", role, "--grant", found.schema_name))
    return f"{gives}, `{command}` those to the whole schema" if of_groups else gives


def of_key(table: Table, column: Column, cell: Cell, fault: Fault) -> str:
    """The message about a key's value that is no value of its column's type."""
    what = _VALUES.get(fault.sqlstate, "is no value that type {type} takes").format(type=column.postgres_type)
    return f'column "{column.sql_name}" of table "{table.sql_name}": {_short(cell)} {what} (SQLSTATE {fault.sqlstate})'


def _constraint(context: Context, write: Write, sqlstate: str, name: str, table: str) -> str:
    if sqlstate == _FOREIGN_KEY:
        if write.type is MutationType.DELETE or context.synced.tables[write.table].table.sql_name != table:
            return f'rows of table "{table}" still refer to this row (foreign key "{name}")'
        return f'the row that foreign key "{name}" of table "{table}" refers to is not there'
    if sqlstate == _UNIQUE:
        return taken_words(context.synced.database, table, name)
    if sqlstate == _CHECK:
        return f'the row does not meet check "{name}" of table "{table}"'
    if sqlstate == _EXCLUSION:
        return f'another row of table "{table}" is in the way of this one (constraint "{name}")'
    return f'constraint "{name}" of table "{table}" says no'


def _value(table: Table, write: Write, column: str, sqlstate: str) -> str:
    known = table.by_name.get(column)
    kind = known.postgres_type if known is not None else "its column"
    what = _VALUES[sqlstate].format(type=kind)
    own = known is not None and known.policy in _OWN_POLICIES
    shown = f": {_short(write.values.get(column))}" if own else ": the value"
    called = known.sql_name if known is not None else column
    return f'column "{called}" of table "{table.sql_name}"{shown} {what}'


def _short(cell: Cell) -> str:
    text = cell if isinstance(cell, str) else str(cell)[: _VALUE_CHARACTERS + 1]
    return f'"{text}"' if len(text) <= _VALUE_CHARACTERS else f'"{text[:_VALUE_CHARACTERS]}…"'


def _quoted(name: str) -> str:
    return f'"{name}"'


def _last_name(postgres_type: str) -> str:
    """A type's name without its schema, as Postgres puts it into an error."""
    if postgres_type.endswith('"'):
        return postgres_type[:-1].rpartition('"' if '."' not in postgres_type else '."')[2].replace('""', '"')
    return postgres_type.rpartition(".")[2]
