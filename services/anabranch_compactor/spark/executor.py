"""Becomes the Java process of an executor in a pod, from the variables that Spark's driver gives the pod.

``python -m anabranch_compactor.spark.executor``. Spark's own images have a shell script for it, which finds Java where
those images have it, and gives it an option for a module that not every Java has (``java``).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from anabranch.errors import ServerError
from anabranch_compactor.spark import class_archive
from anabranch_compactor.spark.java import WITH_VECTOR, Java, JavaError, find_java

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_GIVEN = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Argument of the backend to the variable that has its value."""
_MEMORY = "SPARK_EXECUTOR_MEMORY"
_MORE_CLASSES = "SPARK_CLASSPATH"


class NoExecutorError(ServerError):
    """This is no pod that Spark's driver made; the message names the variables that are missing."""


def command(java: Java, jars: Path, environment: Mapping[str, str]) -> list[str]:
    """The executor's command line: ``jars`` is the folder of Spark's classes.

    Raises:
        NoExecutorError: variables are missing.
    """
    missing = [name for name in (*_GIVEN.values(), _MEMORY) if not environment.get(name)]
    if missing:
        raise NoExecutorError(f"an executor is started by Spark's driver, which gives {', '.join(missing)}")
    numbered = sorted(
        (int(found[1]), value) for name, value in environment.items() if (found := _OPTION.fullmatch(name))
    )
    options = [value for _, value in numbered if java.has_vector or value != WITH_VECTOR]
    classes = [environment[_MORE_CLASSES]] if environment.get(_MORE_CLASSES) else []
    arguments = [part for name, variable in _GIVEN.items() for part in (name, environment[variable])]
    return [
        str(java.home / "bin" / "java"),
        *shlex.split(class_archive.java_options(java.version)),
        *options,
        f"-Xmx{environment[_MEMORY]}",
        "-cp",
        os.pathsep.join([*classes, f"{jars}/*"]),
        _BACKEND,
        *arguments,
    ]


def spark_jars() -> Path:
    """The folder of Spark's classes in this installation."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"


def main() -> int:
    """Never returns where the executor starts; exit code 2 where it can't."""
    try:
        arguments = command(find_java(), spark_jars(), os.environ)
    except (JavaError, NoExecutorError) as error:
        print(f"anabranch: {error}", file=sys.stderr)
        return 2
    os.execv(arguments[0], arguments)
    raise AssertionError("unreachable")


if __name__ == "__main__":
    sys.exit(main())
