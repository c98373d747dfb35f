"""Reads the lake without Spark: what happened to a row, and a table's rows as they were.

Files are read through Arrow's own file systems (a folder, ``s3://``), and only those that a published manifest names.
What the log has beyond the manifest's position comes as changes of the same form (``log_changes``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from anabranch.columnar.file_cells import FileCodec
from anabranch.columnar.file_columns import OWN
from anabranch.columnar.manifest import File, Manifest, TableFiles, epoch_folder
from anabranch.schema import Cell, Table

INSERT, UPDATE, DELETE, NONE = "insert", "update", "delete", "none"
Key = tuple[Cell, ...]
Row = dict[str, Cell]


class LakeError(LookupError):
    """The lake has no such table."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a row. ``row``: the row after it (None: deleted), with the columns that are known. ``before``: what
    its columns were that it changed, or all of a deleted row's. ``complete``: whether all columns are known."""

    position: int
    batch_id: str
    ordinal: int
    node_id: str
    type: str
    key: Key
    changed: tuple[str, ...]
    row: Row | None
    before: Row
    complete: bool

    @property
    def place(self) -> tuple[int, str, int]:
        """Its place in the total order."""
        return self.position, self.batch_id, self.ordinal


class LakeTable:
    """One table of the lake at a manifest."""

    def __init__(self, root: str, manifest: Manifest, table: str, codecs: Sequence[FileCodec]) -> None:
        self.files = table_files(manifest, table)
        self.table: Table = self.files.columns.table
        self._codecs = codecs
        self._names = [column.file_name for column in self.files.columns.columns]
        self._filesystem, path = file_system(root)
        self._folder = f"{path.rstrip('/')}/{epoch_folder(manifest.database, manifest.epoch)}"

    def changes(self, *, key: Key | None = None) -> list[Change]:
        """The changes in the files, of one row or of all, in the order of the log."""
        found = self._rows(self.files.changes, key)
        return _without_ghosts(sorted((self._change(row) for row in found), key=lambda change: change.place))

    def base(self) -> dict[Key, Row]:
        """The rows at the manifest's position; empty where there is no base."""
        latest: dict[Key, tuple[int, Row | None]] = {}
        for cells, own in self._rows(self.files.base.files if self.files.base else (), None):
            key = self._key(cells)
            if key not in latest or latest[key][0] < own["position"]:
                latest[key] = own["position"], None if own["deleted"] else cells
        return {key: row for key, (_, row) in latest.items() if row is not None}

    def _rows(self, files: Iterable[File], key: Key | None) -> Iterable[tuple[Row, dict[str, Any]]]:
        paths = [f"{self._folder}/{file.path}" for file in files]
        if not paths:
            return []
        # Every file's own schema has what it has; a column that came later is NULL in it.
        schema = pa.unify_schemas(
            [ds.dataset(path, format="parquet", filesystem=self._filesystem).schema for path in paths]
        )
        data = ds.dataset(paths, schema=schema, format="parquet", filesystem=self._filesystem)
        return self._read(data.to_table(filter=None if key is None else self._is(key)))

    def _is(self, key: Key) -> ds.Expression:
        found: ds.Expression | None = None
        for i, cell in zip(self.table.key_index, key, strict=True):
            values, _ = self._codecs[i].write([cell])
            one = ds.field(self._names[i]) == values[0]
            found = one if found is None else found & one
        assert found is not None
        return found

    def _read(self, rows: pa.Table) -> Iterable[tuple[Row, dict[str, Any]]]:
        own = rows.column(OWN).combine_chunks().flatten()
        names = [field.name for field in rows.schema.field(OWN).type]
        ours = dict(zip(names, own, strict=True))
        columns = self._cells(rows, ours["exact"].to_pylist())
        before = ours.pop("before", None)
        columns_of_ours = [values.to_pylist() for values in ours.values()]
        plain = [dict(zip(ours, values, strict=True)) for values in zip(*columns_of_ours, strict=True)]
        if before is not None:
            table = pa.Table.from_arrays(before.flatten(), names=[f.name for f in before.type])
            old = self._cells(table, ours["exact_before"].to_pylist())
            for at, one in enumerate(plain):
                one["before"] = {c.name: cells[at] for c, cells in zip(self.table.columns, old, strict=True)}
        return [
            ({c.name: cells[at] for c, cells in zip(self.table.columns, columns, strict=True)}, one)
            for at, one in enumerate(plain)
        ]

    def _cells(self, rows: pa.Table, exact: Sequence[Any]) -> list[list[Cell]]:
        found: list[list[Cell]] = []
        for codec, name in zip(self._codecs, self._names, strict=True):
            if name not in rows.schema.names:
                found.append([None] * rows.num_rows)
                continue
            values = rows.column(name).combine_chunks()
            found.append(codec.read(values, [dict(texts or {}).get(name) for texts in exact]))
        return found

    def _key(self, row: Mapping[str, Cell]) -> Key:
        return tuple(row[name] for name in self.table.key_columns)

    def _change(self, found: tuple[Row, dict[str, Any]]) -> Change:
        row, own = found
        changed = tuple(own["changed"] or ())
        taken = self.table.column_names if own["type"] == DELETE else changed if own["type"] == UPDATE else ()
        before = {name: own.get("before", {}).get(name) for name in taken if name not in self.table.key_columns}
        return Change(
            own["position"],
            own["batch"],
            own["ordinal"],
            own["node"],
            own["type"],
            self._key(row),
            changed,
            None if own["type"] == DELETE else row,
            before,
            own["complete"],
        )


