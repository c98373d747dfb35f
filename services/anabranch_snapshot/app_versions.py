"""Tells a database's tables as an app knows them that was built for an earlier schema version.

Steps are told backwards as far as what the app writes still has one meaning: renamed columns and tables have their
names of then, what came later is hidden, what is gone is told with NULL in every row. A column of then that has another
kind today, or a table that had to be pulled anew, can't be told: a newer app is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.errors import ServerError
from anabranch.runtime.errors import CallError
from anabranch.store.log.schema_versions import SchemaVersion
from anabranch.v1 import errors_pb2, snapshot_pb2
from anabranch.values import Column, Table
from anabranch.wire.tables import table_message


@dataclass(frozen=True, slots=True)
class TableThen:
    """A table of today as an app of an earlier version knows it. ``sql_name``: its name then; ``names``: those of the
    columns that it had then, by identity; ``gone``: those of them that it has no more."""

    sql_name: str
    names: Mapping[str, str]
    gone: tuple[Column, ...]


class OutdatedError(ServerError):
    """The app's version can't be told any more: it needs ``version`` at least."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def tables_then(tables: Iterable[Table], changes: Sequence[SchemaVersion]) -> dict[str, TableThen]:
    """Today's tables as they were before ``changes``, all that came since, in order; those that came later are left
    out.

    Raises:
        OutdatedError: one of them can't be told.
    """
    today = {table.name: table for table in tables}
    # Identities are followed backwards: one that came later may have been another table's before that one went.
    then: dict[str, Table | None] = dict(today)
    pulled: dict[str, int] = {}
    for change in reversed(changes):
        for was, now in change.tables.values():
            if now is not None and then.get(now.name) is not None:
                then[now.name] = was
                if now.name in change.pulled:
                    pulled.setdefault(now.name, change.version)
    found: dict[str, TableThen] = {}
    needed = 0
    for name, was in then.items():
        if was is None:
            continue
        needed = max(needed, pulled.get(name, 0), _retyped_by(today[name], was, changes))
        gone = tuple(column for column in was.columns if column.name not in today[name].by_name)
        found[name] = TableThen(was.sql_name, {c.name: c.sql_name for c in was.columns}, gone)
    if needed:
        raise OutdatedError(needed)
    return found


def _retyped_by(table: Table, was: Table, changes: Sequence[SchemaVersion]) -> int:
    """The version since which a column of then has another kind, the last one; 0 where all have the kind of then, or
    are gone."""
    former = {one.column.name: one for one in table.former}
    versions = {change.position: change.version for change in changes}
    last = 0
    for column in was.columns:
        name, version = column.name, 0
        while name in former and name not in table.by_name and former[name].successor:
            version = versions.get(former[name].dropped_position, changes[-1].version)
            name = former[name].successor
        if name in table.by_name:
            last = max(last, version)
    return last


def describe_then(response: snapshot_pb2.DescribeResponse, then: Mapping[str, TableThen]) -> None:
    """Give a description of today's tables the names of then, and mark what an app of then does not know, and what is
    gone. Columns stay in today's order; those that are gone come last."""
    for table in response.tables:
        known = then.get(table.name)
        if known is None:
            table.hidden = True
            continue
        table.sql_name = _other_than(table.name, known.sql_name)
        for column in table.columns:
            if column.name in known.names:
                column.sql_name = _other_than(column.name, known.names[column.name])
            else:
                column.hidden = True
        table.columns.extend(_gone(known.gone))


def _gone(columns: Sequence[Column]) -> Iterable[snapshot_pb2.Column]:
    # A value may be written to it, or not: it is kept as one that lost.
    told = [replace(column, not_null=False, has_default=True, initial=()) for column in columns]
    for column in table_message(Table("", tuple(told), ()), policies=True).columns:
        column.gone = True
        yield column


def _other_than(identity: str, sql_name: str) -> str:
    return "" if sql_name == identity else sql_name


def require_version(version: int, today: int) -> None:
    """Check that an app can have been built for a version. Raises CallError INVALID_REQUEST."""
    if not 0 <= version <= today:
        raise CallError(
            errors_pb2.REASON_INVALID_REQUEST, f"there is no schema version {version}: the latest is {today}"
        )


def outdated(error: OutdatedError, version: int) -> CallError:
    """The failure of a call of an app that was built for ``version``."""
    return CallError(
        errors_pb2.REASON_APP_OUTDATED,
        f"what changed since schema version {version} can't be told to an app that was built for it: it needs one that"
        f" was built for version {error.version}, or a later one",
        needed_version=str(error.version),
    )
