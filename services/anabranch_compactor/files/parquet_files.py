"""Parquet files of one task. Their names have the task's attempt, so that no two attempts write the same file where a
task was repeated, or ran twice; only the files that the attempt which Spark took reports count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

FILE_BYTES = 128 * 1024 * 1024
"""About how large a file is at most."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """``name``: below the folder that it was written into."""

    name: str
    rows: int
    bytes: int


def write_files(
    filesystem: fs.FileSystem, folder: str, prefix: str, schema: pa.Schema, slices: Iterable[pa.Table]
) -> list[NewFile]:
    """Write slices, a row group each, into as few files as their size allows."""
    found: list[NewFile] = []
    writer: pq.ParquetWriter | None = None
    sink: pa.NativeFile = None
    name, rows = "", 0
    for part in slices:
        if writer is None:
            if isinstance(filesystem, fs.LocalFileSystem):
                filesystem.create_dir(folder, recursive=True)
            name, rows = f"{prefix}-{len(found)}.parquet", 0
            sink = filesystem.open_output_stream(f"{folder}/{name}")
            writer = pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False, write_page_checksum=True)
        writer.write_table(part, row_group_size=max(1, part.num_rows))
        rows += part.num_rows
        if sink.tell() >= FILE_BYTES:
            found.append(_closed(filesystem, folder, name, rows, writer, sink))
            writer = None
    if writer is not None:
        found.append(_closed(filesystem, folder, name, rows, writer, sink))
    return found


def _closed(
    filesystem: fs.FileSystem, folder: str, name: str, rows: int, writer: pq.ParquetWriter, sink: pa.NativeFile
) -> NewFile:
    writer.close()
    sink.close()
    return NewFile(name, rows, filesystem.get_file_info(f"{folder}/{name}").size)
