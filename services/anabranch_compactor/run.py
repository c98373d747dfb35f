"""The state that the steps of a run share: the session, the root, and the reader of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from anabranch.columnar.manifest import epoch_folder
from anabranch_compactor.files.lake_files import LakeFiles
from anabranch_compactor.plan import Plan
from anabranch_compactor.spark.log_source import FORMAT, TaskReading
from anabranch_compactor.spark.packing import Route
from anabranch_compactor.spark.tracing import task_trace


@dataclass(frozen=True, slots=True)
class Run:
    """``root`` is a path of Hadoop's; ``files`` are those of the database's epoch."""

    spark: SparkSession
    url: str
    run_id: str
    root: str
    plan: Plan
    files: LakeFiles

    @property
    def folder(self) -> str:
        """The folder of the epoch."""
        return lake_folder(self.root, self.plan)

    def log(self, changes: Mapping[int, Route], conflicts: Mapping[int, Route]) -> DataFrame:
        """The run's stretch of the log, and of the conflicts, packed."""
        plan = self.plan
        options = {
            "url": self.url,
            "database": str(plan.database.id),
            "after": str(plan.after),
            "cuts": ",".join(map(str, plan.cuts)),
            "what": ",".join(["changes"] * bool(changes) + ["conflicts"] * bool(conflicts)),
            "read": TaskReading(changes, conflicts, task_trace()).to_text(),
        }
        return self.spark.read.format(FORMAT).options(**options).load()


def lake_folder(root: str, plan: Plan) -> str:
    """The folder of a database's epoch, as Hadoop takes it."""
    return f"{root}/{epoch_folder(plan.database.name, plan.database.epoch)}"
