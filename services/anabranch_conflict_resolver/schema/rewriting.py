"""Tells what the rows of altered tables hold that no captured change says: the values of columns that Postgres computed
or cast anew, the rows of new tables, and the sums of all whose rows have other hashes by now.

A table is read once, as the log has it at this group (``store.capture.standing``), and its effects are written in
pieces, so that neither this process nor a reader of the log ever holds more than one. Nobody wrote these values: the
histories of the rows stay as they are, and no conflict arises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from anabranch.merge import SERVER_NODE
from anabranch.store.capture.standing import standing_rows
from anabranch.store.catalog.sums import kept_audience_sums
from anabranch.store.ddl.difference import TableChange
from anabranch.store.group import records as store
from anabranch.store.group.records import LogRow
from anabranch.store.group.rows import Row
from anabranch.store.inbox.claim import renew
from anabranch.store.session.at_once import together
from anabranch.values import key_text
from anabranch.values.canonical import SUM_MODULUS
from anabranch.wire.effects import Effect
from anabranch.wire.value_effects import ValueEffects
from anabranch_conflict_resolver.captured.intake import AT_ONCE
from anabranch_conflict_resolver.captured.server_batches import ServerBatch
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.records import Recount
from anabranch_conflict_resolver.group.table import SyncedTable
from anabranch_conflict_resolver.schema.waiting import is_read


def tell_values(
    context: Context,
    changes: Sequence[TableChange],
    batch: ServerBatch,
    counted: Recount,
    give_way: Callable[[], None],
) -> None:
    """Write the effects of ``changes`` as those of ``batch``, and count the tables that they concern. ``give_way`` is
    called now and then, and raises where others are to go first.

    Raises:
        UndrainedError: too much was captured meanwhile; drain it, and begin with that table again.
        psycopg.Error: Postgres refused a statement.
    """
    by_number = {change.after.id: change for change in changes if change.after is not None and is_read(change)}
    for name in context.synced.database.table_order:
        table = context.synced.tables[name]
        change = by_number.get(table.table.id)
        if change is not None and table.table.id not in counted.sums:
            _tell_table(context, table, change, batch, counted, give_way)


def _tell_table(
    context: Context,
    table: SyncedTable,
    change: TableChange,
    batch: ServerBatch,
    counted: Recount,
    give_way: Callable[[], None],
) -> None:
    conn, synced = context.conn, context.synced
    new = change.before is None
    effects = ValueEffects(table.table, change.rewritten, new={column.name for column in change.added}, whole=new)
    telling = bool(change.rewritten or new)
    count = total = 0
    of_audiences: dict[str, tuple[int, int]] = {}
    with closing(standing_rows(conn, synced.database, table.table, synced.older)) as chunks:
        for rows in chunks:
            for first in range(0, len(rows), AT_ONCE):
                some = rows[first : first + AT_ONCE]
                told = [effects.of(row) for row in some]
                total += sum(one.row_hash for one in told)
                whose = table.audiences.of_all(conn, some) if table.audiences is not None else None
                for place, audiences in enumerate(whose or ()):
                    _add(of_audiences, audiences, told[place].row_hash)
                if telling:
                    for place, (row, one) in enumerate(zip(some, told, strict=True)):
                        if one.effect is not None:
                            seen = None if whose is None else whose[place]
                            _log(batch, table, row, one.effect, seen, new=new)
                    counted.rows += _write(context, batch)
            count += len(rows)
            renew(conn)
            give_way()
            # None is held while the next ones are read.
            del rows
    counted.sums[table.table.id] = (count, total % SUM_MODULUS)
    if table.audiences is not None:
        gone = dict.fromkeys(kept_audience_sums(conn, table.table.id), (0, 0))
        for audience, (rows_of, total_of) in {**gone, **of_audiences}.items():
            counted.audience_sums[table.table.id, audience] = (rows_of, total_of % SUM_MODULUS)


def _add(sums: dict[str, tuple[int, int]], audiences: Sequence[str], row_hash: int) -> None:
    for audience in audiences:
        count, total = sums.get(audience, (0, 0))
        sums[audience] = (count + 1, total + row_hash)


def _log(
    batch: ServerBatch, table: SyncedTable, row: Row, effect: Effect, seen: tuple[str, ...] | None, *, new: bool
) -> None:
    key = key_text([row[i] for i in table.table.key_index])
    before = () if new and seen is not None else seen
    batch.log.append(
        LogRow(
            batch.id,
            batch.ordinal,
            SERVER_NODE,
            table.table.id,
            key,
            effect.type,
            effect.data,
            effect.changed,
            effect.hash,
            before,
            seen,
        )
    )
    batch.hashes.append(effect.hash)
    batch.ordinal += 1


def _write(context: Context, batch: ServerBatch) -> int:
    """Write the effects that the batch holds; gives how many these were."""
    conn, written = context.conn, len(batch.log)
    if not written:
        return 0
    large = batch.cut_large()
    with together(conn):
        store.write_log(conn, context.synced.database.id, context.position, batch.log)
    batch.let_go()
    for row in large:
        store.append_effect(conn, context.synced.database.id, context.position, row)
    return written
