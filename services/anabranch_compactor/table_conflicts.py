"""``conflicts/`` of one table: the losing values, typed like the table's rows. A row gives the key and the column that
lost, and is NULL elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from anabranch.columnar.file_columns import OWN
from anabranch.columnar.manifest import File, table_folder
from anabranch.columnar.proof import Sum
from anabranch.schema import Table
from anabranch.store.compactions import conflict_bytes
from anabranch.store.file_codecs import file_codecs
from anabranch.wire.values import column_writer
from anabranch_compactor.decode import Batches, cells_of, conflict_decoder
from anabranch_compactor.plan import TablePlan
from anabranch_compactor.prove import FileSum, collect, grouped, require, total_of
from anabranch_compactor.run import Run
from anabranch_compactor.shape import Shape
from anabranch_compactor.tracing import traced

_FIELDS = (
    "position",
    "batch",
    "ordinal",
    "key",
    "column",
    "losing_batch",
    "losing_node",
    "winning_batch",
    "winning_node",
)
_LOG_NAMES = {"batch": "batch_id", "column": "column_name"}
_ROW_BYTES = 300.0


def write_conflicts(run: Run, table: TablePlan) -> tuple[File, ...]:
    """Write the run's conflicts of a table, and prove them.

    Raises:
        ProofError: the files are not what the conflicts are.
    """
    shape, wanted = table.shape, table.conflicts
    assert wanted is not None
    decoded = run.log(shape, "conflicts").mapInArrow(
        traced("decode task", conflict_decoder(shape.table)), _decoded(shape)
    )
    own = F.struct(
        *(F.col(_LOG_NAMES.get(name, name)).alias(name) for name in _FIELDS),
        "untyped",
        shape.exact([(i, F.col(f"x{i}")) for i in shape.with_text]).alias("exact"),
    ).alias(OWN)
    rows = decoded.repartition(1).sortWithinPartitions(*shape.keys, "position", "batch_id", "ordinal")
    folder = table_folder("conflicts", shape.table.name)
    run.write(rows.select(*shape.file_cells(), own), folder, row_bytes=_ROW_BYTES)
    sums = _sums(run, shape, folder)
    require(f"the conflicts of {shape.table.name}", total_of(sums), wanted)
    return run.found(folder, sums)


def _decoded(shape: Shape) -> T.StructType:
    numbers = {"position": T.LongType(), "ordinal": T.IntegerType()}
    ours = [T.StructField(_LOG_NAMES.get(n, n), numbers.get(n, T.StringType())) for n in _FIELDS]
    return T.StructType([*ours, T.StructField("untyped", T.BinaryType()), *shape.cells])


def _sums(run: Run, shape: Shape, folder: str) -> list[FileSum]:
    rows = run.written(shape, folder, shape.conflicts)
    ours, table = F.col("ours"), shape.table
    chosen = rows.select(
        F.col("file").alias("name"),
        *(ours[name].alias(name) for name in (*_FIELDS, "untyped")),
        *(field.name for field in shape.cells),
    )

    def add(batches: Batches) -> Iterator[pa.RecordBatch]:
        return grouped(lambda batch: _hash(table, batch))(batches)

    return collect(chosen, add)


def _hash(table: Table, batch: pa.RecordBatch) -> Sum:
    columns = cells_of(table, file_codecs(table.columns), batch)
    writers = [column_writer(column) for column in table.columns]
    fields = [batch.column(name).to_pylist() for name in _FIELDS]
    untyped = batch.column("untyped").to_pylist()
    names = batch.column("column").to_pylist()
    total = 0
    for row, raw in enumerate(untyped):
        if raw is None:
            place = table.index[names[row]]
            raw = writers[place](columns[place][row]).SerializeToString()
        data = conflict_bytes([values[row] for values in fields], raw)
        total += int.from_bytes(hashlib.sha256(data).digest()[:16], "big")
    return Sum() + Sum(len(untyped), total)
