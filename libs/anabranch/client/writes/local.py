"""Local writes: checked, applied to the rows, and gathered into one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

from anabranch import limits
from anabranch.client.errors import FileDamaged, NotReady, RowExists, RowMissing
from anabranch.client.events import Origin
from anabranch.client.file import choice
from anabranch.client.file.believed import believed
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.overlay.rebase import overlaid, tell, write_bases
from anabranch.client.queue import statements
from anabranch.client.writes.ids import next_id
from anabranch.client.writes.payload import Beside, RowPart, add_former, mutation_message
from anabranch.client.writes.sure import SurelyRefusedError
from anabranch.merge.model import MutationType
from anabranch.merge.overlay import Pending
from anabranch.v1 import batch_pb2, snapshot_pb2
from anabranch.values import Cell
from anabranch.values.cells import Literal
from anabranch.values.growth import growth_of
from anabranch.values.python import Converter, NumberRangeError, converter

Cells = dict[str, Cell]
_LOCAL: Origin = "local"


Ask = Callable[[Tx, str], DeviceTable | None]
"""Asks the server for a table's present description; None where it can't be asked, or the columns have changed."""


class WriteChecks:
    """Checks an app's values for a table: takes them by the names of columns in SQL, gives cells by identity, or raises
    a ValueError that names table and column. Where the refusal depends on the device's knowledge of the table, which
    may be old, it is a SurelyRefusedError."""

    def __init__(self, table: DeviceTable) -> None:
        self._table = table
        self._name = table.sql_name
        self._converters: dict[str, Converter] = {name: converter(c) for name, c in table.writable.items()}
        self._keys = tuple(table.told(name) for name in table.table.key_columns)
        written = table.writable.values()
        self._growing = {c.name: growth.measure for c in written if (growth := growth_of(c)) is not None}

    @property
    def table_name(self) -> str:
        """The table's identity."""
        return self._table.name

    def cell(self, column: str, value: Any) -> Cell:
        """One value, of the column that has the name in SQL. Raises ValueError."""
        try:
            convert = self._converters[column]
        except KeyError:
            raise ValueError(f"{self._name} has no column {column!r}") from None
        sure = self._table.sure.get(self._table.writable[column].name)
        if value is None:
            if sure is not None and sure.refuses_null:
                raise SurelyRefusedError(f"{self._name}.{column}: takes no NULL")
            return None
        try:
            cell = convert(value)
            if sure is not None and sure.judge is not None and type(cell) is not Literal:
                sure.judge(cell)
            return cell
        except (SurelyRefusedError, NumberRangeError) as error:
            raise SurelyRefusedError(f"{self._name}.{column}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{self._name}.{column}: {error}") from None

    def row(self, row: Mapping[str, Any]) -> Cells:
        """One row that names its key. Raises ValueError."""
        if not isinstance(row, Mapping):
            raise ValueError(f"{self._name}: a row is a dict of columns, not {type(row).__name__}")
        given = {column: self.cell(column, value) for column, value in row.items()}
        for name in self._keys:
            if given.get(name) is None:
                raise ValueError(f"{self._name}.{name}: the row gives no value, and it belongs to the key")
        writable = self._table.writable
        for name in given:
            if writable[name].generated:
                raise ValueError(f"{self._name}.{name}: the server computes it, so it can't be written")
        return {writable[name].name: cell for name, cell in given.items()}

    def whole(self, row: Mapping[str, Any], beside: Beside | None = None) -> Cells:
        """One row to insert, with the cells ``beside`` it. Raises ValueError."""
        cells = self.changed(row, beside)
        for name, sure in self._table.sure.items():
            if sure.needed and name not in cells:
                told = f"{self._name}.{self._table.told(name)}"
                raise SurelyRefusedError(f"{told}: the row gives no value; it takes no NULL, and has no default")
        return cells

    def changed(self, row: Mapping[str, Any], beside: Beside | None = None) -> Cells:
        """One row to update, with the cells ``beside`` it. Raises ValueError."""
        cells = self.row(row)
        return cells if beside is None else cells | beside.cells(self._table)

    def key(self, key: Any) -> Cells:
        """One key: a value, a tuple in the key's order, or a dict of the key's columns. Raises ValueError."""
        names = self._keys
        if isinstance(key, Mapping):
            if set(key) != set(names):
                raise ValueError(f"{self._name}: a key has exactly the columns {', '.join(names)}")
            values = [key[n] for n in names]
        elif isinstance(key, tuple) or len(names) > 1:
            values = list(key) if isinstance(key, tuple | list) else [key]
        else:
            values = [key]
        if len(values) != len(names):
            raise ValueError(f"{self._name}: a key has the columns {', '.join(names)}")
        return self.row(dict(zip(names, values, strict=True)))

    def growth(self, rows: Iterable[Cells], most: int) -> int:
        """By how many bytes the values of rows grow where the server stores them. Raises ValueError where one grows by
        more than ``most``."""
        grown = 0
        for name, measure in self._growing.items():
            for row in rows:
                cell = row.get(name)
                more = 0 if cell is None else measure(cell)
                if more > most:
                    told = f"{self._name}.{self._table.told(name)}"
                    raise ValueError(f"{told}: a value grows by at most {most} bytes, not {more}")
                grown += more
        return grown


