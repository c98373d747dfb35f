"""The command line of an executor in a pod is made of what Spark's driver gives the pod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch_compactor.spark.executor import NoExecutorError, command, spark_jars
from anabranch_compactor.spark.java import WITH_VECTOR, Java

GIVEN = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.0.9",
    "SPARK_EXECUTOR_POD_NAME": "rel-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in range(12)},
    "SPARK_JAVA_OPT_12": WITH_VECTOR,
}


@pytest.mark.parametrize("has_vector", [True, False])
def test_options_come_in_their_order_and_one_that_java_does_not_know_is_left_out(has_vector: bool) -> None:
    line = command(Java(Path("/java"), 999, has_vector), Path("/jars"), GIVEN)
    assert line[0] == "/java/bin/java"
    options = [f"-Dn={number}" for number in range(12)] + ([WITH_VECTOR] if has_vector else [])
    assert line[1 : len(options) + 2] == [*options, "-Xmx1g"]
    assert line[line.index("-cp") + 1] == "/jars/*"
    arguments = line[line.index("-cp") + 3 :]
    assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.1.0.9",
        "--resourceProfileId": "0",
        "--podName": "rel-exec-1",
    }


def test_classes_that_the_driver_names_go_first() -> None:
    line = command(Java(Path("/java"), 999, True), Path("/jars"), {**GIVEN, "SPARK_CLASSPATH": "/more/*"})
    assert line[line.index("-cp") + 1] == "/more/*:/jars/*"


def test_a_missing_variable_is_named() -> None:
    without = {name: value for name, value in GIVEN.items() if name != "SPARK_DRIVER_URL"}
    with pytest.raises(NoExecutorError, match=r"gives SPARK_DRIVER_URL$"):
        command(Java(Path("/java"), 21, True), Path("/jars"), without)


def test_spark_is_found_where_it_is_installed() -> None:
    assert list(spark_jars().glob("spark-kubernetes_*.jar"))


@pytest.mark.slow
def test_outside_of_a_pod_it_says_so() -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, "-m", "anabranch_compactor.spark.executor"],
        env=bare,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("anabranch: an executor is started by Spark's driver")
