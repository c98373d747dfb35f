"""Reads the lake without Spark: the changes of a row, and a table's rows at a position.

Files are read through Arrow's own file systems (a folder, ``s3://``), and only those that a published manifest names.
Changes in the log beyond the manifest's position have the same form. A table that was registered anew has changes of
several registrations, each with columns of its own: writes between them were not captured, so that one registration
gives no information on the rows of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from anabranch.columnar import row_states
from anabranch.columnar.file_columns import OWN, FileTable, file_table
from anabranch.columnar.manifest import Base, EarlierBase, File, Manifest, TableFiles, epoch_folder
from anabranch.columnar.row_states import DELETE, NONE, UPDATE, Change, Key, Row
from anabranch.errors import ServerError
from anabranch.values import Cell, Column, Table
from anabranch.values.parquet import FileCodec

Codecs = Callable[[Iterable[Column]], Sequence[FileCodec]]
_AFTER_ALL = 2**63 - 1


class LakeError(ServerError, LookupError):
    """The lake has no such table."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration of a table: changes in (``after``, ``upto``] are of ``columns``. ``base``: its rows at
    ``as_of``; ``earlier``: those before it lost columns, in their order."""

    table_id: int
    after: int
    upto: int
    columns: FileTable
    base: Base | None
    as_of: int
    earlier: tuple[EarlierBase, ...] = ()

    @property
    def table(self) -> Table:
        """The table as it is, or was at its end."""
        return self.columns.table

    @property
    def history(self) -> FileTable:
        """The table with all columns that it ever had."""
        return self.columns.with_former()

    def has(self, position: int) -> bool:
        """Whether changes at a position are of this registration."""
        return self.after < position <= self.upto


def registrations(manifest: Manifest, files: TableFiles) -> list[Registration]:
    """The registrations of a table, in their order. The last one is still open, unless it has ended, too."""
    found: list[Registration] = []
    after = -1
    for one in files.ended or ():
        kept = one.columns, one.base, one.as_of, one.earlier
        found.append(Registration(one.table_id, after, one.last_position, *kept))
        after = one.last_position
    if not found or found[-1].table_id != files.table_id:
        kept = files.columns, files.base, manifest.to_position, files.earlier
        found.append(Registration(files.table_id, after, _AFTER_ALL, *kept))
    return found


class LakeTable:
    """One table of the lake at a manifest."""

    def __init__(self, root: str, manifest: Manifest, table: str, codecs: Codecs, now: Table | None = None) -> None:
        """``now``: the table as it is by now, where it has changed since the manifest."""
        self.files = table_files(manifest, table)
        if now is not None and now.id == self.files.table_id:
            self.files = replace(self.files, columns=file_table(now, self.files.columns.ever))
        self.registrations = registrations(manifest, self.files)
        self._codecs = codecs
        self._filesystem, path = file_system(root)
        self._folder = f"{path.rstrip('/')}/{epoch_folder(manifest.database, manifest.epoch)}"

    @property
    def table(self) -> Table:
        """The table as it is registered now, or as it was last registered."""
        return self.registrations[-1].table

    def registration_at(self, position: int) -> Registration:
        """The registration that held at a position; after the end of the last one, that one."""
        return next((one for one in self.registrations if position <= one.upto), self.registrations[-1])

    def changes(self, of: Registration, *, key: Key | None = None) -> list[Change]:
        """The changes of a registration in the files, of one row or of all, in the order of the log, with the columns
        that the files hold (``row_states`` adds known ones)."""
        files = (f for f in self.files.changes if f.last_position > of.after and f.first_position <= of.upto)
        columns = row_states.Columns(of.history.table)
        found = (_change(columns, *row) for row in self._rows(of, files, key))
        return sorted((change for change in found if of.has(change.position)), key=lambda change: change.place)

    def bases(self, of: Registration, *, key: Key | None = None) -> list[row_states.BaseRows]:
        """The rows of a registration's bases, of one key or all, in the order of their positions."""
        kept = [(one.base, one.as_of) for one in of.earlier]
        if of.base is not None:
            kept.append((of.base, of.as_of))
        return [self._base(of, base, as_of, key) for base, as_of in kept]

    def _base(self, of: Registration, base: Base, as_of: int, key: Key | None) -> row_states.BaseRows:
        columns, latest = row_states.Columns(of.history.table), dict[Key, tuple[int, Row | None]]()
        for cells, own in self._rows(of, base.files, key):
            found = _key(of.table, cells)
            if found not in latest or latest[found][0] < own["position"]:
                latest[found] = own["position"], None if own["deleted"] else columns.known(as_of, cells)
        return row_states.BaseRows({key: row for key, (_, row) in latest.items() if row is not None}, as_of)

    def rows(self) -> dict[Key, Row]:
        """The rows at the manifest's position, by key, in the columns of now; none where there is no base."""
        of = self.registrations[-1]
        if of.base is None:
            return {}
        rows = self._base(of, of.base, of.as_of, None).rows
        return {key: {name: row[name] for name in of.table.column_names} for key, row in rows.items()}

    def whole_changes(self, of: Registration, tail: Iterable[Change] = (), *, key: Key | None = None) -> list[Change]:
        """A registration's changes in the files and then those of ``tail``, with all known columns of their rows."""
        mine = [*self.changes(of, key=key), *(change for change in tail if of.has(change.position))]
        return row_states.whole_changes(of.history.table, mine, self.bases(of, key=key))

    def as_of(self, position: int, tail: Iterable[Change] = ()) -> dict[Key, Row]:
        """The table's rows at a position, by key, each with the columns of then that are known."""
        of = self.registration_at(position)
        mine = [*self.changes(of), *(change for change in tail if of.has(change.position))]
        return row_states.as_of(of.history.table, self.bases(of), mine, position)

    def _rows(self, of: Registration, files: Iterable[File], key: Key | None) -> Iterator[tuple[Row, dict[str, Any]]]:
        held = of.history
        columns = {one.file_name: one.column for one in held.ever}
        codecs = dict(zip(columns, self._codecs(columns.values()), strict=True))
        chosen = None if key is None else _is(of.columns, codecs, key)
        for file in files:
            # Each file has the columns of its time.
            data = ds.dataset(f"{self._folder}/{file.path}", format="parquet", filesystem=self._filesystem)
            there = [name for name in (*held.sources(), OWN) if name in data.schema.names]
            for row in _read(held, codecs, data.to_table(columns=there, filter=chosen)):
                if key is None or _key(of.table, row[0]) == key:
                    yield row


