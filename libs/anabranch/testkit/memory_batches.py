"""Batches and rows written short, for examples of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.merge import Batch, Mutation, MutationType, RowChange, RowState, RowVersion, Stamp
from anabranch.testkit.memory_node import ulid

TABLE = "todo"


def insert(key: str, **values: Any) -> Mutation:
    """An insert of one row of ``todo``; its key column is ``id``."""
    return Mutation(TABLE, MutationType.INSERT, [RowChange(key, {"id": key, **values})])


def update(key: str, before: Mapping[str, Any] | None = None, **values: Any) -> Mutation:
    """An update of one row of ``todo``."""
    return Mutation(TABLE, MutationType.UPDATE, [RowChange(key, values, before)])


def delete(key: str) -> Mutation:
    """A delete of one row of ``todo``."""
    return Mutation(TABLE, MutationType.DELETE, [RowChange(key, {})])


def batch(
    *mutations: Mutation,
    node: str = "a",
    made: int = 50,
    basis: int = 50,
    position: int = 100,
    place: int | None = None,
    earlier_pending: bool = False,
) -> Batch:
    """A batch made at ``made``, which is the time in its id, and decided at ``position``."""
    return Batch(
        ulid(made, 0),
        node,
        basis,
        made,
        position,
        position if place is None else place,
        mutations,
        earlier_pending,
    )


def stamp(node: str, position: int, place: int | None = None, made: int | None = None) -> Stamp:
    """A stamp of ``node``'s batch made at ``made`` (if left out, at the position)."""
    return Stamp(position if place is None else place, ulid(position if made is None else made, 0), node, position)


def live(
    values: Mapping[str, Any],
    node: str,
    position: int,
    *,
    other: int = 0,
    made: int | None = None,
    inserted: Stamp | None = None,
    stamps: Mapping[str, Stamp] | None = None,
    overtaken: Mapping[str, str] | None = None,
) -> RowState:
    """A live row last written by ``node`` at ``position``, and by any other node at ``other`` at last. Inserted by
    ``inserted``; if left out, before registration."""
    by = inserted or Stamp(0, "", "", 0)
    version = RowVersion(
        position,
        node,
        ulid(position if made is None else made, 0),
        other,
        by.position,
        by.place,
        by.node,
        by.batch,
        None,
        dict(stamps or {}),
        dict(overtaken or {}),
    )
    return RowState(values, version)


def tombstone(
    node: str,
    position: int,
    *,
    other: int = 0,
    made: int | None = None,
    overtaken: Mapping[str, str] | None = None,
) -> RowState:
    """A row deleted by ``node`` at ``position``."""
    batch_id = ulid(position if made is None else made, 0)
    return RowState(
        None,
        RowVersion(position, node, batch_id, other, tombstone_batch=batch_id, overtaken=dict(overtaken or {})),
    )
