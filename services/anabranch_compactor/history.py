"""What a row was before and after each change, for all changes of a part at once.

An effect gives what it changed. Put in order behind the row as it was before the run (kind OLD, where known), each
column has the last value that any change gave it: what counts is where that value stands, and such places are found for
a whole column by running maxima. A change is *complete* when the row's other columns are known: always but for changes
of rows older than the log and the table's first base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columnar.file_columns import OWN
from anabranch_compactor.encode import NAME_SEPARATOR, ColumnEncoder
from anabranch_compactor.scan import Flags, Places
from anabranch_compactor.shape import DELETE, INSERT, KINDS, OLD, UPDATE, Shape

ORDER = ("position", "batch", "ordinal")
SLICE_BYTES = 16 * 1024 * 1024
SLICE_ROWS = 131_072
_ROW_BYTES = 128
"""What a row takes beside its texts and bytes, about."""
_KIND_NAMES = pa.array([None, *KINDS.values()], pa.string())


def in_order(shape: Shape, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows by key, and those of one key in the order of the log."""
    by = [(name, "ascending") for name in (*shape.sorting, *ORDER)]
    return rows.take(pc.sort_indices(rows, sort_keys=by))


@dataclass(frozen=True, slots=True)
class _Filled:
    """Where each change (not those of kind OLD) stands among the rows, and where its columns' values after and before
    it do, -1 for NULL."""

    rows: Places
    after: dict[int, Places]
    before: dict[int, Places]
    complete: Flags
    forms: Places
    names: list[list[str]]


def _filled(shape: Shape, rows: pa.RecordBatch, encoder: ColumnEncoder) -> _Filled:
    count = rows.num_rows
    kind = rows.column("kind").to_numpy()
    changed = rows.column("changed").fill_null("").dictionary_encode()
    names = [text.split(NAME_SEPARATOR) if text else [] for text in changed.dictionary.to_pylist()]
    forms = changed.indices.to_numpy().astype(np.int64)
    place, keys = np.arange(count), encoder.keys(rows)
    first = np.ones(count, np.bool_)
    first[1:] = pc.not_equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy(zero_copy_only=False)
    begin = np.maximum.accumulate(np.where(first, place, 0))

    def earlier(says: Flags) -> Places:
        """The last row of the same key before each that says something; -1 for none."""
        last = np.maximum.accumulate(np.where(says, place, -1))
        before = np.concatenate(([-1], last[:-1]))
        return np.where(before >= begin, before, -1)

    whole = (kind == OLD) | (kind == INSERT) | (kind == DELETE)
    kept = np.flatnonzero(kind != OLD)
    after, before = {}, {}
    for i in shape.rest:
        given = (kind == UPDATE) & np.array([shape.table.columns[i].name in one for one in names], np.bool_)[forms]
        last = earlier(whole | given)
        now = np.where(given | (kind == INSERT), place, np.where(kind == DELETE, -1, last))
        after[i], before[i] = now[kept], np.where(given | (kind == DELETE), last, -1)[kept]
    complete = ((kind == INSERT) | (earlier(whole) >= 0))[kept]
    return _Filled(kept, after, before, complete, forms[kept], names)


def changes_of(shape: Shape, rows: pa.RecordBatch, encoder: ColumnEncoder) -> Iterator[pa.Table]:
    """The rows of ``changes/`` for rows in order (``Shape.log``, those of kind OLD among them), in slices that fit in
    memory: a short effect stands for a row that may be long."""
    filled = _filled(shape, rows, encoder)
    schema = shape.changes_schema
    kinds = _KIND_NAMES.take(rows.column("kind").take(pa.array(filled.rows)))
    lists = pa.array(filled.names, pa.list_(pa.string()))
    for start, end in _slices(shape, rows, filled):
        here = slice(start, end)
        chosen = pa.array(filled.rows[here])

        def after(i: int, part: str = "c", here: slice = here, chosen: pa.Array = chosen) -> pa.Array:
            return rows.column(f"{part}{i}").take(_index(filled.after[i][here]) if i in filled.after else chosen)

        def before(i: int, part: str = "c", here: slice = here) -> pa.Array:
            return rows.column(f"{part}{i}").take(_index(filled.before[i][here]))

        own = {name: rows.column(name).take(chosen) for name in (*ORDER, "node")}
        own["type"] = kinds.slice(start, end - start)
        own["changed"] = lists.take(pa.array(filled.forms[here]))
        own["complete"] = pa.array(filled.complete[here])
        own["exact"] = exact_map(shape, [(i, after(i, "x")) for i in shape.with_text], end - start)
        old = [(i, before(i, "x")) for i in shape.with_text if i in filled.before]
        own["exact_before"] = exact_map(shape, old, end - start)
        fields = schema.field(OWN).type
        if shape.rest:
            inner = fields.field("before").type
            own["before"] = pa.StructArray.from_arrays([before(i) for i in shape.rest], fields=list(inner))
        struct = pa.StructArray.from_arrays([own[one.name] for one in fields], fields=list(fields))
        yield pa.Table.from_arrays([*(after(i) for i in range(shape.width)), struct], schema=schema)


def _index(places: Places) -> pa.Array:
    return pa.array(places, mask=places < 0)


def _slices(shape: Shape, rows: pa.RecordBatch, filled: _Filled) -> Iterator[tuple[int, int]]:
    sizes = np.full(len(filled.rows), _ROW_BYTES, np.int64)
    for i in range(shape.width):
        values = rows.column(f"c{i}")
        if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
            continue
        lengths = np.append(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False), 0)
        places = [filled.after[i], filled.before[i]] if i in filled.after else [filled.rows]
        for one in places:
            sizes += lengths[one]
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        most = ends[start] - sizes[start] + SLICE_BYTES
        end = min(max(start + 1, int(np.searchsorted(ends, most))), start + SLICE_ROWS)
        end = min(end, len(ends))
        yield start, end
        start = end


def exact_map(shape: Shape, texts: Sequence[tuple[int, pa.Array]], count: int) -> pa.Array:
    """The column of maps of exact texts, NULL where a row needs none. ``texts``: place and texts of each column."""
    needed = [(shape.names[i], values) for i, values in texts if values.null_count < len(values)]
    kind = pa.map_(pa.string(), pa.string())
    if not needed:
        return pa.nulls(count, kind)
    maps: list[Any] = [None] * count
    for name, values in needed:
        for at in np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist():
            maps[at] = [*(maps[at] or ()), (name, values[at].as_py())]
    return pa.array(maps, kind)