def _is(files: FileTable, codecs: Mapping[str, FileCodec], key: Key) -> ds.Expression:
    """A filter for rows that may have a key. A value that a column can't hold is NULL; it is compared after reading."""
    found: ds.Expression | None = None
    for i, cell in zip(files.table.key_index, key, strict=True):
        values, exact = codecs[files.names[i]].write([cell])
        field = ds.field(files.names[i])
        one = field.is_null() if exact is not None else field == values[0]
        found = one if found is None else found & one
    assert found is not None
    return found


def _read(files: FileTable, codecs: Mapping[str, FileCodec], rows: pa.Table) -> Iterable[tuple[Row, dict[str, Any]]]:
    own = rows.column(OWN).combine_chunks().flatten()
    ours = dict(zip([field.name for field in rows.schema.field(OWN).type], own, strict=True))
    columns = _cells(files, codecs, rows, ours["exact"].to_pylist())
    before = ours.pop("before", None)
    columns_of_ours = [values.to_pylist() for values in ours.values()]
    plain = [dict(zip(ours, values, strict=True)) for values in zip(*columns_of_ours, strict=True)]
    if before is not None:
        inner = pa.Table.from_arrays(before.flatten(), names=[f.name for f in before.type])
        old = _cells(files, codecs, inner, ours["exact_before"].to_pylist())
        for at, one in enumerate(plain):
            one["before"] = {name: cells[at] for name, cells in old.items()}
    return [({name: cells[at] for name, cells in columns.items()}, one) for at, one in enumerate(plain)]


def _cells(
    files: FileTable, codecs: Mapping[str, FileCodec], rows: pa.Table, exact: Sequence[Any]
) -> dict[str, list[Cell]]:
    """The cells of each column; initial values, or NULL, where the file lacks it."""
    found: dict[str, list[Cell]] = {}
    for now, places in zip(files.columns, files.places, strict=True):
        name = next((one.file_name for one in places if one.file_name in rows.schema.names), None)
        if name is None:
            found[now.column.name] = [*(now.column.initial or (None,))] * rows.num_rows
            continue
        values = rows.column(name).combine_chunks()
        found[now.column.name] = codecs[name].read(values, [dict(texts or {}).get(name) for texts in exact])
    return found


def _key(table: Table, row: Mapping[str, Cell]) -> Key:
    return tuple(row[name] for name in table.key_columns)


def _change(columns: row_states.Columns, row: Row, own: Mapping[str, Any]) -> Change:
    """A change with the columns that its row in a file surely gives: in an incomplete row, NULL also stands for values
    that are not known."""
    kind, changed, complete = own["type"], tuple(own["changed"] or ()), own["complete"]
    there = columns.at(own["position"])
    names = there if kind == DELETE else changed if kind == UPDATE else ()
    old = own.get("before") or {}
    before = {name: old.get(name) for name in names if name not in columns.key} if complete else {}
    given = there if complete or kind not in (UPDATE, NONE) else [*columns.key, *changed]
    row = {name: row[name] for name in given}
    place = (own["position"], own["batch"], own["ordinal"], own["node"])
    key = tuple(row[name] for name in columns.key)
    return Change(*place, kind, key, changed, None if kind == DELETE else row, before, complete)


def file_system(root: str) -> tuple[fs.FileSystem, str]:
    """The file system of a lake's root, and the path in it. Raises OSError, ValueError."""
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
