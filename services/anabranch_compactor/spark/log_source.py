"""The log as a Spark data source: ``spark.read.format("anabranch_log")``.

Each partition is a stretch of positions that is read in one session, as Arrow record batches straight from Postgres:
the changes of all tables, or their conflicts. Reading a stretch again gives the same rows, since the log below its head
never changes. Rows are decoded to columns where they are read, and packed for the parts that they are written in
(``packing``).

Options: ``url`` (which Spark keeps out of what it prints), ``database`` (its number), ``after`` (the position before
the first), ``cuts`` (the last position of each stretch, with commas between them), ``what`` (``changes``,
``conflicts``, or both with a comma), ``batchBytes``, and ``read``: how, as ``TaskReading.to_text`` gives it.

Spark starts a process of its own for each question that it has while it plans (which sources there are, what schema,
which partitions), on its own terms. So this module loads only what these answers need: a read loads its own modules, in
a worker that has them already (``daemon``).
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from anabranch_compactor.spark.packing import Route
    from anabranch_compactor.spark.tracing import TaskTrace

FORMAT = "anabranch_log"
SCHEMA = "part int, rows binary"
"""Packages, as ``packing`` makes them."""
_DEFAULT_BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskReading:
    """The ways of changes and of conflicts to their parts, by the table's number, and the trace that tasks go on
    with."""

    changes: Mapping[int, Route]
    conflicts: Mapping[int, Route]
    trace: TaskTrace | None

    def to_text(self) -> str:
        """As an option of Spark's takes it."""
        return b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def from_text(text: str) -> TaskReading:
        """The inverse of ``to_text``; only for a text that this run's own driver has written."""
        found = pickle.loads(b64decode(text))
        assert isinstance(found, TaskReading)
        return found


class TaskStretch(InputPartition):
    """Changes or conflicts (``what``) above position ``after`` and up to ``upto``."""

    def __init__(self, what: str, after: int, upto: int) -> None:
        super().__init__((what, after, upto))
        self.what = what
        self.after = after
        self.upto = upto


class LogReader(DataSourceReader):
    """Reads what the options say."""

    def __init__(self, options: Any) -> None:
        self._url = options["url"]
        self._database = int(options["database"])
        self._after = int(options["after"])
        self._cuts = [int(cut) for cut in options["cuts"].split(",") if cut]
        self._what = [what for what in options["what"].split(",") if what]
        self._reading = options["read"]
        self._batch_bytes = int(options.get("batchBytes", _DEFAULT_BATCH_BYTES))

    def partitions(self) -> Sequence[InputPartition]:
        """One a stretch, of each that is to be read."""
        stretches = list(zip([self._after, *self._cuts], self._cuts, strict=False))
        return [TaskStretch(what, *bounds) for what in self._what for bounds in stretches]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one stretch, packed."""
        if not isinstance(partition, TaskStretch):
            # Where there is none, Spark asks once all the same.
            return
        from anabranch.store.lake import log_files
        from anabranch_compactor.decode import conflict_decoder, log_decoder
        from anabranch_compactor.spark.packing import pack
        from anabranch_compactor.spark.tracing import in_task_span

        reading = TaskReading.from_text(self._reading)
        stretch = (self._url, self._database, partition.after, partition.upto, self._batch_bytes)
        if partition.what == "conflicts":
            rows, routes, decoder = log_files.read_conflicts(*stretch), reading.conflicts, conflict_decoder
        else:
            rows, routes, decoder = log_files.read_log(*stretch), reading.changes, log_decoder
        yield from in_task_span("read task", reading.trace, pack(_decoded(rows, routes, decoder)))


def _decoded(
    rows: Iterator[pa.RecordBatch],
    routes: Mapping[int, Route],
    decoder: Callable[[Any], Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]],
) -> Iterator[tuple[Route, pa.RecordBatch]]:
    """Rows of several tables, each decoded as its table's, with its way."""
    import pyarrow.compute as pc

    decoders: dict[int, Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]] = {}
    for batch in rows:
        numbers = pc.unique(batch.column("table_id")).to_pylist()
        for number in numbers:
            mine = batch if len(numbers) == 1 else batch.filter(pc.equal(batch.column("table_id"), number))
            if number not in decoders:
                decoders[number] = decoder(routes[number].table)
            for decoded in decoders[number](mine):
                yield routes[number], decoded


class LogSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """The name that ``format`` takes."""
        return FORMAT

    def schema(self) -> str:
        """Packages."""
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        """The reader of the options."""
        return LogReader(self.options)