class BatchBuilder:
    """A batch while its transaction is open. Each method checks everything first: where it raises, nothing of that
    call was written."""

    def __init__(self, tx: Tx, checks: dict[str, WriteChecks], ask: Ask | None = None) -> None:
        self.tx = tx
        self._checks = checks
        self._ask = ask
        self._mutations: list[batch_pb2.DbMutation] = []
        self._touched: dict[tuple[str, str], None] = {}
        self._rows = 0
        self._grown = 0
        self.limits = snapshot_pb2.Limits.FromString(tx.state.limits)

    def _table(self, name: str) -> tuple[DeviceTable, WriteChecks]:
        table = self.tx.tables.named(name)
        if table is None:
            raise choice.not_there(self.tx.state, name)
        row = self.tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
        if row is None:
            raise FileDamaged(f"the description of the table {name} can't be found")
        if row[0] == "new":
            raise NotReady(f"{name} has not been pulled yet")
        checks = self._checks.get(name)
        if checks is None or checks._table is not table:
            checks = self._checks[name] = WriteChecks(table)
        return table, checks

    def _named(self, table: DeviceTable, rows: Sequence[Cells]) -> tuple[dict[str, Cells], dict[str, tuple[Any, ...]]]:
        """Rows by key text, and their stored keys."""
        names = table.table.key_columns
        by_text: dict[str, Cells] = {}
        keys: dict[str, tuple[Any, ...]] = {}
        for row in rows:
            key = tuple(row[n] for n in names)
            text = table.key_text(key)
            if text in keys:
                raise ValueError(f"{table.sql_name}: the row {text} is named twice")
            by_text[text], keys[text] = row, key
        if not keys:
            raise ValueError(f"{table.sql_name}: no rows were given")
        return by_text, keys

    def _checked(
        self,
        checks: WriteChecks,
        rows: Sequence[Any],
        beside: Sequence[Beside],
        check: Callable[[WriteChecks, Any, Beside | None], Cells],
    ) -> list[Cells]:
        """The rows' cells. A row whose refusal depends on knowledge that may be old is checked again by the server's
        present description, where the server can be asked. Raises ValueError."""
        others: Iterable[Beside | None] = beside or repeat(None)
        try:
            return list(map(check, repeat(checks), rows, others))
        except SurelyRefusedError:
            now = None if self._ask is None else self._ask(self.tx, checks.table_name)
            if now is None:
                raise
        return list(map(check, repeat(WriteChecks(now)), rows, others))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Undo one call's writes alone if it raises, inside a batch that may go on."""
        mutations, touched, rows, grown = len(self._mutations), dict(self._touched), self._rows, self._grown
        try:
            with self.tx.savepoint():
                yield
        except BaseException:
            del self._mutations[mutations:]
            self._touched, self._rows, self._grown = touched, rows, grown
            raise

    def insert(self, name: str, rows: Sequence[Mapping[str, Any]], beside: Sequence[Beside] = ()) -> None:
        """Add rows, with what goes ``beside`` each. Raises ValueError, RowExists, NotReady."""
        table, checks = self._table(name)
        by_text, keys = self._named(table, self._checked(checks, rows, beside, WriteChecks.whole))
        most = self.limits.max_key_bytes or limits.MAX_KEY_BYTES
        for text in keys:
            if len(text) * 4 > most and len(text.encode()) > most:
                raise ValueError(f"{name}: a key's text has at most {most} bytes, not {len(text.encode())}")
        shown = table.read_by_text(self.tx.conn, keys)
        if shown:
            raise RowExists(f"{name} has the row {min(shown)} already")
        given = {c for row in by_text.values() for c in row}
        columns = [c for c in table.identities if c in given]
        message = mutation_message(table, MutationType.INSERT, columns, list(by_text.values()), (), ())
        add_former(message, beside)
        self._fits(table, message)
        self._grown += checks.growth(by_text.values(), self.limits.max_value_bytes or limits.MAX_VALUE_BYTES)
        self._apply(table, MutationType.INSERT, by_text, keys, {}, columns)
        self._add(message, by_text)

    def update(self, name: str, rows: Sequence[Mapping[str, Any]], beside: Sequence[Beside] = ()) -> None:
        """Change columns of rows that are shown; each row names its key. Raises ValueError, RowMissing, NotReady."""
        table, checks = self._table(name)
        by_text, keys = self._named(table, self._checked(checks, rows, beside, WriteChecks.changed))
        names = table.table.key_columns
        for place, (text, row) in enumerate(by_text.items()):
            if len(row) == len(names) and not (beside and beside[place].former):
                raise ValueError(f"{name}: the update of the row {text} changes no column")
        shown = self._shown(table, keys)
        given = {c for row in by_text.values() for c in row}
        columns = [c for c in table.identities if c in given]
        index = table.table.index
        # The values before, in a column that is gone, are not known.
        changed = [c for c in columns if c not in names and c in index]
        with believed(_rows_of(name)):
            undo = [{c: shown[text][index[c]] for c in changed if c in row} for text, row in by_text.items()]
            message = mutation_message(table, MutationType.UPDATE, columns, list(by_text.values()), changed, undo)
        add_former(message, beside)
        self._fits(table, message)
        self._grown += checks.growth(by_text.values(), self.limits.max_value_bytes or limits.MAX_VALUE_BYTES)
        with believed(_rows_of(name)):
            self._apply(table, MutationType.UPDATE, by_text, keys, shown, changed)
        self._add(message, by_text)

    def delete(self, name: str, row_keys: Sequence[Any]) -> None:
        """Remove rows that are shown. Raises ValueError, RowMissing, NotReady."""
        table, checks = self._table(name)
        by_text, keys = self._named(table, [checks.key(k) for k in row_keys])
        shown = self._shown(table, keys)
        columns = table.table.column_names
        with believed(_rows_of(name)):
            undo = [dict(zip(columns, shown[text], strict=True)) for text in by_text]
            self._apply(table, MutationType.DELETE, by_text, keys, shown, ())
            message = mutation_message(
                table, MutationType.DELETE, table.table.key_columns, list(by_text.values()), columns, undo
            )
        self._add(message, by_text)

    def _fits(self, table: DeviceTable, message: batch_pb2.DbMutation) -> None:
        """Raise ValueError where a value is above the server's limit."""
        most = self.limits.max_value_bytes or limits.MAX_VALUE_BYTES
        if message.ByteSize() <= most:
            return
        for row in message.rows:
            for column, value in zip(message.columns, row.values, strict=True):
                size = value.ByteSize()
                if size > most:
                    told = f"{table.sql_name}.{table.told(column)}"
                    raise ValueError(f"{told}: a value has at most {most} bytes as sent, not {size}")

    def _shown(self, table: DeviceTable, keys: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Cell, ...]]:
        found = table.read_by_text(self.tx.conn, keys)
        if len(found) < len(keys):
            lacking = next(text for text in keys if text not in found)
            raise RowMissing(f"{table.sql_name} has no row {lacking}")
        load = table.codec.load
        with believed(_rows_of(table.sql_name)):
            return {text: load(row) for text, row in found.items()}

    def _apply(
        self,
        table: DeviceTable,
        kind: MutationType,
        by_text: Mapping[str, Cells],
        keys: Mapping[str, tuple[Any, ...]],
        shown: Mapping[str, tuple[Cell, ...]],
        changed: Iterable[str],
    ) -> None:
        """Write the rows. Keep the row as shown now as the base image of each that no other batch touches."""
        tx = self.tx
        write_bases(tx, table, [(text, shown.get(text)) for text in keys], replace=False)
        store = table.codec.store
        names = set(table.table.key_columns)
        index = table.table.index
        policies = table.policy.columns
        written: list[tuple[Any, ...]] = []
        for text, row in by_text.items():
            old = shown.get(text)
            if kind is MutationType.DELETE:
                new = None
            elif kind is MutationType.INSERT or old is None or policies:
                values = row if kind is MutationType.INSERT else {c: v for c, v in row.items() if c not in names}
                before = None if old is None else {c: old[index[c]] for c in values if c in index}
                new = overlaid(table, old, [RowPart(table.name, text, keys[text], Pending(kind, values, before))])
            else:
                cells = list(old)
                for column, cell in row.items():
                    if column in index:
                        cells[index[column]] = cell
                new = tuple(cells)
            stored = None if new is None else store(new)
            if stored is not None:
                written.append(stored)
            old_stored = None if old is None or not tx.wants_rows else store(old)
            if tx.wants_rows and not table.codec.same(old_stored, stored):
                tell(tx, table, old_stored, stored, _LOCAL)
        with tx.writing(table, len(keys)):
            if kind is MutationType.DELETE:
                tx.conn.executemany(table.delete_sql, list(keys.values()))
            else:
                sql = table.insert_sql if kind is MutationType.INSERT else table.upsert_sql
                tx.conn.executemany(sql, written)

    def _add(self, message: batch_pb2.DbMutation, by_text: Mapping[str, Cells]) -> None:
        self._mutations.append(message)
        self._touched.update(dict.fromkeys((message.table, text) for text in by_text))
        self._rows += len(by_text)

    @property
    def is_empty(self) -> bool:
        return not self._mutations

    def queue(self, now_ms: int) -> str:
        """Queue the gathered mutations; return the batch's id.

        Raises:
            ValueError: the batch is above a limit of the server.
        """
        tx = self.tx
        state = tx.state
        max_mutations = self.limits.max_batch_mutations or limits.MAX_BATCH_MUTATIONS
        max_rows = self.limits.max_batch_rows or limits.MAX_BATCH_ROWS
        max_bytes = self.limits.max_batch_bytes or limits.MAX_BATCH_BYTES
        if len(self._mutations) > max_mutations:
            raise ValueError(f"a batch has at most {max_mutations} mutations, not {len(self._mutations)}")
        if self._rows > max_rows:
            raise ValueError(f"a batch has at most {max_rows} rows, not {self._rows}")
        if self._grown > max_bytes:
            text = f"a batch grows by at most {max_bytes} bytes where the server stores its values, not {self._grown}"
            raise ValueError(f"{text}: numbers with exponents are stored with all of their digits")
        batch_id = next_id(state.last_id, now_ms, state.seen_ms)
        payload = batch_pb2.DbMutationBatch(
            id=batch_id,
            db_name=state.db_name,
            mutations=self._mutations,
            node=state.node,
            schema_version=state.schema_version,
        ).SerializeToString()
        if len(payload) > max_bytes:
            raise ValueError(f"a batch has at most {max_bytes} bytes, not {len(payload)}")
        statements.add(tx.conn, batch_id, payload, state.cursor_ms, self._touched)
        tx.set(last_id=batch_id)
        return batch_id


def _rows_of(table: str) -> str:
    return f"a row of {table}, which a repair of the table mends,"
