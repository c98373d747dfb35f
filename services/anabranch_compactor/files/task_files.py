"""The files of one attempt at a task, under the run's own id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs
from pyspark import TaskContext

from anabranch.columnar.lake import file_system
from anabranch.columnar.manifest import table_folder
from anabranch_compactor.files.parquet_files import write_files
from anabranch_compactor.files.written import Written
from anabranch_compactor.shape import Shape

DELTA, MERGED = "delta", "merged"
"""Folders below a table's."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The place of a run's files (``folder``: that of the epoch, as Hadoop takes it), and the position they are of."""

    folder: str
    run_id: str
    upto: int


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """``number``: that of the unit; ``prefix``: no other attempt has it."""

    place: TaskPlace
    filesystem: fs.FileSystem
    folder: str
    number: int
    prefix: str

    def write(
        self,
        what: str,
        shape: Shape,
        tables: Iterable[pa.Table],
        bucket: int | None = None,
        *,
        below: str = "",
        piece: int = 0,
    ) -> Iterator[Written]:
        """Write rows of changes, conflicts or a base (``what``), into as few files as their size allows. A task that
        writes several times numbers its pieces."""
        folder = "/".join(filter(None, (table_folder(what, shape.table.name), below, self.place.run_id)))
        prefix = f"{self.prefix}-{piece}" if bucket is None else f"bucket-{bucket:05}-{self.prefix}-{piece}"
        for file in write_files(self.filesystem, self.path(folder), prefix, shape.schemas[what], tables):
            path = f"{folder}/{file.name}"
            yield Written(self.number, what, path, file.bytes, bucket or 0, below == DELTA)

    def path(self, file: str) -> str:
        """A file of the lake's, as the file system takes it."""
        return f"{self.folder}/{file}"


def task_files(place: TaskPlace, number: int) -> TaskFiles:
    """Those of the task that this runs in."""
    context = TaskContext.get()
    assert context is not None
    filesystem, folder = file_system(place.folder)
    return TaskFiles(place, filesystem, folder, number, f"{context.partitionId():05}-{context.taskAttemptId()}")
