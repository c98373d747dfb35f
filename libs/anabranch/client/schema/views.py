"""The view that an app has of a table: the server's names of today, or those of the schema version that it is tied to.

A *naming* is what such an app knows of a table: its name, and columns with their names. The *view* of a table by a
naming has the table's columns as they are today: those that the naming knows under its names, the others *hidden*,
under names of ours; and those that only the naming knows, *gone*: they stay in the file, NULL in every row.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.v1 import snapshot_pb2

HIDDEN = "_DB_new_"
"""The prefix of hidden columns' names in the file; their identities follow."""


class Naming:
    """A table as an app knows it that is tied to a schema version: a view of it, in the server's form or ours."""

    def __init__(self, view: snapshot_pb2.Table) -> None:
        self.sql_name = view.sql_name or view.name
        self.columns = {c.name: c for c in view.columns if not c.hidden}


def view_of(today: snapshot_pb2.Table, naming: Naming | None) -> snapshot_pb2.Table:
    """A table as the app sees it; without a naming as it is today."""
    view = snapshot_pb2.Table()
    view.CopyFrom(today)
    if naming is None:
        return view
    del view.columns[:]
    view.columns.extend(_seen(naming, column) for column in today.columns)
    there = {column.name for column in today.columns}
    view.columns.extend(_gone(column) for name, column in naming.columns.items() if name not in there)
    view.sql_name = _apart(today.name, naming.sql_name)
    return view


def _seen(naming: Naming, column: snapshot_pb2.Column) -> snapshot_pb2.Column:
    known = naming.columns.get(column.name)
    seen = snapshot_pb2.Column()
    seen.CopyFrom(column)
    seen.gone, seen.hidden = False, known is None
    sql_name = HIDDEN + column.name if known is None else known.sql_name or known.name
    seen.sql_name = _apart(column.name, sql_name)
    return seen


def _gone(column: snapshot_pb2.Column) -> snapshot_pb2.Column:
    gone = snapshot_pb2.Column()
    gone.CopyFrom(column)
    gone.gone, gone.hidden = True, False
    gone.refuses_null = gone.not_null = False
    gone.ClearField("initial")
    return gone


def _apart(name: str, sql_name: str) -> str:
    """A name in SQL as messages have it: empty where it is the identity."""
    return "" if sql_name == name else sql_name


def shape(view: snapshot_pb2.Table) -> object:
    """The part of a view that is seen in the file: names, and which columns there are."""
    columns = [(c.name, c.sql_name, c.kind, c.element_kind, c.hidden, c.gone) for c in view.columns]
    return view.sql_name, sorted(columns), list(view.key_columns)


def without_estimate(table: snapshot_pb2.Table) -> snapshot_pb2.Table:
    """A description without the number of rows, which changes nothing here."""
    other = snapshot_pb2.Table()
    other.CopyFrom(table)
    other.estimated_rows = 0
    return other


def columns_of(table: snapshot_pb2.Table) -> dict[str, tuple[int, int]]:
    """The identities of the columns that rows have, with what decides how their values are carried."""
    return {c.name: (c.kind, c.element_kind) for c in table.columns if not c.gone}


def is_told_apart(held: snapshot_pb2.Table, now: snapshot_pb2.Table) -> bool:
    """Whether a table can't become another by columns that come and go: its key, the kind of a column, or whom its
    rows are for is another."""
    if list(held.key_columns) != list(now.key_columns) or held.restricted != now.restricted:
        return True
    before, after = columns_of(held), columns_of(now)
    return any(after[name] != carried for name, carried in before.items() if name in after)


def same_columns(held: snapshot_pb2.Table, now: snapshot_pb2.Table) -> bool:
    """Whether two descriptions hold rows alike: names in SQL and policies apart."""
    return not is_told_apart(held, now) and columns_of(held).keys() == columns_of(now).keys()


def refreshed(held: snapshot_pb2.Table, now: snapshot_pb2.Table) -> snapshot_pb2.Table:
    """``held`` with what ``now`` says of policies and of values that are surely refused, for columns that both have."""
    known = {column.name: column for column in now.columns}
    table = snapshot_pb2.Table()
    table.CopyFrom(held)
    table.estimated_rows = now.estimated_rows
    table.every_device_sees_every_row = now.every_device_sees_every_row
    for column in table.columns:
        if not column.gone and column.name in known:
            _refresh(column, known[column.name])
    return table


def _refresh(column: snapshot_pb2.Column, now: snapshot_pb2.Column) -> None:
    column.policy = now.policy
    column.not_null, column.has_default, column.refuses_null = now.not_null, now.has_default, now.refuses_null
    if (column.kind, column.element_kind) == (now.kind, now.element_kind):
        # A type of the same kind, as a longer varchar: values are carried as they are, and others may be refused.
        column.postgres_type, column.base_type = now.postgres_type, now.base_type
        _replace(column.enum_labels, now.enum_labels)


def _replace(labels: object, now: Iterable[str]) -> None:
    del labels[:]  # type: ignore[attr-defined]
    labels.extend(now)  # type: ignore[attr-defined]


def carried_on(held: snapshot_pb2.Table, change: snapshot_pb2.Table, position: int) -> snapshot_pb2.Table:
    """A table as a schema change at ``position`` makes it: what a change does not tell (policies, whom rows are for,
    what is surely refused) is that of ``held`` until the server is asked."""
    known = {column.name: column for column in held.columns}
    table = snapshot_pb2.Table()
    table.CopyFrom(change)
    table.changed_position = position
    table.restricted = held.restricted
    table.every_device_sees_every_row = held.every_device_sees_every_row
    table.estimated_rows = held.estimated_rows
    for column in table.columns:
        before = known.get(column.name)
        if before is not None:
            column.policy = before.policy
            column.refuses_null = before.refuses_null and column.not_null
    return table
