"""Writes groups as the resolver does: claim, head, rows, log, sums, group, notification, in one transaction.

It decides nothing: a test gives the effects of a batch. For tests of the log's readers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ulid import ULID

from anabranch.store.capture.triggers import MARK_RESOLVER
from anabranch.store.catalog.databases import load_database
from anabranch.store.group.records import (
    ConflictRow,
    GroupRow,
    LogRow,
    SumRow,
    notify_group,
    read_head,
    write_conflicts,
    write_group,
    write_log,
    write_sums,
)
from anabranch.store.group.rows import TableSql
from anabranch.store.session.engine import connect
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.v1 import position_pb2
from anabranch.values import Cell, Table, key_text
from anabranch.values.canonical import SUM_MODULUS
from anabranch.wire.effects import Effect, EffectBuilder

SUMS = "select row_count, row_hash from anabranch.table_sums where table_id = %s"


@dataclass
class Logged:
    """A batch for the log: its effects, each with its row's key text. ``losers`` are values that lost because of it:
    key text, column, serialized Value."""

    table: str
    effects: Sequence[tuple[str, Effect]] = ()
    losers: Sequence[tuple[str, str, bytes]] = ()
    id: str = field(default_factory=lambda: str(ULID()))
    node_id: str = field(default_factory=lambda: str(ULID()))


class LogWriter:
    """Commits groups to the database ``db_name``. Not for two threads at once; several writers may compete."""

    def __init__(self, url: str, db_name: str) -> None:
        self.conn = connect(url, application_name="log-writer", autocommit=True)
        self._db_name = db_name
        self.load()

    def load(self) -> None:
        """Read the catalog: from here on the tables are as it has them now."""
        self.database = load_database(self.conn, self._db_name)
        self._builders = {name: EffectBuilder(table) for name, table in self.database.tables.items()}
        self._sql = {name: TableSql(self.database.schema_name, t) for name, t in self.database.tables.items()}

    def close(self) -> None:
        """End its session."""
        self.conn.close()

    def table(self, name: str) -> Table:
        """A synced table."""
        return self.database.tables[name]

    def insert(self, table: str, rows: Sequence[Sequence[Cell]], *, batches: int = 1) -> int:
        """Insert rows, in as many batches as ``batches`` says, as one group. Returns its position."""
        known = self.table(table)
        builder = self._builders[table]
        logged = [Logged(table) for _ in range(batches)]
        for i, row in enumerate(rows):
            key = key_text([row[place] for place in known.key_index])
            batch = logged[i * batches // len(rows)]
            batch.effects = [*batch.effects, (key, builder.insert(row))]
        return self.commit(logged, lambda: self._sql[table].insert(self.conn, known.column_names, rows))

    def update(self, table: str, key: tuple[Cell, ...], changes: Mapping[str, Cell]) -> int:
        """Change one row, as one group. Returns its position."""
        known, sql = self.table(table), self._sql[table]
        (before,) = sql.read(self.conn, [key])().values()
        after = list(before)
        for name, cell in changes.items():
            after[known.index[name]] = cell
        effect = self._builders[table].update(before, after)
        values = [tuple(changes.values())]
        return self.commit(
            [Logged(table, [(key_text(key), effect)])], lambda: sql.update(self.conn, tuple(changes), [key], values)
        )

    def delete(self, table: str, key: tuple[Cell, ...]) -> int:
        """Delete one row, as one group. Returns its position."""
        sql = self._sql[table]
        (before,) = sql.read(self.conn, [key])().values()
        effect = self._builders[table].delete(before)
        return self.commit([Logged(table, [(key_text(key), effect)])], lambda: sql.delete(self.conn, [key]))

    def commit(
        self,
        batches: Sequence[Logged],
        rows: Callable[[], object] | None = None,
        *,
        tell: bool = True,
        before_commit: Callable[[], object] | None = None,
    ) -> int:
        """Commit a group of ``batches``; ``rows`` writes their changes to the tables. Returns its position."""
        conn, number = self.conn, self.database.id
        with conn.transaction():
            conn.execute(MARK_RESOLVER)
            wait_for_claim(conn, number)
            head = read_head(conn, number)
            position = max(time.time_ns() // 1_000_000, head.position + 1)
            if rows is not None:
                rows()
            log, lost = self._records(sorted(batches, key=lambda batch: batch.id))
            write_log(conn, number, position, log)
            write_conflicts(conn, number, position, lost)
            sums = self._sums(position, batches)
            chain = blake2b(head.chain + position.to_bytes(8, "big"), digest_size=16).digest()
            write_group(conn, number, position, GroupRow(len(batches), len(log), chain, sums))
            if tell:
                notify_group(conn, number, position, [batch.id for batch in batches])
            if before_commit is not None:
                before_commit()
        return position

    def _records(self, batches: Sequence[Logged]) -> tuple[list[LogRow], list[ConflictRow]]:
        log, lost = [], []
        for batch in batches:
            table_id = self.table(batch.table).id
            for i, (key, effect) in enumerate(batch.effects):
                record = (batch.id, i, batch.node_id, table_id, key, effect.type, effect.data, effect.changed)
                log.append(LogRow(*record, effect.hash))
            for i, (key, column, value) in enumerate(batch.losers):
                who: Any = ("LOSING-BATCH", "LOSING-NODE", batch.id, batch.node_id)
                lost.append(ConflictRow(batch.id, i, table_id, key, column, value, *who))
        return log, lost

    def _sums(self, position: int, batches: Sequence[Logged]) -> list[bytes]:
        records, messages = [], []
        for name in sorted({batch.table for batch in batches}):
            effects = [effect for batch in batches if batch.table == name for _, effect in batch.effects]
            row = self.conn.execute(SUMS, (self.table(name).id,)).fetchone()
            assert row is not None
            count = row[0] + sum(effect.count_change for effect in effects)
            total = int.from_bytes(row[1], "big") + sum(effect.hash_change for effect in effects)
            digest = (total % SUM_MODULUS).to_bytes(16, "big")
            records.append(SumRow(self.table(name).id, count, digest))
            messages.append(position_pb2.TableSum(table=name, count=count, hash=digest).SerializeToString())
        write_sums(self.conn, position, records)
        return messages
