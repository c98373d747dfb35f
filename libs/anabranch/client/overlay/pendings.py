"""The pending changes of rows, by index, through a cache of parsed batches.

State model. For a row with many pending batches their coalesced changes are kept: batches that are added later are
found by their ids, which only grow; ``release`` reports the batches that leave, in the transaction in which they do. A
transaction that is undone, another lease of the file and other tables forget everything kept. So does, for its row, a
batch that is ``seen`` and stays: all batches of such a row are read, but only until the earlier batch that it waits for
has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anabranch.client.file.device_file import Tx
from anabranch.client.overlay.coalesce import Coalesced
from anabranch.client.queue import statements
from anabranch.client.writes.payload import PayloadCache, RowPart
from anabranch.merge.overlay import Pending

_MANY = 16
"""Rows with fewer pending batches are not worth remembering."""
_MOST_KEPT = 10_000

Left = list[tuple[tuple[str, str], str, list[RowPart]]]


class Pendings:
    """The pending changes of rows. ``term`` gives a number that changes whenever this process begins to sync the file:
    before that, another process may have taken batches out of the queue."""

    def __init__(self, cache: PayloadCache, term: Callable[[], int]) -> None:
        self._cache = cache
        self._term = term
        self._kept: dict[tuple[str, str], Coalesced] = {}
        self._good_for: tuple[int, int] = (-1, -1)

    def load(self, tx: Tx, table: str, keys: Iterable[str], base_ms: int | None = None) -> dict[str, list[RowPart]]:
        """The pending parts of rows of ``table`` by key text, in the order of their batches' ids, or, of a row with
        many, fewer that show the same; rows without any are left out. The base of the table has all groups up to
        ``base_ms`` (None: up to the position of its last pull): a batch that was accepted at or before that, and that
        the log has yet to show, counts as seen here."""
        if statements.is_empty(tx.conn):
            return {}
        if base_ms is None:
            (base_ms,) = tx.conn.execute("SELECT first_ms FROM _db_tables WHERE name = ?", (table,)).fetchone()
        keeps = base_ms <= tx.state.cursor_ms
        out: dict[str, list[RowPart]] = {}
        if keeps and self._usable(tx):
            keys = list(keys)
            apart = statements.rows_of_seen(tx.conn, table)
            for key in keys:
                if (table, key) in self._kept:
                    parts = None if key in apart else self._kept_parts(tx, table, key)
                    if parts:
                        out[key] = parts
                    else:
                        self._kept.pop((table, key), None)
            keys = [key for key in keys if key not in out]
        batches_of = statements.pending_of(tx.conn, table, keys)
        found = statements.find(tx.conn, {b for batches in batches_of.values() for b in batches}) if batches_of else {}
        for key, batches in batches_of.items():
            seen = {b for b in batches if (q := found[b]).seen or (q.position_ms or _NEVER) <= base_ms}
            parts_of = [(b, self._parts(tx, b, found[b].value, table, key, b in seen)) for b in batches]
            if keeps and not seen and len(batches) >= _MANY:
                parts = self._keep(tx, table, key, parts_of)
                if parts:
                    out[key] = parts
                    continue
            out[key] = [part for _, parts in parts_of for part in parts]
        return out

    def _parts(self, tx: Tx, batch: str, payload: bytes, table: str, key: str, seen: bool) -> Sequence[RowPart]:
        found = self._cache.get(batch, payload, tx.tables, tx.state.tables_version).get((table, key), ())
        if not seen:
            return found
        return [
            RowPart(p.table, p.key_text, p.key, Pending(p.change.type, p.change.values, p.change.before, True))
            for p in found
        ]

    def forget(self) -> None:
        """Forget all kept changes: batches have been inserted between those of the queue."""
        self._kept.clear()

    def forget_if_undone(self, tx: Tx) -> None:
        """Have everything forgotten where ``tx`` is undone, since it changes tables: others may get the number of its
        tables' version."""
        tx.on_undo += [self._kept.clear, self._cache.clear]

    def _usable(self, tx: Tx) -> bool:
        """Whether any kept changes are valid in this transaction."""
        now = (tx.state.tables_version, self._term())
        if now != self._good_for:
            self._kept.clear()
            self._good_for = now
        return bool(self._kept)

    def _kept_parts(self, tx: Tx, table: str, key: str) -> list[RowPart] | None:
        """The kept changes of a row, with the batches added since; None where they can't be coalesced."""
        kept = self._kept[table, key]
        added = statements.pending_after(tx.conn, table, key, kept.upto)
        tx.on_undo.append(self._kept.clear)
        for batch, payload in added:
            if not kept.add(batch, self._parts(tx, batch, payload, table, key, False)):
                return None
        return kept.parts()

    def _keep(
        self, tx: Tx, table: str, key: str, parts_of: Sequence[tuple[str, Sequence[RowPart]]]
    ) -> list[RowPart] | None:
        kept = Coalesced(tx.tables[table].policy.columns)
        if not all(kept.add(batch, parts) for batch, parts in parts_of):
            return None
        self._usable(tx)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[table, key] = kept
        tx.on_undo.append(self._kept.clear)
        return kept.parts()

    def coalesced_of(self, tx: Tx, batch_ids: Sequence[str]) -> Left:
        """The parts of batches that are about to leave the queue, for rows whose changes are kept."""
        if not self._usable(tx):
            return []
        left: Left = []
        for batch, queued in sorted(statements.find(tx.conn, batch_ids).items()):
            parts = self._cache.get(batch, queued.value, tx.tables, tx.state.tables_version)
            left += [(row, batch, parts[row]) for row in parts.keys() & self._kept.keys()]
        return left

    def leave(self, tx: Tx, left: Left) -> None:
        """Remove the parts ``left`` of batches that have left the queue from the kept changes."""
        if left:
            tx.on_undo.append(self._kept.clear)
        for row, batch, parts in left:
            kept = self._kept.get(row)
            if kept is None or batch > kept.upto:
                continue
            if not kept.leave(batch, parts, not statements.is_before(tx.conn, *row, batch)):
                del self._kept[row]

    def keys_of(self, tx: Tx, batch_ids: Sequence[str]) -> dict[str, dict[str, tuple[Any, ...]]]:
        """The rows that batches of the queue touch: table to key text to stored key."""
        out: dict[str, dict[str, tuple[Any, ...]]] = {}
        for batch, queued in statements.find(tx.conn, batch_ids).items():
            for part in self._cache.get(batch, queued.value, tx.tables, tx.state.tables_version).values():
                out.setdefault(part[0].table, {})[part[0].key_text] = part[0].key
        return out


_NEVER = 2**63 - 1
