"""Evidence for the janitor: the history files exist, and their content for a stretch of the log adds up to the sums of
Postgres.

Only files of ``changes/`` and ``conflicts/`` that overlap the stretch are read, in record batches, so that memory does
not grow with their size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from anabranch.columnar.encode import own_fields
from anabranch.columnar.file_columns import CHANGES
from anabranch.columnar.lake import file_system
from anabranch.columnar.manifest import File, Manifest, epoch_folder, from_json, manifest_path
from anabranch.columnar.proof import Prover, Sum, batches_of, open_file
from anabranch.errors import ServerError


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

    def __init__(self, root: str, manifest: Manifest) -> None:
        self._manifest = manifest
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

    def sum(self, what: str, after: int, upto: int) -> Sum:
        """Number and sum of the hashes of (``after``, ``upto``], of all tables together, computed anew from CHANGES or
        CONFLICTS.

        Raises:
            EvidenceError: a file can't be read, or holds invalid values.
        """
        total = Sum()
        for table in self._manifest.tables.values():
            prover = Prover(what, table.columns.with_former() if what == CHANGES else table.columns)
            for file in _overlapping(table.changes if what == CHANGES else table.conflicts, after, upto):
                total += self._file_sum(prover, f"{self._folder}/{file.path}", after, upto)
        return total

    def _file_sum(self, prover: Prover, path: str, after: int, upto: int) -> Sum:
        total = Sum()
        try:
            with open_file(self._filesystem, path) as file:
                # All columns, though no sum has all of them: a page that can't be read is found in any of them.
                for rows in batches_of(file, file.schema_arrow.names):
                    position = own_fields(rows)["position"]
                    if position.null_count:
                        raise ValueError("a row has no position")
                    mine = pc.and_(pc.greater(position, after), pc.less_equal(position, upto))
                    if mine.true_count:
                        total += prover.sum(rows if mine.true_count == len(rows) else rows.filter(mine))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise EvidenceError(f"{path}: {error!r}") from error
        return total


def _overlapping(files: Iterable[File], after: int, upto: int) -> list[File]:
    return [file for file in files if file.first_position <= upto and file.last_position > after]
