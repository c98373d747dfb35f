"""Carry the history of a row forward after a write."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.merge.equality import same
from anabranch.merge.model import (
    OVERTAKEN_LIMIT,
    Batch,
    Cell,
    MutationType,
    RowState,
    RowVersion,
    Stamp,
    Write,
)

_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE


def _stamp_beside(
    values: Mapping[str, Cell],
    old: Mapping[str, Cell],
    stamps: dict[str, Stamp],
    stamp: Stamp,
    stored: Mapping[str, Cell],
) -> None:
    """Stamp the columns that the batch changed without naming them: by a trigger, or in a generated column."""
    for column, cell in stored.items():
        if column not in values and not same(cell, old.get(column)):
            stamps[column] = stamp


def applied(state: RowState | None, batch: Batch, write: Write, stored: Mapping[str, Cell] | None = None) -> RowState:
    """The row after ``write``, a change of ``batch``: a write of ``resolve``, or one that a cascade or trigger made.

    ``state`` is the row before it (None: the row is unknown); ``stored`` the whole row as Postgres then held it, or
    None where the written values are the whole row (for an insert with defaults they never are). Give ``stored`` only
    where it differs: it is compared column by column. The result shares parts with ``state``, which is not changed.

    The row's last writer is the batch's node, at the batch's real position. ``last_batch`` keeps the greatest id that
    this node wrote since it became the last writer, which need not be this batch's: a late one writes behind it. When
    the last writer changes, the old one's position is the newest of any other node, whatever positions there were
    before.

    An update stamps its columns, equal values too. A stamp never goes back: a ``counter`` column that a late update
    added to keeps that of the later update (``write.kept``). An insert stamps every column, by being the row's insert;
    a late one only those whose stored key is older, so that it becomes the row's insert behind the stamps that are
    later than itself (``write.kept``), even if it has few columns left to write. A tombstone has no stamps. A change
    that was wholly superseded, and is not such an insert, leaves the row as it was.
    """
    kind = write.type
    if kind is None and not write.late_insert:
        return state if state is not None else RowState(None, None)
    old = state.version if state is not None else None
    node, batch_id, position = batch.node, batch.id, batch.position
    last_batch = batch_id
    insert_position = insert_place = other_position = 0
    insert_node = insert_batch = ""
    stamps: dict[str, Stamp] = {}
    overtaken: dict[str, str] = {}
    if old is not None:
        overtaken = old.overtaken
        if old.last_node == node:
            other_position = old.other_position
            if old.last_batch > batch_id:
                last_batch = old.last_batch
        else:
            other_position = old.last_position
            if write.remember:
                overtaken = _overtake(overtaken, old.last_node, old.last_batch)
        stamps = old.stamps
        insert_position, insert_place = old.insert_position, old.insert_place
        insert_node, insert_batch = old.insert_node, old.insert_batch
    values: Mapping[str, Cell] | None
    tombstone = None
    if kind is _UPDATE and not write.late_insert:
        assert state is not None
        assert state.values is not None
        stamp = Stamp(batch.place, batch_id, node, position)
        stamps = {**stamps, **dict.fromkeys(write.values, stamp)}
        if write.kept:
            assert old is not None
            for column in write.kept:
                stamps[column] = old.stamps[column]
        if stored is None:
            values = {**state.values, **write.values}
        else:
            values = stored
            _stamp_beside(write.values, state.values, stamps, stamp, stored)
    elif kind is _DELETE:
        values = None
        tombstone = batch_id
        stamps = {}
    else:
        insert_position, insert_place, insert_node, insert_batch = position, batch.place, node, batch_id
        if kind is _INSERT:
            values = write.values if stored is None else stored
            stamps = {}
        else:
            assert state is not None
            assert state.values is not None
            stamps = {column: stamps[column] for column in write.kept}
            values = {**state.values, **write.values} if stored is None else stored
    return RowState(
        values,
        RowVersion(
            position,
            node,
            last_batch,
            other_position,
            insert_position,
            insert_place,
            insert_node,
            insert_batch,
            tombstone,
            stamps,
            overtaken,
        ),
    )


def _overtake(overtaken: dict[str, str], node: str, batch_id: str) -> dict[str, str]:
    """``overtaken`` with the last writer that has just been replaced."""
    result = {**overtaken, node: max(batch_id, overtaken.get(node, ""))}
    if len(result) > OVERTAKEN_LIMIT:
        del result[min(result, key=result.__getitem__)]
    return result
