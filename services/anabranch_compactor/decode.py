"""Executors' work on cells: log rows, pulled rows and conflicts to columns of files, and files to sums.

Everything comes and goes in record batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from anabranch.columnar.encode import initial_column
from anabranch.columnar.proof import NAME_SEPARATOR
from anabranch.v1 import value_pb2
from anabranch.values import Cell, Table, key_cells, key_text
from anabranch.values.messages import NotGivenError, column_reader, column_writer
from anabranch.values.parquet import FileCodec, file_codecs, file_type, may_need_text
from anabranch.wire.effects import INSERT
from anabranch_compactor.effect_columns import DecodedColumn, EffectDecoder, exact_columns

Batches = Iterator[pa.RecordBatch]
Decoder = Callable[[pa.RecordBatch], Batches]
Columns = list[list[Cell]]


def _arrays(table: Table, codecs: Sequence[FileCodec], columns: Columns) -> tuple[list[pa.Array], list[str]]:
    """The columns ``c…`` and ``x…`` of cells, and their names."""
    written = [codec.write(cells) for codec, cells in zip(codecs, columns, strict=True)]
    return _named(table, written, len(columns[0]))


def _named(table: Table, written: Sequence[tuple[pa.Array, Any]], rows: int) -> tuple[list[pa.Array], list[str]]:
    arrays = [array for array, _ in written]
    names = [f"c{i}" for i in range(len(written))]
    for i, column in enumerate(table.columns):
        if may_need_text(column):
            exact = written[i][1]
            arrays.append(pa.nulls(rows, pa.string()) if exact is None else pa.array(exact, pa.string()))
            names.append(f"x{i}")
    return arrays, names


def log_decoder(table: Table) -> Decoder:
    """Log rows to changes: our columns (``changed``: names with NAME_SEPARATOR), then the cells that the effect gives;
    the initial value of a column that came later than an insert; NULL for the others. A batch gives one for each form
    of its effects."""
    decoder, with_text = EffectDecoder(table), exact_columns(table)
    types = [file_type(column) for column in table.columns]

    def decode(batch: pa.RecordBatch) -> Batches:
        for form in decoder.decode(batch.column("effect")):
            count = len(form.rows)
            mine = batch if count == batch.num_rows else batch.take(pa.array(form.rows))
            cells = form.cells
            if form.type == INSERT:
                cells = {**_from_before(table, mine.column("position"), cells), **cells}
            arrays = [mine.column(n) for n in ("position", "batch_id", "ordinal", "node_id", "type")]
            arrays.append(pa.repeat(pa.scalar(NAME_SEPARATOR.join(form.changed)), count))
            names = ["position", "batch", "ordinal", "node", "kind", "changed"]
            for i, kind in enumerate(types):
                arrays.append(cells[i].values if i in cells else pa.nulls(count, kind))
                names.append(f"c{i}")
            for i in with_text:
                exact = cells[i].exact if i in cells else None
                arrays.append(pa.nulls(count, pa.string()) if exact is None else exact)
                names.append(f"x{i}")
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    return decode


def _from_before(table: Table, positions: pa.Array, given: Collection[int]) -> dict[int, DecodedColumn]:
    """The values of inserted rows in columns that came later."""
    found = {}
    for i, column in enumerate(table.columns):
        if column.initial and i not in given:
            values, exact = initial_column(column, len(positions))
            older = pc.less(positions, column.added_position)
            none = pa.scalar(None, pa.string())
            values = pc.if_else(older, values, pa.scalar(None, values.type))
            found[i] = DecodedColumn(values, pc.if_else(older, exact, none) if may_need_text(column) else None)
    return found


def pulled(table: Table, batches: Batches) -> Batches:
    """Rows as a Pull carries them to ``c…`` and ``x…``."""
    codecs = file_codecs(table.columns)
    for batch in batches:
        written = [codec.from_pull(values) for codec, values in zip(codecs, batch.columns, strict=True)]
        arrays, names = _named(table, written, batch.num_rows)
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def without(table: Table, batch: pa.RecordBatch, keys: Collection[str]) -> pa.RecordBatch:
    """The rows (``c…`` and ``x…``) but for those of some keys (as texts)."""
    codecs, there = file_codecs(table.columns), set(batch.schema.names)
    of_key = zip(*(_cells(codecs[i], batch, i, there) for i in table.key_index), strict=True)
    return batch.filter(pa.array([key_text(key) not in keys for key in of_key], pa.bool_()))


def as_batch(table: Table, rows: Sequence[Sequence[Cell]]) -> pa.RecordBatch:
    """Rows of cells as ``c…`` and ``x…``."""
    columns: Columns = [[row[i] for row in rows] for i in range(len(table.columns))]
    arrays, names = _arrays(table, file_codecs(table.columns), columns)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def conflict_decoder(table: Table) -> Decoder:
    """Conflicts to rows that give the key and the losing value alone. ``untyped`` has a value as it is where its column
    does not give it back byte by byte: a losing value has never been in Postgres, so it may be written otherwise
    (``1e2``), or be one that the column can't hold; or its column may be gone from the table, or it is not given."""
    codecs = file_codecs(table.columns)
    readers = {c.name: (i, column_reader(c)) for i, c in enumerate(table.columns) if i not in table.key_index}
    writers = [column_writer(column) for column in table.columns]

    def typed(place: int, read: Callable[[value_pb2.Value], Cell], data: Sequence[bytes]) -> list[list[Cell]]:
        """For each value the cell that the file column gives back as it, where there is one."""
        try:
            values, exact = codecs[place].write([read(value_pb2.Value.FromString(one)) for one in data])
            cells = codecs[place].read(values, exact)
            written = [writers[place](cell).SerializeToString() for cell in cells]
        except (NotGivenError, DecodeError, ValueError, OverflowError, TypeError, pa.ArrowException):
            # One of them, or more: they are looked at one by one.
            return [[]] if len(data) == 1 else [typed(place, read, [one])[0] for one in data]
        # A number that is of another scale than its column's, or of another form, was never printed by Postgres.
        odd = [text is not None and codecs[place].is_odd(text) for text in exact or [None] * len(data)]
        given = zip(cells, written, data, odd, strict=True)
        return [[cell] if back == one and not is_odd else [] for cell, back, one, is_odd in given]

    def decode(batch: pa.RecordBatch) -> Batches:
        rows = batch.num_rows
        columns: Columns = [[None] * rows for _ in table.columns]
        untyped: list[bytes | None] = [None] * rows
        keys, names = batch.column("key").to_pylist(), batch.column("column_name").to_pylist()
        sent = batch.column("losing_value").to_pylist()
        of_column: dict[str, list[int]] = {}
        for row, name in enumerate(names):
            of_column.setdefault(name, []).append(row)
            for i, cell in zip(table.key_index, key_cells(table, keys[row]), strict=True):
                columns[i][row] = cell
        for name, places in of_column.items():
            data = [sent[row] for row in places]
            known = readers.get(name)
            found = [[] for _ in data] if known is None else typed(*known, data)
            for row, cells in zip(places, found, strict=True):
                if known is None or not cells:
                    untyped[row] = sent[row]
                else:
                    columns[known[0]][row] = cells[0]
        arrays, names_of_cells = _arrays(table, codecs, columns)
        ours = [name for name in batch.schema.names if name not in ("table_id", "losing_value")]
        yield pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in ours), pa.array(untyped, pa.binary()), *arrays],
            names=[*ours, "untyped", *names_of_cells],
        )

    return decode


def _cells(codec: FileCodec, batch: pa.RecordBatch, place: int, there: Collection[str]) -> list[Cell]:
    exact = f"x{place}"
    return list(codec.read(batch.column(f"c{place}"), batch.column(exact).to_pylist() if exact in there else None))
