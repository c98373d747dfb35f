"""Spark's classes, read and checked once: an archive that the JVM maps into memory where it would else load some
fifteen thousand classes, one by one, at every start.

``python -m anabranch_compactor.spark.class_archive`` makes it, beside the installation, for the Java that is found; it
takes about half a minute, and is done where the archive is there. Without one everything works, and starts some seconds
later. A JVM that can't use an archive (of another Java, or of other jars) ignores it by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Faults of an archive do no harm; without this option the JVM would print them into the job's output."""
_AHEAD_OF_TIME = 25
"""The first Java whose archives need none of its own beneath."""
_PATIENCE_S = 300
_PROGRAM = """
from anabranch_compactor.spark.session import spark_session
from pyspark.sql import functions as F

def same(batches):
    yield from batches

with spark_session("local[2]") as spark:
    rows = spark.range(0, 8, 1, 2).mapInArrow(same, "id long").withColumn("part", F.col("id").cast("int"))
    assert len(rows.repartitionById(8, F.col("part")).mapInArrow(same, "id long, part int").collect()) == 8
"""
RECORD_VARIABLE = "ANABRANCH_CLASS_ARCHIVE"
"""The file that a session is to leave an archive in."""


def archive(java_version: int) -> Path:
    """The path of the archive for a Java of that version."""
    import pyspark

    name = f"spark-{pyspark.__version__}-java-{java_version}.jsa"
    return Path(sys.prefix) / "share" / "anabranch" / name


def java_options(java_version: int) -> str:
    """The options by which the JVM uses its archive, or makes it; empty where there is none."""
    ahead = java_version >= _AHEAD_OF_TIME
    made = os.environ.get(RECORD_VARIABLE)
    if made:
        return f'{_QUIET} "-XX:{"AOTCacheOutput" if ahead else "ArchiveClassesAtExit"}={made}"'
    path = archive(java_version)
    if not path.exists():
        return ""
    return f'{_QUIET} "-XX:{"AOTCache" if ahead else "SharedArchiveFile"}={path}"'


def make() -> Path | None:
    """Make the archive; None where this Java can't.

    Raises:
        JavaError: there is no Java that Spark runs on.
        RuntimeError: Spark does not run on it.
    """
    from anabranch_compactor.spark.java import find_java

    path = archive(find_java().version)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        # The JVM writes when it ends, which a session waits for as it ends itself.
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, RECORD_VARIABLE: str(draft)},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"Spark does not run: {done.stderr.strip()[-2_000:]}")
        if not draft.exists():
            return None
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def main() -> None:
    """Make it, and say so."""
    from anabranch_compactor.spark.java import JavaError

    try:
        found = make()
    except (JavaError, RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        # Nothing depends on it, and a run that needs Spark reports what is wrong with Spark.
        print(f"classes of Spark: no archive, since {error}")
    else:
        print(f"classes of Spark: {found or 'this Java keeps no archive'}")


if __name__ == "__main__":
    main()
