"""The sums that are kept while bases change: of each table, and of each audience of a restricted one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from anabranch.client.file import audience_sums, row_audiences
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.row_audiences import NOBODYS
from anabranch.values import Cell

Base = tuple[Cell, ...] | None
"""A base image: the row's cells, or None where the base has no such row."""


class Changed(NamedTuple):
    """A change of a base. ``audiences``: the row's new ones; None: those that it had."""

    key: str
    old: Base
    new: Base
    audiences: frozenset[str] | None


def add_to_sum(tx: Tx, table: str, rows: int, hash_change: int) -> None:
    """Change a table's kept sum."""
    kept = None if tx.standing is None else tx.standing.tables.get(table)
    if kept is None:
        count, data = tx.conn.execute("SELECT count, hash FROM _db_tables WHERE name = ?", (table,)).fetchone()
    else:
        count, data = kept.rows, kept.hash
    total = audience_sums.as_bytes(int.from_bytes(data, "big") + hash_change)
    tx.conn.execute("UPDATE _db_tables SET count = ?, hash = ? WHERE name = ?", (count + rows, total, table))
    if kept is not None and tx.standing is not None:
        tx.standing.tables[table] = kept._replace(rows=count + rows, hash=total)


def sum_up(tx: Tx, table: DeviceTable, changed: Sequence[Changed]) -> None:
    """Keep the sums right, and each row's audiences, after bases were changed."""
    if not changed:
        return
    hash_of = table.encoder.hash
    if table.restricted:
        _by_audience(tx, table, [(c, _hash(hash_of, c.old), _hash(hash_of, c.new)) for c in changed])
        return
    gone = [hash_of(c.old) for c in changed if c.old is not None]
    come = [hash_of(c.new) for c in changed if c.new is not None]
    if gone or come:
        add_to_sum(tx, table.name, len(come) - len(gone), sum(come) - sum(gone))


def _hash(hash_of: Callable[[Sequence[Cell]], int], base: Base) -> int | None:
    return None if base is None else hash_of(base)


def _by_audience(tx: Tx, table: DeviceTable, hashed: Sequence[tuple[Changed, int | None, int | None]]) -> None:
    kept = row_audiences.read(tx.conn, table.name, [c.key for c, _, _ in hashed])
    by_audience: dict[str, tuple[int, int]] = {}
    rows = total = 0
    put: list[tuple[str, Iterable[str]]] = []
    gone: list[str] = []

    def add(audiences: frozenset[str], count: int, change: int) -> None:
        for audience in audiences:
            before, so_far = by_audience.get(audience, (0, 0))
            by_audience[audience] = (before + count, so_far + change)

    for changed, old, new in hashed:
        before = kept.get(changed.key, NOBODYS)
        if old is not None:
            rows, total = rows - 1, total - old
            add(before, -1, -old)
        if new is not None:
            after = before if changed.audiences is None else changed.audiences
            rows, total = rows + 1, total + new
            add(after, 1, new)
            if after != before or changed.key not in kept:
                put.append((changed.key, after))
        elif changed.key in kept:
            gone.append(changed.key)
    row_audiences.put(tx.conn, table.name, put)
    row_audiences.remove(tx.conn, table.name, gone)
    add_to_sum(tx, table.name, rows, total)
    audience_sums.add(tx.conn, table.name, by_audience)
