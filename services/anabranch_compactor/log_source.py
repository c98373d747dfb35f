"""The log as a Spark data source: ``spark.read.format("anabranch_log")``.

Each partition is a stretch of positions that is read in one session, as Arrow record batches straight from Postgres.
Reading a stretch again gives the same rows, since the log below its head never changes.

``what`` is ``changes``: decoded to columns where they are read, and packed for the parts that they are written in
(``packing``), or ``conflicts``: rows as Postgres has them. Options, beside it: ``url`` (which Spark keeps out of what
it prints), ``database`` (its number), ``after`` (the position before the first), ``cuts`` (the last position of each
partition, with commas between them), ``batchBytes``, and ``read``: how, as ``Reading.to_text`` gives it.

Spark starts a process of its own for each question that it has while it plans (which sources there are, what schema,
which partitions), on its own terms. So this module loads nothing but what answers those: what a read needs is loaded by
the read, in a worker that has it already (``daemon``).
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from anabranch.schema import Table
    from anabranch_compactor.tracing import TaskTrace

FORMAT = "anabranch_log"
_DEFAULT_BATCH_BYTES = 4 * 1024 * 1024
PACKED = "part int, rows binary"
"""Packages of changes, as ``packing`` makes them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The table to read, the number of parts that its rows are packed for, and the trace that tasks go on with."""

    table: Table
    parts: int
    trace: TaskTrace | None

    def to_text(self) -> str:
        """As an option of Spark's takes it."""
        return b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def from_text(text: str) -> Reading:
        """The inverse of ``to_text``; only for what this run's own driver has written."""
        found = pickle.loads(b64decode(text))
        assert isinstance(found, Reading)
        return found


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
        self._after = int(options["after"])
        self._cuts = [int(cut) for cut in options["cuts"].split(",") if cut]
        self._what = options["what"]
        self._reading = options["read"]
        self._batch_bytes = int(options.get("batchBytes", _DEFAULT_BATCH_BYTES))

    def partitions(self) -> Sequence[InputPartition]:
        """One a stretch."""
        return [Stretch(a, b) for a, b in zip([self._after, *self._cuts], self._cuts, strict=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch."""
        from anabranch.store import log_files
        from anabranch_compactor.decode import log_decoder
        from anabranch_compactor.encode import ColumnEncoder
        from anabranch_compactor.packing import pack
        from anabranch_compactor.tracing import in_task_span

        assert isinstance(partition, Stretch)
        reading = Reading.from_text(self._reading)
        table, parts = reading.table, reading.parts
        stretch = (self._url, self._database, table.id, partition.after, partition.upto, self._batch_bytes)
        if self._what == "conflicts":
            yield from in_task_span("read task", reading.trace, log_files.read_conflicts(*stretch))
            return
        decoded = log_decoder(table)(log_files.read_log(*stretch))
        yield from in_task_span("read task", reading.trace, pack(ColumnEncoder(table), parts, decoded))


class LogSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return FORMAT

    def schema(self) -> StructType | str:
        """Packages of changes, or the columns of the conflicts."""
        if self.options["what"] == "changes":
            return PACKED
        from pyspark.sql.pandas.types import from_arrow_schema

        from anabranch.store.log_files import CONFLICT_SCHEMA

        return from_arrow_schema(CONFLICT_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the options."""
        return LogReader(self.options)
