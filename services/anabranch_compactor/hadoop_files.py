"""Files under the root, through Spark's own file systems, so that any path that Spark writes to will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Found:
    """A file: its path below the folder that was listed, its size in bytes, and when it was written."""

    path: str
    bytes: int
    modified_ms: int


class HadoopFiles:
    """The files of one root, which Hadoop names (``file:/data/lake``, ``s3a://bucket/lake``)."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        context: Any = spark._jsc
        self._root = jvm.org.apache.hadoop.fs.Path(root)
        self._files = self._root.getFileSystem(context.hadoopConfiguration())

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder."""
        return bool(self._files.exists(self._path(name)))

    def below(self, folder: str) -> list[Found]:
        """Every file below a folder; none where there is no such folder."""
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        start = len(self._files.makeQualified(path).toString()) + 1
        listing, found = self._files.listFiles(path, True), []
        while listing.hasNext():
            status = listing.next()
            name = status.getPath().toString()[start:]
            found.append(Found(name, int(status.getLen()), int(status.getModificationTime())))
        return found

    def read(self, name: str) -> str:
        """A file's text."""
        stream = self._files.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def put(self, name: str, text: str) -> None:
        """Write a file as one step: a reader finds all of it or nothing. One that is there stays as it is."""
        path = self._path(name)
        if self._files.exists(path):
            return
        draft = self._path(f"{name}.draft")
        stream = self._files.create(draft, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not self._files.rename(draft, path) and not self._files.exists(path):
            raise OSError(f"{path} could not be written")

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all in it; harmless where it is gone."""
        self._files.delete(self._path(name), True)
