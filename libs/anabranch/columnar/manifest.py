"""Manifests: the files that make up the lake at a position.

A manifest is self-contained: it names every live file, not only those of its own run. Paths are relative to the folder
of the database's epoch, ``<root>/<database>/<epoch>``. A reader takes the newest published manifest and reads only the
files that it names; any other file there belongs to a run that was not published, or is no longer needed.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from anabranch.columnar.file_columns import FileColumn, FileTable
from anabranch.columnar.proof import Sum
from anabranch.errors import ServerError
from anabranch.v1 import value_pb2
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.messages import column_reader, column_writer
from anabranch.values.postgres_text import cell_text
from anabranch.values.table import FormerColumn

FORMAT = 3
_READ = (1, 2, 3)
"""1 is of a release whose bases have their rows in other buckets: they are read as absent, and pulled anew. 2 is of
one that knows no change of a table: a manifest without such a change is still written as 2."""
MANIFESTS = "_manifests"


class ManifestError(ServerError, ValueError):
    """A manifest that this release can't read."""


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file. ``total``: the sum of its effects' (rows') hashes, in hexadecimal. ``bucket`` and ``delta`` are a
    base file's: a delta has the rows of one run that its bucket's earlier file has with other values, or lacks."""

    path: str
    rows: int
    bytes: int
    total: str
    first_position: int
    last_position: int
    bucket: int = 0
    delta: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """The proven sum of the rows of one bucket."""

    count: int = 0
    total: str = "0"

    @property
    def sum(self) -> Sum:
        """As a sum."""
        return Sum(self.count, int(self.total, 16))


@dataclass(frozen=True, slots=True)
class Base:
    """The rows of a table at the manifest's position; a row's bucket is CRC-32 of the values of its key's
    columns, as ``anabranch.values.canonical`` encodes them, one behind the other, modulo their number."""

    buckets: tuple[Bucket, ...]
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlierBase:
    """The rows of a table at ``as_of``, before it lost a column: kept with the history, since rows that never changed
    are in no change."""

    as_of: int
    base: Base


@dataclass(frozen=True, slots=True)
class EndedRegistration:
    """A registration of a table that has ended: its changes are those up to ``last_position`` that are of none before.
    ``base``: its rows at ``as_of``, kept with the history, since rows that never changed are in no change; None where
    there was none. ``earlier``: those before it lost columns, in their order."""

    table_id: int
    last_position: int
    columns: FileTable
    base: Base | None = None
    as_of: int = 0
    earlier: tuple[EarlierBase, ...] = ()

    @property
    def bases(self) -> tuple[Base, ...]:
        """All of them."""
        return (*(one.base for one in self.earlier), *([] if self.base is None else [self.base]))


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table. ``changes_count`` and ``changes_total`` are the sum of all effects in them. ``base`` is
    None until the table's first one was proven. ``ended``: the registrations that have ended, in their order; None
    where the release that wrote the manifest did not record them (``store.catalog.ended_registrations``). ``earlier``:
    the bases of before the table lost columns, in their order."""

    table_id: int
    columns: FileTable
    changes: tuple[File, ...] = ()
    changes_count: int = 0
    changes_total: str = "0"
    conflicts: tuple[File, ...] = ()
    base: Base | None = None
    ended: tuple[EndedRegistration, ...] | None = ()
    earlier: tuple[EarlierBase, ...] = ()

    @property
    def all_files(self) -> tuple[File, ...]:
        """Every live file, once."""
        bases = [self.base, *(one.base for one in self.earlier), *(b for one in self.ended or () for b in one.bases)]
        of_bases = dict.fromkeys(file for base in bases if base for file in base.files)
        return (*self.changes, *self.conflicts, *of_bases)


