"""Manifests: the files that make up the lake at a position.

A manifest is self-contained: it names every live file, not only those of its own run. Paths are relative to the folder
of the database's epoch, ``<root>/<database>/<epoch>``. A reader takes the newest published manifest and reads only the
files that it names; any other file there belongs to a run that was not published, or is no longer needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from anabranch.columnar.file_columns import FileColumn, FileTable
from anabranch.columnar.proof import Sum
from anabranch.errors import ServerError
from anabranch.values import Column, Kind, Table

FORMAT = 2
_READ = (1, 2)
"""1 is of a release whose bases have their rows in other buckets: they are read as absent, and pulled anew."""
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
class EndedRegistration:
    """A registration of a table that has ended: its changes are those up to ``last_position`` that are of none before.
    ``base``: its rows at ``as_of``, kept with the history, since rows that never changed are in no change; None where
    there was none."""

    table_id: int
    last_position: int
    columns: FileTable
    base: Base | None = None
    as_of: int = 0


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table. ``changes_count`` and ``changes_total`` are the sum of all effects in them. ``base`` is
    None until the table's first one was proven. ``ended``: the registrations that have ended, in their order; None
    where the release that wrote the manifest did not record them (``store.catalog.ended_registrations``)."""

    table_id: int
    columns: FileTable
    changes: tuple[File, ...] = ()
    changes_count: int = 0
    changes_total: str = "0"
    conflicts: tuple[File, ...] = ()
    base: Base | None = None
    ended: tuple[EndedRegistration, ...] | None = ()

    @property
    def all_files(self) -> tuple[File, ...]:
        """Every live file."""
        bases = (self.base, *(one.base for one in self.ended or ()))
        return (*self.changes, *self.conflicts, *(file for base in bases if base for file in base.files))


@dataclass(frozen=True, slots=True)
class FormerTable:
    """A table as it was up to ``last_position``, within the run's own stretch: its changes are of these columns."""

    columns: FileTable
    last_position: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The lake at ``to_position``. ``previous`` is the run before, "" for the first. ``former``: the tables whose
    registration ended in the run's stretch, or before, with changes in it."""

    run_id: str
    database: str
    epoch: str
    from_position: int
    to_position: int
    schema_version: int
    previous: str = ""
    tables: Mapping[str, TableFiles] = field(default_factory=dict)
    former: tuple[FormerTable, ...] = ()

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
    return {
        "format": FORMAT,
        "run": manifest.run_id,
        "database": manifest.database,
        "epoch": manifest.epoch,
        "from_position": manifest.from_position,
        "to_position": manifest.to_position,
        "schema_version": manifest.schema_version,
        "previous": manifest.previous,
        "tables": {name: _table_json(table) for name, table in manifest.tables.items()},
        "former": [_former_json(former) for former in manifest.former],
    }


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
    )


def _table_json(table: TableFiles) -> dict[str, Any]:
    files = table.columns
    return {
        "table_id": table.table_id,
        "key": list(files.table.key_columns),
        "columns": _columns_json(files.columns),
        "gone": _columns_json(files.gone),
        "changes": _files_json(table.changes),
        "changes_count": table.changes_count,
        "changes_total": table.changes_total,
        "conflicts": _files_json(table.conflicts),
        "base": _base_json(table.base),
        "ended": None if table.ended is None else [_ended_json(one) for one in table.ended],
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
        "key": list(one.columns.table.key_columns),
        "columns": _columns_json(one.columns.columns),
        "base": _base_json(one.base),
        "as_of": one.as_of,
    }


def _ended(name: str, content: Mapping[str, Any]) -> EndedRegistration:
    columns = _columns(content["columns"])
    table = Table(name, tuple(c.column for c in columns), tuple(content["key"]), content["table_id"])
    base = _base(content["base"])
    return EndedRegistration(table.id, content["last_position"], FileTable(table, columns), base, content["as_of"])


def _former_json(former: FormerTable) -> dict[str, Any]:
    table = former.columns.table
    return {
        "name": table.name,
        "table_id": table.id,
        "key": list(table.key_columns),
        "columns": _columns_json(former.columns.columns),
        "last_position": former.last_position,
    }


def _former(content: Mapping[str, Any]) -> FormerTable:
    columns = _columns(content["columns"])
    table = Table(content["name"], tuple(c.column for c in columns), tuple(content["key"]), content["table_id"])
    return FormerTable(FileTable(table, columns), content["last_position"])


def _files_json(files: Iterable[File]) -> list[dict[str, Any]]:
    return [asdict(file) for file in files]


def _columns_json(columns: Iterable[FileColumn]) -> list[dict[str, Any]]:
    return [
        {
            "file_column": c.file_name,
            "type": str(c.type),
            "name": c.column.name,
            "kind": c.column.kind.name,
            "element_kind": None if c.column.element_kind is None else c.column.element_kind.name,
            "postgres_type": c.column.postgres_type,
        }
        for c in columns
    ]


def _columns(content: Iterable[Mapping[str, Any]]) -> tuple[FileColumn, ...]:
    found = []
    for c in content:
        element = c["element_kind"]
        column = Column(c["name"], Kind[c["kind"]], c["postgres_type"], None if element is None else Kind[element])
        found.append(FileColumn(c["file_column"], column))
    return tuple(found)


def _table(name: str, content: Mapping[str, Any], written_as: int) -> TableFiles:
    columns = _columns(content["columns"])
    table = Table(name, tuple(c.column for c in columns), tuple(content["key"]), content["table_id"])
    base = content["base"] if written_as == FORMAT else None
    return TableFiles(
        content["table_id"],
        FileTable(table, columns, _columns(content["gone"])),
        _files(content["changes"]),
        content["changes_count"],
        content["changes_total"],
        _files(content["conflicts"]),
        _base(base),
        None if content.get("ended") is None else tuple(_ended(name, one) for one in content["ended"]),
    )


def _files(content: Iterable[Mapping[str, Any]]) -> tuple[File, ...]:
    return tuple(File(**file) for file in content)
