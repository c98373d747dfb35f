"""Proof that the files of a base are as published, before its rows are served.

A ``BaseProver`` proves each bucket once: its rows, as a Pull would carry them, are encoded anew, and their number and
sum have to be those of the manifest, which the compactor compared with the table's own. From then on the same files, by
path, size and modification time, count as proven; the compactor never changes a published file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from anabranch.columnar.base_reader import BaseReader
from anabranch.columnar.encode import ColumnEncoder
from anabranch.columnar.evidence import EvidenceError, manifest_folder, require_manifest
from anabranch.columnar.manifest import Base, Bucket, Manifest, TableFiles
from anabranch.columnar.proof import Sum, pulled_sum
from anabranch.errors import ServerError

_KEPT = 100_000
"""Buckets that are remembered as proven."""
_BATCH_BYTES = 512 * 1024
_Identity = tuple[str, int, str, tuple[tuple[str, int, int], ...]]


@dataclass(frozen=True, slots=True)
class Unproven:
    """A bucket of a table whose rows have not been compared with its sum yet."""

    table: str
    bucket: int
    identity: _Identity


class PublishedBase:
    """The bases of a published manifest below ``root``. Any thread.

    Raises:
        EvidenceError: the file system can't be reached.
    """

    def __init__(self, root: str, manifest: Manifest) -> None:
        self.manifest = manifest
        self._filesystem, self._folder = manifest_folder(root, manifest)

    def require_manifest(self) -> None:
        """Check that the manifest's own file is as published. Raises EvidenceError."""
        require_manifest(self._filesystem, self._folder, self.manifest)

    def reader(self, table: str, batch_bytes: int) -> BaseReader:
        """A reader of a table that has a base."""
        return BaseReader(self._filesystem, self._folder, self.manifest.tables[table], batch_bytes)

    def sum(self, table: str) -> Sum:
        """The proven sum of a table's rows."""
        total = Sum()
        for bucket in _base_of(self.manifest.tables[table]).buckets:
            total += bucket.sum
        return total

    def bucket_of(self, one: Unproven) -> Bucket:
        """A bucket as published."""
        return _base_of(self.manifest.tables[one.table]).buckets[one.bucket]

    def identities(self, table: str) -> list[Unproven]:
        """The present files of each bucket of a table, as a bucket to prove.

        Raises:
            EvidenceError: a file is missing, or its size is not the one that was published.
        """
        base = _base_of(self.manifest.tables[table])
        paths = [f"{self._folder}/{file.path}" for file in base.files]
        try:
            infos = self._filesystem.get_file_info(paths)
        except OSError as error:
            raise EvidenceError(f"{self._folder}: {error}") from error
        found: list[list[tuple[str, int, int]]] = [[] for _ in base.buckets]
        for file, info in zip(base.files, infos, strict=True):
            if info.type != fs.FileType.File:
                raise EvidenceError(f"{info.path} is missing")
            if info.size != file.bytes:
                raise EvidenceError(f"{info.path} has {info.size} bytes; {file.bytes} were published")
            found[file.bucket].append((info.path, info.size, info.mtime_ns or 0))
        return [
            Unproven(table, number, (table, bucket.count, bucket.total, tuple(files)))
            for number, (bucket, files) in enumerate(zip(base.buckets, found, strict=True))
        ]

    def bucket_sum(self, table: str, number: int) -> Sum:
        """Number and sum of the rows of a bucket, computed anew from the rows that a Pull would carry.

        Raises:
            EvidenceError: a file can't be read, or holds invalid values.
        """
        encoder, total = ColumnEncoder(self.manifest.tables[table].columns.table), Sum()
        with closing(self.reader(table, _BATCH_BYTES).bucket(number)) as batches:
            for batch in batches:
                try:
                    total += pulled_sum(encoder, batch)
                except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
                    raise EvidenceError(f"the base of {table} in {self._folder}: {error!r}") from error
        return total


def _base_of(files: TableFiles) -> Base:
    assert files.base is not None
    return files.base


class ProofStoppedError(ServerError):
    """The proof stopped without a result: the process ends."""


class BaseProver:
    """Remembers which buckets are proven. ``unproven`` from any thread, ``prove`` from one; ``stopping`` ends a proof
    after its bucket."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._proven: OrderedDict[_Identity, None] = OrderedDict()

    def unproven(self, base: PublishedBase, tables: Iterable[str]) -> list[Unproven]:
        """The buckets of some tables that are still to be proven.

        Raises:
            EvidenceError: the manifest or a file is missing, or not as it was published.
        """
        base.require_manifest()
        return [one for table in tables for one in base.identities(table) if one.identity not in self._proven]

    def prove(self, base: PublishedBase, buckets: Iterable[Unproven]) -> int:
        """Compare the rows of some buckets with their sums; return the number of rows read. Buckets that were proven
        meanwhile are skipped.

        Raises:
            EvidenceError: a bucket's rows do not have its sum.
            ProofStoppedError: the proof was stopped; proven buckets stay proven.
        """
        rows = 0
        for one in buckets:
            if self._stopping.is_set():
                raise ProofStoppedError
            if one.identity in self._proven:
                continue
            wanted = base.bucket_of(one).sum
            found = base.bucket_sum(one.table, one.bucket)
            if found != wanted:
                raise EvidenceError(
                    f"bucket {one.bucket} of the base of {one.table} has {found.count} rows with the sum "
                    f"{found.total:032x}; {wanted.count} with {wanted.total:032x} were published"
                )
            rows += found.count
            self._proven[one.identity] = None
            while len(self._proven) > _KEPT:
                self._proven.popitem(last=False)
        return rows