@dataclass(frozen=True, slots=True)
class FormerTable:
    """A table as it was up to ``last_position``, within the run's own stretch: its changes are of these columns."""

    columns: FileTable
    last_position: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The lake at ``to_position``. ``previous`` is the run before, "" for the first. ``former``: the tables whose
    registration ended in the run's stretch, or before, with changes in it. ``ddl_version``: the number of the last
    schema change there, as applications are told of it."""

    run_id: str
    database: str
    epoch: str
    from_position: int
    to_position: int
    schema_version: int
    previous: str = ""
    tables: Mapping[str, TableFiles] = field(default_factory=dict)
    former: tuple[FormerTable, ...] = ()
    ddl_version: int = 1

    @property
    def paths(self) -> set[str]:
        """Every live file."""
        return {file.path for table in self.tables.values() for file in table.all_files}

    def with_tables(self, tables: Mapping[str, TableFiles]) -> Manifest:
        """A copy of the manifest with other tables."""
        return replace(self, tables=dict(tables))


def epoch_folder(database: str, epoch: str) -> str:
    """The folder of a database's epoch, below the root."""
    return f"{quote(database, safe='')}/{quote(epoch, safe='')}"


def table_folder(part: str, table: str) -> str:
    """The folder of a table in ``changes``, ``conflicts`` or ``base``."""
    return f"{part}/table={quote(table, safe='')}"


def manifest_path(run_id: str) -> str:
    """The path of a manifest's own file."""
    return f"{MANIFESTS}/{run_id}.json"


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The content of a manifest's file."""
    tables = {name: _table_json(table) for name, table in manifest.tables.items()}
    former = [_former_json(former) for former in manifest.former]
    ended = [one for table in tables.values() for one in table["ended"] or ()]
    plain = manifest.ddl_version == 1 and not any(map(_is_altered, (*tables.values(), *former, *ended)))
    return {
        "format": 2 if plain else FORMAT,
        "run": manifest.run_id,
        "database": manifest.database,
        "epoch": manifest.epoch,
        "from_position": manifest.from_position,
        "to_position": manifest.to_position,
        "schema_version": manifest.schema_version,
        "previous": manifest.previous,
        "tables": tables,
        "former": former,
        **({} if plain else {"ddl_version": manifest.ddl_version}),
    }


def _is_altered(content: Mapping[str, Any]) -> bool:
    """Whether a table is not as it was registered."""
    columns = (*content["columns"], *content.get("gone", ()))
    return "sql_name" in content or any({"sql_name", "initial", "dropped_position"} & one.keys() for one in columns)


def from_json(content: Mapping[str, Any]) -> Manifest:
    """The manifest from its file's content.

    Raises:
        ManifestError: it is of another format.
    """
    if content.get("format") not in _READ:
        raise ManifestError(f"a manifest of format {content.get('format')!r}; this release reads format {FORMAT}")
    return Manifest(
        content["run"],
        content["database"],
        content["epoch"],
        content["from_position"],
        content["to_position"],
        content["schema_version"],
        content["previous"],
        {name: _table(name, table, content["format"]) for name, table in content["tables"].items()},
        tuple(_former(one) for one in content.get("former", ())),
        content.get("ddl_version", 1),
    )


def _table_json(table: TableFiles) -> dict[str, Any]:
    return {
        "table_id": table.table_id,
        **_shape_json(table.columns),
        "changes": _files_json(table.changes),
        "changes_count": table.changes_count,
        "changes_total": table.changes_total,
        "conflicts": _files_json(table.conflicts),
        "base": _base_json(table.base),
        "ended": None if table.ended is None else [_ended_json(one) for one in table.ended],
        **_earlier_json(table.earlier),
    }


def _base_json(base: Base | None) -> dict[str, Any] | None:
    if base is None:
        return None
    return {"buckets": [asdict(b) for b in base.buckets], "files": _files_json(base.files)}


def _base(content: Mapping[str, Any] | None) -> Base | None:
    if content is None:
        return None
    return Base(tuple(Bucket(**b) for b in content["buckets"]), _files(content["files"]))


def _ended_json(one: EndedRegistration) -> dict[str, Any]:
    return {
        "table_id": one.table_id,
        "last_position": one.last_position,
        **_shape_json(one.columns),
        "base": _base_json(one.base),
        "as_of": one.as_of,
        **_earlier_json(one.earlier),
    }


def _earlier_json(bases: Iterable[EarlierBase]) -> dict[str, Any]:
    kept = [{"as_of": one.as_of, "base": _base_json(one.base)} for one in bases]
    return {"earlier": kept} if kept else {}


