"""A log for which every proof holds, made directly: groups as the resolver commits them, with the tables' rows and sums
that belong to them, but without batches and verdicts, and without the versions of live rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ulid import ULID

from anabranch.bench.workload import SCHEMA, TABLE
from anabranch.store.capture.triggers import MARK_RESOLVER
from anabranch.store.catalog.databases import Database
from anabranch.store.group import records
from anabranch.store.group.records import GroupRow, LogRow, SumRow
from anabranch.store.group.rows import TableSql
from anabranch.store.session.engine import Session
from anabranch.values import Cell
from anabranch.values.canonical import SUM_MODULUS
from anabranch.wire.effects import Effect, EffectBuilder

GROUP = 5_000
"""Changes of a group, and rows of a statement."""
_NODE = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
_TOMBSTONES = """
insert into anabranch.row_versions (table_id, key, last_position, last_node, last_batch, tombstone_batch)
select table_id, key, position, node_id, batch_id, batch_id from anabranch.log
where database_id = %(db)s and table_id = %(table)s and position = %(position)s
"""


class LogMaker:
    """Writes groups of inserts, updates and deletes, with the rows and sums that belong to them."""

    def __init__(self, conn: Session, database: Database) -> None:
        self._conn = conn
        self._database = database
        self._table = database.tables[TABLE]
        self._builder = EffectBuilder(self._table)
        self._sql = TableSql(SCHEMA, self._table)
        self._rows: list[list[Cell]] = []
        self._position = 1_700_000_000_000
        self._count = self._total = 0

    def write(self, changes: int) -> None:
        """Half of the changes insert rows, the others update some, spread over all."""
        inserts = changes // 2
        self.insert(inserts)
        self.update(changes - inserts)

    def insert(self, changes: int) -> None:
        """Insert new rows."""
        self._conn.execute(MARK_RESOLVER)
        for size in _sizes(changes):
            first = len(self._rows)
            rows: list[list[Cell]] = [
                [str(ULID.from_int((first + i) << 40)), f"title {first + i} of the day", False, first + i, i / 7, i]
                for i in range(size)
            ]
            self._rows += rows
            self._commit([[(row, self._builder.insert(row)) for row in rows]])
            self._sql.insert(self._conn, self._table.column_names, rows)

    def update(self, changes: int) -> None:
        """Update two columns of some rows, spread over all."""
        self._conn.execute(MARK_RESOLVER)
        step = max(1, len(self._rows) // max(1, changes))
        at = 0
        for size in _sizes(changes):
            chosen = [self._rows[(at + i) * step % len(self._rows)] for i in range(size)]
            at += size
            done = []
            for row in chosen:
                after = [*row]
                after[1], after[2] = f"{row[1]!s} (done)", True
                done.append((row, self._builder.update(row, after)))
                row[:] = after
            self._commit([done])
            keys = [(row[0],) for row in chosen]
            self._sql.update(self._conn, ("title", "done"), keys, [(row[1], row[2]) for row in chosen])

    def delete_all(self) -> None:
        """Delete every row by one group, and write their tombstones."""
        self._conn.execute(MARK_RESOLVER)
        rows, self._rows = self._rows, []
        starts = range(0, len(rows), GROUP)
        self._commit([(row, self._builder.delete(row)) for row in rows[start : start + GROUP]] for start in starts)
        self._conn.execute(f"delete from {SCHEMA}.{TABLE}".encode())
        values = {"db": self._database.id, "table": self._table.id, "position": self._position}
        self._conn.execute(_TOMBSTONES, values)

    def _commit(self, parts: Iterable[list[tuple[list[Cell], Effect]]]) -> None:
        conn, number, table_id = self._conn, self._database.id, self._table.id
        self._position += 1
        batch = str(ULID.from_int(self._position << 70))
        written = 0
        for done in parts:
            log = [
                LogRow(batch, written + i, _NODE, table_id, str(row[0]), e.type, e.data, e.changed, e.hash)
                for i, (row, e) in enumerate(done)
            ]
            written += len(log)
            self._count += sum(e.count_change for _, e in done)
            self._total = (self._total + sum(e.hash_change for _, e in done)) % SUM_MODULUS
            records.write_log(conn, number, self._position, log)
        total = self._total.to_bytes(16, "big")
        records.write_sums(conn, self._position, [SumRow(table_id, self._count, total)])
        records.write_group(conn, number, self._position, GroupRow(1, written, bytes(16), []))


def _sizes(total: int) -> Iterator[int]:
    for start in range(0, total, GROUP):
        yield min(GROUP, total - start)
