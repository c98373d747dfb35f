"""Evidence for the janitor: the history files exist, and their content for a stretch of the log adds up to the log's
sum.

Only files of ``changes/`` and ``conflicts/`` that overlap the stretch are read, in record batches, so that memory does
not grow with their size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from anabranch.columnar.file_columns import OWN
from anabranch.columnar.lake import file_system
from anabranch.columnar.manifest import File, Manifest, TableFiles, epoch_folder, from_json, manifest_path
from anabranch.columnar.proof import Prover, Sum
from anabranch.errors import ServerError
from anabranch.values import Cell, Column
from anabranch.values.parquet import FileCodec

KINDS = {"insert": 1, "update": 2, "delete": 3, "none": 4}
"""The names of effect types in files, to the numbers of ``anabranch.v1.EffectType``."""
Codecs = Callable[[Iterable[Column]], Sequence[FileCodec]]
_ROWS = 50_000


class EvidenceError(ServerError):
    """A file that replaces a part of the log is missing, unreadable or not as published. The message names it."""


def manifest_folder(root: str, manifest: Manifest) -> tuple[fs.FileSystem, str]:
    """The place of a manifest's files below ``root``: the file system, and the folder of the epoch.

    Raises:
        EvidenceError: the file system can't be reached.
    """
    try:
        filesystem, path = file_system(root)
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{root}: {error}") from error
    return filesystem, f"{path.rstrip('/')}/{epoch_folder(manifest.database, manifest.epoch)}"


def require_manifest(filesystem: fs.FileSystem, folder: str, manifest: Manifest) -> None:
    """Check that the manifest's own file exists and is as published.

    Raises:
        EvidenceError: the file is missing or differs.
    """
    path = f"{folder}/{manifest_path(manifest.run_id)}"
    try:
        with filesystem.open_input_stream(path) as stream:
            found = from_json(json.loads(stream.read()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path}: {error}") from error
    if found != manifest:
        raise EvidenceError(f"{path} is not what run {manifest.run_id} published")


class Evidence:
    """The files of one published manifest below ``root``."""

    def __init__(self, root: str, manifest: Manifest, codecs: Codecs) -> None:
        self._manifest = manifest
        self._codecs = codecs
        self._filesystem, self._folder = manifest_folder(root, manifest)

    def require_manifest(self) -> None:
        """Check that the manifest's own file exists and is as published.

        Raises:
            EvidenceError: the file is missing or differs.
        """
        require_manifest(self._filesystem, self._folder, self._manifest)

    def require_files(self, after: int, upto: int) -> None:
        """Check that the files that overlap (``after``, ``upto``] exist, with the published sizes and numbers of rows.

        Raises:
            EvidenceError: a file is missing or differs.
        """
        for table in self._manifest.tables.values():
            for file in _overlapping((*table.changes, *table.conflicts), after, upto):
                self._require(file)

    def _require(self, file: File) -> None:
        path = f"{self._folder}/{file.path}"
        try:
            found = self._filesystem.get_file_info(path)
            if found.type != fs.FileType.File:
                raise EvidenceError(f"{path} is missing")
            if found.size != file.bytes:
                raise EvidenceError(f"{path} has {found.size} bytes; {file.bytes} were published")
            rows = pq.read_metadata(path, filesystem=self._filesystem).num_rows
        except (OSError, pa.ArrowException) as error:
            raise EvidenceError(f"{path}: {error}") from error
        if rows != file.rows:
            raise EvidenceError(f"{path} has {rows} rows; {file.rows} were published")

    def changes_sum(self, after: int, upto: int) -> Sum:
        """Number and sum of effect hashes of (``after``, ``upto``], of all tables together, computed anew from the
        cells.

        Raises:
            EvidenceError: a file can't be read, or holds invalid values.
        """
        total = Sum()
        for table in self._manifest.tables.values():
            files = _overlapping(table.changes, after, upto)
            if files:
                total += self._table_sum(table, files, after, upto)
        return total

    def _table_sum(self, table: TableFiles, files: Sequence[File], after: int, upto: int) -> Sum:
        columns = table.columns
        codecs = self._codecs(columns.table.columns)
        prover = Prover(columns.table)
        position = ds.field(OWN, "position")
        total = Sum()
        for file in files:
            path = f"{self._folder}/{file.path}"
            try:
                data = ds.dataset(path, format="parquet", filesystem=self._filesystem)
                stretch = (position > after) & (position <= upto)
                for batch in data.to_batches(filter=stretch, batch_size=_ROWS):
                    if batch.num_rows:
                        total += _batch_sum(table, codecs, prover, batch)
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                raise EvidenceError(f"{path}: {error!r}") from error
        return total


def _overlapping(files: Iterable[File], after: int, upto: int) -> list[File]:
    return [file for file in files if file.first_position <= upto and file.last_position > after]


def _batch_sum(table: TableFiles, codecs: Sequence[FileCodec], prover: Prover, batch: pa.RecordBatch) -> Sum:
    own = batch.column(OWN)
    fields = dict(zip([f.name for f in own.type], own.flatten(), strict=True))
    exact = [dict(texts or {}) for texts in fields["exact"].to_pylist()]
    cells: list[list[Cell]] = []
    for codec, column in zip(codecs, table.columns.columns, strict=True):
        if column.file_name not in batch.schema.names:
            cells.append([None] * batch.num_rows)
            continue
        texts = [one.get(column.file_name) for one in exact]
        cells.append(codec.read(batch.column(column.file_name), texts))
    types = [KINDS[name] for name in fields["type"].to_pylist()]
    return prover.effects(types, [names or () for names in fields["changed"].to_pylist()], cells)
