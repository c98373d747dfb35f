"""The job by ``spark-submit``: the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.integration.compactor.conftest import Lake
from tests.integration.compactor.test_runs import history, rows_of_base

import anabranch_compactor
from anabranch_compactor.spark.java import find_java, java_home

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(500), pytest.mark.long]

JOB = Path(anabranch_compactor.__file__).with_name("__main__.py")


def submitted(lake: Lake, arguments: list[str], environment: Mapping[str, str]) -> dict[str, object]:
    """Run a program as the job; its outcome."""
    settings = {"ANABRANCH_POSTGRES_URL": lake.url, "ANABRANCH_LAKE_ROOT": str(lake.folder)}
    done = subprocess.run(
        arguments,
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outcome: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def same_as_postgres(lake: Lake, changes: int) -> None:
    """Every change is there once, and the base is the table."""
    found = history(lake)
    assert len(found) == changes
    assert len({(row["anabranch"]["position"], row["anabranch"]["batch"], row["id"]) for row in found}) == changes
    wanted = {r[0]: dict(zip(("id", "title", "done", "n"), r, strict=True)) for r in lake.sql("select * from todo")}
    assert rows_of_base(lake) == wanted


def write(lake: Lake) -> int:
    """A few changes; their number."""
    writer = lake.writer()
    writer.insert("todo", [(f"k{i:03}", f"title {i}", None, i) for i in range(200)])
    for i in range(10):
        writer.update("todo", (f"k{i:03}",), {"n": 1000 + i})
    writer.delete("todo", ("k199",))
    return 211


def test_the_job_runs_by_spark_submit(lake: Lake, tmp_path: Path) -> None:
    changes = write(lake)
    submit = Path(sys.executable).with_name("spark-submit")
    environment = {"JAVA_HOME": str(java_home(find_java(), tmp_path / "java")), "PYSPARK_PYTHON": sys.executable}
    local = ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    outcome = submitted(lake, [str(submit), "--master", "local[2]", *local, str(JOB)], environment)
    assert outcome["changes"] == changes
    same_as_postgres(lake, changes)
