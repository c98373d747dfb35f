"""Of Spark's hundreds of lines about a failure one is told, and none that may quote a row."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from anabranch_compactor.spark.failure import reason, sentence

REFUSED = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: External scheduler cannot be instantiated
\tat org.apache.spark.SparkContext$.org$apache$spark$SparkContext$$createTaskScheduler(SparkContext.scala:3204)
Caused by: io.fabric8.kubernetes.client.KubernetesClientException: Operation: [get]  for kind: [Pod] failed.
\tat io.fabric8.kubernetes.client.KubernetesClientException.launderThrowable(KubernetesClientException.java:159)
Caused by: java.net.UnknownHostException: kubernetes.default.svc: Name or service not known
\tat java.base/java.net.Inet4AddressImpl.lookupAllHostAddr(Native Method)
\t... 5 more
"""
IN_A_TASK = """An error occurred while calling o98.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) (10.1.0.9 executor 1): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/worker.py", line 1, in main
    process()
psycopg.errors.InvalidTextRepresentation: invalid input syntax for type integer: "a secret"
CONTEXT:  a secret

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/worker.py", line 1, in main
    process()
psycopg.errors.InvalidTextRepresentation: invalid input syntax for type integer: "a secret"
"""
OF_A_QUERY = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/worker.py", line 1, in main
    process()
PermissionError: [Errno 13] Permission denied: '/lake/a secret'"""
LOST = """An error occurred while calling o98.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 1.0 failed 4 \
times, most recent failure: Lost task 1.3 in stage 1.0 (TID 9) (10.1.0.9 executor 4): \
ExecutorLostFailure (executor 4 exited caused by one of the running tasks) \
Reason: The executor with id 4 exited with exit code 137(SIGKILL, possible container OOM).
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (REFUSED, "UnknownHostException: kubernetes.default.svc: Name or service not known"),
        (IN_A_TASK, "psycopg.errors.InvalidTextRepresentation in a task"),
        (OF_A_QUERY, "PermissionError in a task"),
        (
            LOST,
            "executors were lost: The executor with id 4 exited with exit code 137(SIGKILL, possible container OOM).",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.\nMore.",
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
        ),
        ("", ""),
    ],
)
def test_the_innermost_cause_is_told(text: str, told: str) -> None:
    assert reason(text) == told


def test_a_task_whose_traceback_is_cut_tells_nothing_of_it() -> None:
    text = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File 'a secret'"
    assert reason(text) == "an error in a task"


def test_a_long_line_is_cut() -> None:
    assert len(reason("x" * 5_000)) == 301


@pytest.mark.parametrize("error", [Py4JError("gone"), Py4JNetworkError("gone"), PySparkRuntimeError(message="gone")])
def test_errors_of_spark_and_of_the_way_to_it_are_one_line(error: Exception) -> None:
    told = sentence(error)
    assert told is not None
    assert told.startswith("Spark ended the run: ")
    assert "\n" not in told


def test_another_error_is_none_of_spark() -> None:
    assert sentence(RuntimeError("a fault of ours")) is None
