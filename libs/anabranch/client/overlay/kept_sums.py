"""The sums that are kept while bases change: of each table, and of each audience of a restricted one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.client.file import audience_sums, row_audiences
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.row_audiences import NOBODYS
from anabranch.values import Cell

Base = tuple[Cell, ...] | None
"""A base image: the row's cells, or None where the base has no such row."""
Audiences = frozenset[str] | None


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


def sum_up(tx: Tx, table: DeviceTable, changed: Mapping[str, Audiences], old: list[Base], new: list[Base]) -> None:
    """Keep the sums right, and each row's audiences, after bases were changed: of each key text those audiences that
    are new (None: it keeps its own), and the base before and after it."""
    row_hashes = table.encoder.row_hashes
    gone, come = (
        row_hashes([row for row in old if row is not None]),
        row_hashes([row for row in new if row is not None]),
    )
    if table.restricted and changed:
        _by_audience(tx, table, changed, _each(gone, old), _each(come, new))
    elif gone or come:
        add_to_sum(tx, table.name, len(come) - len(gone), sum(come) - sum(gone))


def _each(hashes: Iterable[int], bases: Iterable[Base]) -> list[int | None]:
    left = iter(hashes)
    return [None if row is None else next(left) for row in bases]


def _by_audience(
    tx: Tx, table: DeviceTable, changed: Mapping[str, Audiences], olds: list[int | None], news: list[int | None]
) -> None:
    kept = row_audiences.read(tx.conn, table.name, changed)
    by_audience: dict[str, tuple[int, int]] = {}
    rows = total = 0
    put: list[tuple[str, Iterable[str]]] = []
    gone: list[str] = []

    def add(audiences: frozenset[str], count: int, change: int) -> None:
        for audience in audiences:
            before, so_far = by_audience.get(audience, (0, 0))
            by_audience[audience] = (before + count, so_far + change)

    for (key, audiences), old, new in zip(changed.items(), olds, news, strict=True):
        before = kept.get(key, NOBODYS)
        if old is not None:
            rows, total = rows - 1, total - old
            add(before, -1, -old)
        if new is not None:
            after = before if audiences is None else audiences
            rows, total = rows + 1, total + new
            add(after, 1, new)
            if after != before or key not in kept:
                put.append((key, after))
        elif key in kept:
            gone.append(key)
    row_audiences.put(tx.conn, table.name, put)
    row_audiences.remove(tx.conn, table.name, gone)
    add_to_sum(tx, table.name, rows, total)
    audience_sums.add(tx.conn, table.name, by_audience)
