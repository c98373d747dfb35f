"""Batches, rows and a database for tests of what the resolver decides without Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.merge import Mutation, MutationType, RowChange, RowState
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.policy import DatabasePolicy, TablePolicy
from anabranch.store.catalog.relation import Constraints, ForeignKey, UniqueKey
from anabranch.store.inbox.take import Taken
from anabranch.values import Cell, Column, Kind, Table
from anabranch_conflict_resolver.batch.decode import Decoded, RowKey
from anabranch_conflict_resolver.batch.results import Candidate
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.tables import SyncedDatabase, compile_database
from anabranch_conflict_resolver.group.view import View

INSERT, UPDATE, DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
POSITION = 1_000_000
Rows = Mapping[RowKey, Sequence[Cell]]


def taken(batch_id: str, node_id: str = "node") -> Taken:
    """A batch as it comes from the inbox; nothing is in it."""
    return Taken(batch_id, node_id, "p", 0, None, b"", b"", None, 0, 0, None, None, None, False, True, None, None, 0)


def batch(number: int, *mutations: tuple[MutationType, str, Mapping[str, Cell]], node: str = "node") -> Candidate:
    """A batch whose mutations have one row each, with key column ``id``."""
    read = [
        Mutation(table, kind, [RowChange(str(row["id"]), dict(row) if kind is INSERT else _beside(row))])
        for kind, table, row in mutations
    ]
    keys: dict[RowKey, tuple[Cell, ...]] = {(table, str(row["id"])): (row["id"],) for _, table, row in mutations}
    expecting = any(kind is not INSERT for kind, _, _ in mutations)
    decoded = Decoded(0, read, keys, len(keys) < len(mutations), expecting)
    return Candidate(taken(f"{number:026}", node), decoded, POSITION, may_wait=False, may_await_row=False)


def _beside(row: Mapping[str, Cell]) -> dict[str, Cell]:
    return {name: cell for name, cell in row.items() if name != "id"}


def lists(on_delete: str = "a") -> SyncedDatabase:
    """Lists with a unique code, and todos that refer to them."""
    tables = {
        "list": Table("list", (_column("id"), _column("code", not_null=False)), ("id",), 1),
        "todo": Table("todo", (_column("id"), _column("list_id", not_null=False), _column("title")), ("id",), 2),
    }
    primary = {name: UniqueKey(f"{name}_pkey", ("id",), primary=True) for name in tables}
    refers = ForeignKey("todo_list", ("list_id",), "app", "list", ("id",), on_delete, synced=True)
    constraints = {
        "list": Constraints(primary["list"], (primary["list"], UniqueKey("list_code", ("code",), primary=False))),
        "todo": Constraints(primary["todo"], (primary["todo"],), (refers,)),
    }
    policies = dict.fromkeys(tables, TablePolicy())
    named = dict.fromkeys(tables, 0)
    return compile_database(
        Database(1, "app", "app", "e", 0, 1, DatabasePolicy(), b"k", tables, policies, constraints, named)
    )


def _column(name: str, *, not_null: bool = True) -> Column:
    return Column(name, Kind.STRING, "text", not_null=not_null)


def context(synced: SyncedDatabase, **more: Any) -> Context:
    """A group's context without a session: whoever asks Postgres fails."""
    return Context(None, synced, POSITION, 0, 100, **more)  # type: ignore[arg-type]


def progress(synced: SyncedDatabase, rows: Rows) -> Progress:
    """A try that has locked ``rows``."""
    view = View()
    for at, cells in rows.items():
        view.rows[at] = list(cells)
        view.states[at] = RowState(dict(zip(synced.tables[at[0]].names, cells, strict=True)), None)
    return Progress(view, touched=frozenset(rows))
