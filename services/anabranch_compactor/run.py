"""What the steps of a run share: the session, the root, and how files are written and found again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from anabranch.columnar.manifest import File, epoch_folder
from anabranch.runtime.telemetry import span
from anabranch_compactor.hadoop_files import HadoopFiles
from anabranch_compactor.log_source import FORMAT, Reading
from anabranch_compactor.parquet_files import FILE_BYTES
from anabranch_compactor.plan import Plan
from anabranch_compactor.prove import FileSum
from anabranch_compactor.shape import Shape
from anabranch_compactor.tracing import task_trace

ROW_GROUP_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """``root`` is a path of Hadoop's; ``files`` are those of the database's epoch."""

    spark: SparkSession
    url: str
    run_id: str
    root: str
    plan: Plan
    files: HadoopFiles

    @property
    def folder(self) -> str:
        """The folder of the epoch."""
        return lake_folder(self.root, self.plan)

    def log(self, shape: Shape, what: str, parts: int = 1) -> DataFrame:
        """The run's stretch of the log (``what``: "changes"), packed for so many parts, or of the conflicts, of one
        table."""
        plan = self.plan
        options = {
            "url": self.url,
            "database": str(plan.database.id),
            "after": str(plan.after),
            "cuts": ",".join(map(str, plan.cuts)),
            "what": what,
            "read": Reading(shape.table, parts, task_trace()).to_text(),
        }
        return self.spark.read.format(FORMAT).options(**options).load()

    def write(self, rows: DataFrame, folder: str, *, row_bytes: float) -> None:
        """Write rows into ``<folder>/<run>``. A partition is a file, or several where it is too large."""
        most = max(1_000, int(FILE_BYTES / max(row_bytes, 1.0)))
        writer = rows.write.option("maxRecordsPerFile", most).option("parquet.block.size", ROW_GROUP_BYTES)
        with span("write") as one:
            one.set_attribute("anabranch.folder", folder)
            writer.mode("errorifexists").parquet(f"{self.folder}/{folder}/{self.run_id}")

    def read(self, shape: Shape, files: Sequence[File], kind: T.StructType) -> DataFrame:
        """The rows of files of the lake, as ``Shape.read`` gives them."""
        return shape.read(self.spark, [f"{self.folder}/{file.path}" for file in files], kind)

    def written(self, shape: Shape, folder: str, kind: T.StructType) -> DataFrame:
        """The rows that this run has written into a folder."""
        return shape.read(self.spark, [f"{self.folder}/{folder}/{self.run_id}"], kind)

    def found(self, folder: str, sums: Sequence[FileSum], *, delta: bool = False) -> tuple[File, ...]:
        """The files that this run has written into a folder, each with its sum. A sum's name is the file's path, with
        the bucket and a bar before it for files of a base."""
        by_name = {}
        for one in sums:
            bucket, _, path = one.name.rpartition("|")
            by_name[path.rpartition("/")[2]] = (int(bucket or 0), one)
        listed = {found.path: found.bytes for found in self.files.below(f"{folder}/{self.run_id}")}
        return tuple(
            File(
                f"{folder}/{self.run_id}/{name}",
                one.sum.count,
                listed[name],
                f"{one.sum.total:032x}",
                one.first_position,
                one.last_position,
                bucket,
                delta,
            )
            for name, (bucket, one) in sorted(by_name.items())
        )


def lake_folder(root: str, plan: Plan) -> str:
    """The folder of a database's epoch, as Hadoop takes it."""
    return f"{root}/{epoch_folder(plan.database.name, plan.database.epoch)}"


def parts(size: int) -> int:
    """How many partitions to write so many bytes in."""
    return max(1, math.ceil(size / (FILE_BYTES / 2)))