def _without_ghosts(changes: Iterable[Change]) -> list[Change]:
    """Changes in the order of the log. A batch that left a row as it was may have touched one that was deleted, which
    files show without values: it has no row."""
    done: list[Change] = []
    gone: set[Key] = set()
    for change in changes:
        if change.type == NONE and change.key in gone:
            change = _with(change, None, change.before, change.complete)
        elif change.type == DELETE:
            gone.add(change.key)
        else:
            gone.discard(change.key)
        done.append(change)
    return done


def file_system(root: str) -> tuple[fs.FileSystem, str]:
    """Where a lake's root lies: a file system, and the path in it. Raises OSError, ValueError."""
    place = root.removeprefix("file:")
    if place.startswith("/"):
        return fs.LocalFileSystem(), place
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(place.replace("s3a://", "s3://", 1))
    return found


def table_files(manifest: Manifest, table: str) -> TableFiles:
    """The files of a table. Raises LakeError where the lake has none of that name."""
    if table not in manifest.tables:
        raise LakeError(f'the lake has no table "{table}"; it has {", ".join(sorted(manifest.tables)) or "none"}')
    return manifest.tables[table]


def follow(changes: Iterable[Change], table: Table, tail: Iterable[Change]) -> list[Change]:
    """Changes of the files, then those of the log's tail with the values before put in where the files know them.
    ``tail`` is in the order of the log; of an update its ``row`` has the changed columns alone."""
    done = list(changes)
    state: dict[Key, tuple[Row | None, bool]] = {change.key: (change.row, change.complete) for change in done}
    for change in tail:
        row, known = state.get(change.key, (None, False))
        if change.type == UPDATE:
            before = {name: (row or {}).get(name) for name in change.changed}
            change = _with(change, {**(row or {}), **(change.row or {})}, before, known)
        elif change.type == DELETE:
            before = {n: c for n, c in (row or {}).items() if n not in table.key_columns}
            change = _with(change, None, before, known)
        elif change.type == NONE:
            change = _with(change, row, {}, known)
        state[change.key] = change.row, change.complete
        done.append(change)
    return done


def _with(change: Change, row: Row | None, before: Row, complete: bool) -> Change:
    return Change(
        change.position,
        change.batch_id,
        change.ordinal,
        change.node_id,
        change.type,
        change.key,
        change.changed,
        row,
        before,
        complete,
    )


def as_of(table: Table, base: Mapping[Key, Row], changes: Iterable[Change], position: int) -> dict[Key, Row]:
    """A table's rows at ``position``, by key. ``changes`` are all there are, in the order of the log; ``base`` the rows
    after all or some of them.

    A row that changed at or before ``position`` is what its last such change left. One that changed later only is what
    it was before its first change. One that never changed is as the base has it. What left a row as it was says nothing
    of it: there may be no such row.
    """
    rows = dict(base)
    last: dict[Key, Change] = {}
    later: dict[Key, Change] = {}
    for change in changes:
        if change.type == NONE:
            continue
        if change.position <= position:
            last[change.key] = change
        else:
            later.setdefault(change.key, change)
    for key, change in later.items():
        _put(rows, key, _row_before(table, change))
    for key, change in last.items():
        _put(rows, key, change.row)
    return rows


def _put(rows: dict[Key, Row], key: Key, row: Row | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _row_before(table: Table, change: Change) -> Row | None:
    if change.type == DELETE:
        return {**dict(zip(table.key_columns, change.key, strict=True)), **change.before}
    if change.type == INSERT or change.row is None:
        return None
    return {**change.row, **change.before}
