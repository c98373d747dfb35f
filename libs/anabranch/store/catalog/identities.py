"""The identities of columns and tables: how a new one is chosen, and how a table goes on with those that it has.

A column's identity has one kind for ever, since files and old batches know its values by it. So a column that comes
under the name of an earlier one, or with another kind, gets an identity of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from anabranch.values.table import Column, FormerColumn, Table

MOST_BYTES = 63
"""As long as a name in Postgres, in UTF-8."""


def new_identity(sql_name: str, taken: Iterable[str]) -> str:
    """The identity of a column or table that SQL calls ``sql_name``: this name, unless it is ``taken``, in whatever
    case; then with ``~2`` behind it, or the next number that is free."""
    folded = {name.casefold() for name in taken}
    identity, number = sql_name, 1
    while identity.casefold() in folded:
        number += 1
        end = f"~{number}"
        # A character that does not fit as a whole is left out.
        kept = sql_name.encode()[: MOST_BYTES - len(end)].decode(errors="ignore")
        identity = kept + end
    return identity


def column_identities(table: Table) -> set[str]:
    """The identities of all columns that a table has and had."""
    return {*table.by_name, *(one.column.name for one in table.former)}


def matched(before: Table, now: Table, *, by_number: bool) -> Mapping[str, Column]:
    """The columns of ``now``, a table as SQL has it, that are those of ``before``, by their identities there.
    ``by_number``: the numbers of both are of one relation; else columns are told by their names in SQL."""
    if by_number and all(column.number for column in before.columns):
        found = {column.number: column for column in now.columns}
        return {one.name: found[one.number] for one in before.columns if one.number in found}
    return {one.name: now.by_sql_name[one.sql_name] for one in before.columns if one.sql_name in now.by_sql_name}


def carried_on(before: Table, now: Table, *, by_number: bool) -> Table:
    """``now``, a table as SQL has it, with the identities of ``before``, the same table as it was registered. A column
    that has another kind gets a new identity."""
    taken, identities = column_identities(before), {}
    found = matched(before, now, by_number=by_number)
    for identity, column in found.items():
        was = before.by_name[identity]
        if (was.kind, was.element_kind) == (column.kind, column.element_kind):
            identities[column.sql_name] = identity
    for column in now.columns:
        if column.sql_name not in identities:
            identities[column.sql_name] = new_identity(column.sql_name, taken)
            taken.add(identities[column.sql_name])
    columns = [called(column, identities[column.sql_name]) for column in now.columns]
    kept = set(identities.values())
    gone = [
        FormerColumn(one, 0, identities[found[one.name].sql_name] if one.name in found else "")
        for one in before.columns
        if one.name not in kept
    ]
    return replace(
        now,
        name=before.name,
        renamed=now.sql_name if now.sql_name != before.name else "",
        columns=tuple(columns),
        key_columns=tuple(identities[name] for name in now.in_sql(now.key_columns)),
        former=(*before.former, *gone),
    )


def called(column: Column, identity: str) -> Column:
    """The column with another identity, and its name in SQL as it is."""
    return replace(column, name=identity, renamed=column.sql_name if column.sql_name != identity else "")
