"""Computes each row before and after each change, for all changes of a part at once.

An effect gives what it changed. Put in order behind the row as it was before the run (kind OLD, where known), each
column has the last value that any change gave it: what counts is where that value stands, and such places are found for
a whole column by running maxima. A change is *complete* when the row's other columns are known: always but for changes
of rows older than the log and the table's first base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columnar.encode import ColumnEncoder
from anabranch.columnar.file_columns import EXACT_TEXTS, KINDS, OWN
from anabranch.columnar.proof import NAME_SEPARATOR
from anabranch_compactor.scan import Flags, Places
from anabranch_compactor.shape import DELETE, INSERT, NONE, OLD, UPDATE, Shape

ORDER = ("position", "batch", "ordinal")
SLICE_BYTES = 16 * 1024 * 1024
SLICE_ROWS = 131_072
_ROW_BYTES, _CELL_BYTES = 80, 16
"""About how many bytes a row takes beside its texts and bytes, and each of its columns: after the change, and before
it."""
_KIND_NAMES = pa.array([None, *KINDS.values()], pa.string())


def in_order(shape: Shape, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows by key, and those of one key in the order of the log."""
    by = [(name, "ascending") for name in (*shape.sorting, *ORDER)]
    return rows.take(pc.sort_indices(rows, sort_keys=by))


@dataclass(frozen=True, slots=True)
class Filled:
    """Rows in order, with where each column's values after and before each of them stand among the rows, -1 for NULL.
    ``keys`` are encoded; ``starts``: the place of the first row of each key. ``forms`` are places in ``names``, the
    names of the changed columns."""

    rows: pa.RecordBatch
    kind: npt.NDArray[np.int16]
    keys: pa.Array
    starts: Places
    after: dict[int, Places]
    before: dict[int, Places]
    complete: Flags
    forms: Places
    names: list[list[str]]


def filled(shape: Shape, rows: pa.RecordBatch, encoder: ColumnEncoder) -> Filled:
    """Changes in order, and rows of kind OLD before those of the same key, filled in."""
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
    position, ends = rows.column("position").to_numpy(), shape.file_table.ends
    after, before = {}, {}
    for i in shape.rest:
        given = (kind == UPDATE) & np.array([shape.table.columns[i].name in one for one in names], np.bool_)[forms]
        last = earlier(whole | given)
        after[i] = np.where(given | (kind == INSERT), place, np.where(kind == DELETE, -1, last))
        before[i] = np.where(given | (kind == DELETE), last, -1)
        if i in ends:
            # From where the column was dropped on there is no value of it.
            gone = position >= ends[i]
            after[i], before[i] = np.where(gone, -1, after[i]), np.where(gone, -1, before[i])
    complete = (kind == INSERT) | (earlier(whole) >= 0)
    return Filled(rows, kind, keys, np.flatnonzero(first), after, before, complete, forms, names)


def changes_of(shape: Shape, history: Filled) -> Iterator[pa.Table]:
    """The rows of ``changes/``, in slices that fit in memory: a short effect stands for a row that may be long."""
    rows = history.rows
    kept = np.flatnonzero(history.kind != OLD)
    schema = shape.changes_schema
    lists = pa.array(history.names, pa.list_(pa.string()))
    for chosen in slices(shape, history, kept, (history.after, history.before)):
        at = pa.array(chosen)

        def after(i: int, part: str = "c", chosen: Places = chosen) -> pa.Array:
            return _values(history, part, i, chosen)

        def before(i: int, part: str = "c", chosen: Places = chosen) -> pa.Array:
            return rows.column(f"{part}{i}").take(_index(history.before[i][chosen]))

        own = {name: rows.column(name).take(at) for name in (*ORDER, "node")}
        own["type"] = _KIND_NAMES.take(pa.array(history.kind[chosen]))
        own["changed"] = lists.take(pa.array(history.forms[chosen]))
        own["complete"] = pa.array(history.complete[chosen])
        own["exact"] = exact_map(shape, [(i, after(i, "x")) for i in shape.with_text], len(chosen))
        old = [(i, before(i, "x")) for i in shape.with_text if i in history.before]
        own["exact_before"] = exact_map(shape, old, len(chosen))
        fields = schema.field(OWN).type
        if shape.rest:
            inner = fields.field("before").type
            own["before"] = pa.StructArray.from_arrays([before(i) for i in shape.rest], fields=list(inner))
        struct = pa.StructArray.from_arrays([own[one.name] for one in fields], fields=list(fields))
        yield pa.Table.from_arrays([*(after(i) for i in range(shape.width)), struct], schema=schema)


def left(history: Filled) -> Places:
    """The last change of each key that changes anything: what it leaves is the row as it is now."""
    says = (history.kind != OLD) & (history.kind != NONE)
    last = np.maximum.reduceat(np.where(says, np.arange(len(says)), -1), history.starts)
    return last[last >= 0]


def replaced(history: Filled, chosen: Places) -> Places:
    """The rows of kind OLD of the same keys as some changes, each the first one of its key."""
    begin: Places = history.starts[np.searchsorted(history.starts, chosen, side="right") - 1]
    there: Places = begin[history.kind[begin] == OLD]
    return there


def rows_left(shape: Shape, history: Filled, chosen: Places) -> pa.RecordBatch:
    """The rows that some changes left, as rows of a base: ``c…`` and ``x…``, ``position`` and ``deleted``."""
    cells = {f"c{i}": _values(history, "c", i, chosen) for i in range(shape.width)}
    texts = {f"x{i}": _values(history, "x", i, chosen) for i in shape.with_text}
    position = history.rows.column("position").take(pa.array(chosen))
    deleted = pa.array(history.kind[chosen] == DELETE)
    return pa.RecordBatch.from_pydict({**cells, **texts, "position": position, "deleted": deleted})


def _values(history: Filled, part: str, place: int, chosen: Places) -> pa.Array:
    """The values of a column after some changes."""
    at = _index(history.after[place][chosen]) if place in history.after else pa.array(chosen)
    return history.rows.column(f"{part}{place}").take(at)


def _index(places: Places) -> pa.Array:
    return pa.array(places, mask=places < 0)


def slices(shape: Shape, history: Filled, chosen: Places, sources: Sequence[Mapping[int, Places]]) -> Iterator[Places]:
    """Some changes, so many at a time that their values (``sources``: where they stand) fit in memory."""
    sizes = np.full(len(chosen), _ROW_BYTES + _CELL_BYTES * shape.width, np.int64)
    for i in range(shape.width):
        values = history.rows.column(f"c{i}")
        if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
            continue
        lengths = np.append(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False), 0)
        for one in [source[i][chosen] for source in sources] if i in history.after else [chosen]:
            sizes += lengths[one]
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        most = ends[start] - sizes[start] + SLICE_BYTES
        end = min(max(start + 1, int(np.searchsorted(ends, most))), start + SLICE_ROWS, len(ends))
        yield chosen[start:end]
        start = end


def exact_map(shape: Shape, texts: Sequence[tuple[int, pa.Array]], count: int) -> pa.Array:
    """The column of maps of exact texts, NULL where a row needs none. ``texts``: place and texts of each column."""
    needed = [(shape.names[i], values) for i, values in texts if values.null_count < len(values)]
    if not needed:
        return pa.nulls(count, EXACT_TEXTS)
    maps: list[Any] = [None] * count
    for name, values in needed:
        for at in np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist():
            maps[at] = [*(maps[at] or ()), (name, values[at].as_py())]
    return pa.array(maps, EXACT_TEXTS)
