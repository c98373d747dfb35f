"""Stretches of the log as the contract's pages. Effects go in as the bytes that they are."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.store.catalog.databases import Database
from anabranch.store.log.reader import LoggedSum
from anabranch.store.log.seal import position_token
from anabranch.store.log.stretch import Loser, Stretch
from anabranch.v1 import batch_pb2, change_pb2, position_pb2, value_pb2
from anabranch.values import Table, key_cells
from anabranch.values.messages import column_writer


def to_page(stretch: Stretch, database: Database, names: Mapping[str, str]) -> change_pb2.Page:
    """The page of a stretch. ``names``: of the nodes in it, by id."""
    page = change_pb2.Page(reached=to_position(database, stretch.reached, stretch.chain))
    groups = {position: _group(page, stretch, position) for position in stretch.positions}
    batch: change_pb2.LoggedBatch | None = None
    effects: list[bytes] = []
    position, batch_id = None, None
    for item in stretch.items:
        if item.position != position:
            position, batch_id = item.position, None
        if item.batch_id != batch_id:
            if batch is not None:
                batch.effects.extend(effects)
            effects = []
            batch_id = item.batch_id
            node = batch_pb2.Node(id=item.node_id, name=names.get(item.node_id, ""))
            batch = groups[item.position].batches.add(id=batch_id, node=node)
        if type(item.content) is Loser:
            assert batch is not None
            add_loser(batch, item.content, database.tables_by_id)
        else:
            effects.append(item.content)  # type: ignore[arg-type]
    if batch is not None:
        batch.effects.extend(effects)
        batch.effect_incomplete = stretch.effect_incomplete
    return page


def _group(page: change_pb2.Page, stretch: Stretch, position: int) -> change_pb2.LoggedGroup:
    group = page.groups.add(position=position, schema_change=stretch.changes.get(position, b""))
    end = stretch.ends.get(position)
    if end is None:
        group.incomplete = True
    else:
        group.sums.extend(map(position_pb2.TableSum.FromString, end.sums))
    return group


def add_loser(batch: change_pb2.LoggedBatch, loser: Loser, tables: Mapping[int, Table]) -> None:
    """Add a value that lost to its batch, if its table is one of ``tables`` (by number)."""
    table = tables.get(loser.table_id)
    if table is None:
        # No longer synced: no reader could place the value.
        return
    cells = key_cells(table, loser.key)
    columns = [table.by_name[name] for name in table.key_columns]
    batch.losers.add(
        table=table.name,
        key=[column_writer(column)(cell) for column, cell in zip(columns, cells, strict=True)],
        column=loser.column,
        value=None if loser.value is None else value_pb2.Value.FromString(loser.value),
        batch_id=loser.batch_id,
        node_id=loser.node_id,
        winner_batch_id=loser.winner_batch_id,
        cause=loser.cause,
    )


def to_position(database: Database, position: int, chain: bytes | None) -> position_pb2.Position:
    """A sealed Position; without a seal where its chain is not known any more."""
    token = b"" if chain is None else position_token(database.seal_key, database.epoch, position, chain)
    return position_pb2.Position(epoch=database.epoch, server_timestamp_ms=position, token=token)


def to_sum(row: LoggedSum) -> position_pb2.TableSum:
    """The sum of a table, or of an audience of one."""
    return position_pb2.TableSum(table=row.table, count=row.count, hash=row.hash, audience=row.audience)