def _earlier(content: Mapping[str, Any]) -> tuple[EarlierBase, ...]:
    kept = ((one["as_of"], _base(one["base"])) for one in content.get("earlier", ()))
    return tuple(EarlierBase(as_of, base) for as_of, base in kept if base is not None)


def _ended(name: str, content: Mapping[str, Any]) -> EndedRegistration:
    columns, base = _shape(name, content), _base(content["base"])
    last, as_of = content["last_position"], content["as_of"]
    return EndedRegistration(columns.table.id, last, columns, base, as_of, _earlier(content))


def _former_json(former: FormerTable) -> dict[str, Any]:
    table = former.columns.table
    return {
        "name": table.name,
        "table_id": table.id,
        **_shape_json(former.columns),
        "last_position": former.last_position,
    }


def _former(content: Mapping[str, Any]) -> FormerTable:
    return FormerTable(_shape(content["name"], content), content["last_position"])


def _shape_json(files: FileTable) -> dict[str, Any]:
    """A table and its file columns."""
    table, gone = files.table, []
    for one in files.gone:
        content = _column_json(one)
        # A column that was dropped may have other file columns, too, of earlier types.
        former = next((ended for ended in table.former if ended.column == one.column), None)
        if former is not None:
            content |= {"dropped_position": former.dropped_position, "successor": former.successor}
        gone.append(content)
    return {
        "key": list(table.key_columns),
        **({"sql_name": table.renamed} if table.renamed else {}),
        "columns": [_column_json(one) for one in files.columns],
        "gone": gone,
    }


def _shape(name: str, content: Mapping[str, Any]) -> FileTable:
    columns, gone = (tuple(map(_column, content.get(part, ()))) for part in ("columns", "gone"))
    former = [
        FormerColumn(one.column, kept["dropped_position"], kept["successor"])
        for one, kept in zip(gone, content.get("gone", ()), strict=True)
        if "dropped_position" in kept
    ]
    former.sort(key=lambda one: one.dropped_position)
    table = Table(
        name,
        tuple(one.column for one in columns),
        tuple(content["key"]),
        content["table_id"],
        renamed=content.get("sql_name", ""),
        former=tuple(former),
    )
    return FileTable(table, columns, gone)


def _files_json(files: Iterable[File]) -> list[dict[str, Any]]:
    return [asdict(file) for file in files]


def _column_json(one: FileColumn) -> dict[str, Any]:
    column = one.column
    return {
        "file_column": one.file_name,
        "type": str(one.type),
        "name": column.name,
        "kind": column.kind.name,
        "element_kind": None if column.element_kind is None else column.element_kind.name,
        "postgres_type": column.postgres_type,
        **({"sql_name": column.renamed} if column.renamed else {}),
        **(_initial_json(column, column.initial[0]) if column.initial else {}),
    }


def _initial_json(column: Column, cell: Cell) -> dict[str, Any]:
    """``initial`` is a serialized ``anabranch.v1.Value``; ``initial_text`` shows it as Postgres prints it, for readers
    that have no use for the contract."""
    return {
        "initial": b64encode(column_writer(column)(cell).SerializeToString()).decode(),
        "initial_text": cell_text(column, cell),
        "added_position": column.added_position,
    }


def _column(content: Mapping[str, Any]) -> FileColumn:
    element, initial = content["element_kind"], content.get("initial")
    column = Column(
        content["name"],
        Kind[content["kind"]],
        content["postgres_type"],
        None if element is None else Kind[element],
        renamed=content.get("sql_name", ""),
        added_position=content.get("added_position", 0),
    )
    if initial is not None:
        cell = column_reader(column)(value_pb2.Value.FromString(b64decode(initial)))
        column = replace(column, initial=(cell,))
    return FileColumn(content["file_column"], column)


def _table(name: str, content: Mapping[str, Any], written_as: int) -> TableFiles:
    return TableFiles(
        content["table_id"],
        _shape(name, content),
        _files(content["changes"]),
        content["changes_count"],
        content["changes_total"],
        _files(content["conflicts"]),
        _base(content["base"] if written_as > 1 else None),
        None if content.get("ended") is None else tuple(_ended(name, one) for one in content["ended"]),
        _earlier(content),
    )


def _files(content: Iterable[Mapping[str, Any]]) -> tuple[File, ...]:
    return tuple(File(**file) for file in content)
