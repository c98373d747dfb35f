"""The Spark session of a run."""

from __future__ import annotations

import os
import pwd
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch_compactor.spark import class_archive
from anabranch_compactor.spark.java import find_java, java_home

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # INT64 microseconds, and the calendar that Postgres counts in, on both ways.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.compression.codec": "zstd",
    # Column names are compared as they are written.
    "spark.sql.caseSensitive": "true",
    # A column named like a folder's key is that column.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Rows travel to Python and back in record batches of this many rows and bytes at the most.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
    # Arrow's own pools ask for huge pages, which on virtual machines are slow to come.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.python.daemon.module": "anabranch_compactor.spark.daemon",
    # A task that is tried again, or twice, must not overwrite what another has committed.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""The settings that every run needs, wherever it runs; ``spark-submit --conf`` may add to them."""


def lake_root(given: str) -> str:
    """A root as Hadoop takes it: a folder of this machine becomes a ``file:`` path."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", given):
        return given.rstrip("/")
    return f"file:{Path(given).absolute()}"


def submitted() -> bool:
    """Whether this runs under ``spark-submit``, which has started the JVM already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def spark_session(master: str | None, *, driver_memory_mib: int = 1024) -> Iterator[SparkSession]:
    """A session on ``master`` (None: what ``spark-submit`` or Spark's own settings say, else this machine), ended
    afterwards. The log is registered as a data source, and Spark's Python processes run.

    Raises:
        JavaError: there is no Java that Spark runs on.
    """
    with tempfile.TemporaryDirectory(prefix="anabranch-spark-") as name:
        folder = Path(name)
        local = master is None or master.startswith("local")
        options = ""
        if not submitted():
            java = find_java()
            os.environ["JAVA_HOME"] = str(java_home(java, folder / "java"))
            options = class_archive.java_options(java.version)
            if local:
                # Its workers are of this installation, and nothing of it listens beyond this machine.
                os.environ["PYSPARK_PYTHON"] = sys.executable
                os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
        settings = dict(SETTINGS)
        if master is not None:
            settings["spark.master"] = master
        if local:
            settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = _LOOPBACK
            settings["spark.local.dir"] = str(folder / "scratch")
            # Minutes are too short for the optimizing compiler: it takes more time than it saves.
            settings["spark.driver.extraJavaOptions"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {options}"
        settings["spark.driver.memory"] = f"{driver_memory_mib}m"
        # Spark warns about its pandas functions, which nothing here uses.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        from pyspark import SparkConf
        from pyspark.sql import SparkSession

        conf = SparkConf().setAppName("anabranch-compactor").setAll(list(settings.items()))
        _name_user(conf)
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        try:
            _start_python(session)
            yield session
        finally:
            session.stop()


def _start_python(spark: SparkSession) -> None:
    """Have Spark start its Python processes, each of which takes a second to load what it needs: the one that workers
    are forked from, and beside it those that answer for the data source."""
    from anabranch_compactor.spark.log_source import FORMAT, LogSource

    def answer() -> None:
        spark.dataSource.register(LogSource)
        nothing = {"url": "", "database": "0", "after": "0", "cuts": "", "what": "", "read": ""}
        spark.read.format(FORMAT).options(**nothing).load().collect()

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    with ThreadPoolExecutor(1, "start") as beside:
        answering = beside.submit(answer)
        spark.range(0, 1, 1, 1).mapInArrow(same, "id long").collect()
        answering.result()


def _name_user(conf: SparkConf) -> None:
    """Give Hadoop a user name where the process's uid has none, as in a container: it refuses such a process."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        from pyspark import SparkContext

        # Spark has no setting for it: the JVM has to be there, and the context must not.
        SparkContext._ensure_initialized(conf=conf)
        users = SparkContext._jvm.org.apache.hadoop.security.UserGroupInformation  # type: ignore[union-attr]
        users.setLoginUser(users.createRemoteUser("anabranch"))
