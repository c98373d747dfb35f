"""Spark starts on the machine's Java and on the packaged one, which lacks a module that Spark asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch_compactor.spark import class_archive, session
from anabranch_compactor.spark.java import Java, JavaError, find_java, java_home, packaged_home

PROGRAM = """
from anabranch_compactor.spark.session import spark_session

def same(batches):
    yield from batches

with spark_session("local[1]") as spark:
    rows = spark.range(5).mapInArrow(same, "id long").collect()
    print("rows", sorted(row.id for row in rows), spark._jvm.java.lang.System.getProperty("java.version"))
"""


def run(java: str, before: str = "") -> str:
    """The output of the program, with something ``before`` it, where JAVA_HOME is ``java``."""
    done = subprocess.run(
        [sys.executable, "-c", before + PROGRAM],
        env={**os.environ, "JAVA_HOME": java},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_packaged_java_lacks_the_module_and_runs_spark_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(packaged_home()))
    java = find_java()
    assert not java.has_vector, "the package brings the module now: the way around it can go"
    assert f"rows [0, 1, 2, 3, 4] {java.version}" in run(str(java.home))


@pytest.mark.long
def test_the_machines_java_runs_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = find_java()
    assert f"rows [0, 1, 2, 3, 4] {java.version}" in run(str(java.home))


WITHOUT_DAEMONS = """
from anabranch_compactor.spark import session
session._start_python = lambda spark: None
"""
"""Python's processes for the job are not started beforehand: they know nothing of an archive, and cost as much as half
of a Java."""


def made_before(java: Java) -> Path | None:
    """The archive that ``make classes`` has made, by the sources as they are."""
    made = class_archive.archive(java.version)
    sources = [Path(str(module.__file__)) for module in (class_archive, session)]
    is_new = made.exists() and all(made.stat().st_mtime > one.stat().st_mtime for one in sources)
    return made if is_new else None


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("packaged", [False, True])
def test_an_archive_of_classes_is_made_and_used_and_one_that_is_none_is_left_aside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packaged: bool
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if packaged:
        monkeypatch.setenv("JAVA_HOME", str(packaged_home()))
    java, file = find_java(), tmp_path / "archive.jsa"
    made = made_before(java)
    monkeypatch.setattr(class_archive, "archive", lambda _: file)
    assert class_archive.java_options(java.version) == ""
    if made is not None:
        shutil.copyfile(made, file)
    assert class_archive.make() == file
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    with_it = f"""
from pathlib import Path
from anabranch_compactor.spark import class_archive
class_archive.archive = lambda _: Path({str(file)!r})
"""
    wanted = f"rows [0, 1, 2, 3, 4] {java.version}"
    assert run(str(java.home), with_it).startswith(wanted), "and nothing else is printed"
    file.chmod(0o644)
    file.write_bytes(b"this is none" + file.read_bytes()[12:])
    assert run(str(java.home), with_it + WITHOUT_DAEMONS).startswith(wanted)
    file.write_bytes(b"")
    assert run(str(java.home), with_it + WITHOUT_DAEMONS).startswith(wanted)


def test_only_a_java_without_the_module_is_started_through_a_script(tmp_path: Path) -> None:
    home = tmp_path / "has it"
    assert java_home(Java(home, 17, has_vector=True), tmp_path / "made") == home
    assert not (tmp_path / "made").exists()
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    made = java_home(Java(home, 25, has_vector=False), tmp_path / "made")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=$y", "--add-modules=other"]
    printed = subprocess.run([made / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["-cp", "a b", "-Dx=$y", "--add-modules=other"]


@pytest.mark.parametrize(
    ("answer", "says"), [("java.base@11.0.2", "Java 11; Spark needs Java 17"), ("", "none that answers")]
)
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, says: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\necho {answer}\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=says):
        find_java()


def test_no_java_at_the_named_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="no Java that can be started"):
        find_java()
