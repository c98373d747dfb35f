"""The log as a Spark data source: ``spark.read.format("anabranch_log")``.

Each partition is a stretch of positions that is read in one session, as Arrow record batches straight from Postgres.
Reading a stretch again gives the same rows, since the log below its head never changes.

Options: ``url`` (which Spark keeps out of what it prints), ``database`` and ``table`` (their numbers), ``after`` (the
position before the first), ``cuts`` (the last position of each partition, with commas between them), ``what`` (``log``
or ``conflicts``), ``batchBytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from anabranch.store import log_files

FORMAT = "anabranch_log"
_READERS: dict[str, tuple[pa.Schema, Callable[..., Iterator[pa.RecordBatch]]]] = {
    "log": (log_files.LOG_SCHEMA, log_files.read_log),
    "conflicts": (log_files.CONFLICT_SCHEMA, log_files.read_conflicts),
}
_DEFAULT_BATCH_BYTES = 4 * 1024 * 1024


class Stretch(InputPartition):
    """Positions above ``after`` and up to ``upto``."""

    def __init__(self, after: int, upto: int) -> None:
        super().__init__((after, upto))
        self.after = after
        self.upto = upto


class LogReader(DataSourceReader):
    """Reads what the options say."""

    def __init__(self, options: Any) -> None:
        self._url = options["url"]
        self._database = int(options["database"])
        self._table = int(options["table"])
        self._after = int(options["after"])
        self._cuts = [int(cut) for cut in options["cuts"].split(",") if cut]
        self._what = options.get("what", "log")
        self._batch_bytes = int(options.get("batchBytes", _DEFAULT_BATCH_BYTES))

    def partitions(self) -> Sequence[InputPartition]:
        """One a stretch."""
        return [Stretch(a, b) for a, b in zip([self._after, *self._cuts], self._cuts, strict=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch."""
        assert isinstance(partition, Stretch)
        _, read = _READERS[self._what]
        yield from read(self._url, self._database, self._table, partition.after, partition.upto, self._batch_bytes)


class LogSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """The log's columns, or those of the conflicts."""
        schema, _ = _READERS[self.options.get("what", "log")]
        return from_arrow_schema(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the options."""
        return LogReader(self.options)
