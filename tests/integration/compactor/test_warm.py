"""The tests' warm compactor says and does what the program does, run by run, and ends with whoever has started it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.integration.compactor.conftest import Lake

from anabranch import faults
from anabranch.runtime.compactor_job import program
from anabranch.testkit.waiting import until
from anabranch.testkit.warm_compactor import ColdError, WarmCompactor

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

HOST = """
import json, sys
from pathlib import Path
from anabranch.testkit.warm_compactor import WarmCompactor

with WarmCompactor(Path(sys.argv[1])) as compactor:
    for line in sys.stdin:
        done = compactor.run(json.loads(line), 200.0)
        print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""
"""A process that may be killed."""


class Host:
    """The process, and what it was told."""

    def __init__(self, log: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOST, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, environment: Mapping[str, str]) -> list[int | str]:
        """Exit code, standard output and standard error of a run."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(dict(environment)) + "\n")
        self.process.stdin.flush()
        done: list[int | str] = json.loads(self.process.stdout.readline())
        return done


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "java.log")
    yield made
    made.process.kill()
    made.process.communicate()


def said(output: int | str) -> list[str]:
    """The steps of a run's standard output."""
    steps = [json.loads(line)["step"] for line in str(output).splitlines()]
    return [step for step in steps if step != "tasks"]


def test_its_runs_are_those_of_the_program_and_leave_nothing_behind(host: Host, lake: Lake, tmp_path: Path) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1), ("b", "t", None, 2)])
    arguments, environment = program(lake.url, str(lake.folder), database="app", master="local[1]")
    armed = tmp_path / "faults"
    faults.arm(armed, "before_publish")

    def by_the_program(more: Mapping[str, str]) -> list[int | str]:
        done = subprocess.run(
            arguments, env={**environment, **more}, capture_output=True, text=True, timeout=100, check=False
        )
        return [done.returncode, done.stdout, done.stderr]

    # A run that dies takes Spark along no more than the next run's fault points.
    code, output, errors = host.run({**environment, "ANABRANCH_FAULT_FILE": str(armed)})
    assert (code, said(output), errors) == (
        -signal.SIGKILL,
        ["begun", "planned", "started", "written", "proven"],
        "",
    )
    assert lake.sql("select * from anabranch.compactions") == []
    family = psutil.Process(host.process.pid).children(recursive=True)
    java = [one for one in family if one.name() == "java"]
    assert len(java) == 1
    faults.arm(armed, "before_publish")
    code, output, errors = host.run(environment)
    assert (code, errors) == (0, "")
    assert said(output) == ["begun", "planned", "started", "written", "proven", "outcome"]
    outcome = json.loads(str(output).splitlines()[-1])
    assert (outcome["changes"], outcome["run_id"]) == (2, lake.manifest().run_id)
    assert faults.armed(armed) == ["before_publish"]
    # Runs that need no Spark are the same to the byte: one without news, and those that can't be done.
    for more in ({}, {"ANABRANCH_COMPACT_DATABASE": "nowhere"}, {"ANABRANCH_SPARK_DRIVER_MEMORY_MIB": "1"}):
        assert host.run({**environment, **more}) == by_the_program(more)
    # An error that nobody caught ends one run.
    lake.writer().insert("todo", [("c", "t", None, 3)])
    code, output, errors = host.run({**environment, "ANABRANCH_SPARK_MASTER": "local[2]"})
    assert (code, said(output)) == (1, ["begun", "planned"])
    error = json.loads(str(errors))
    assert (error["event"], error["exception"][0]["exc_type"]) == ("not caught", "ValueError")
    code, output, errors = host.run(environment)
    assert (code, errors, json.loads(str(output).splitlines()[-1])["changes"]) == (0, "", 1)
    assert java[0].is_running(), "all of them had the one Spark"
    # Killed, it leaves nothing that runs.
    family = psutil.Process(host.process.pid).children(recursive=True)
    assert java[0] in family
    host.process.kill()
    until(lambda: not any(alive(one) for one in family), 60.0, "it outlives the process that has started it")


def alive(process: psutil.Process) -> bool:
    """Whether it runs; what has ended may wait for its parent."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_without_java_and_without_time_it_says_so(tmp_path: Path) -> None:
    _, environment = program("postgresql://127.0.0.1:1/nowhere", str(tmp_path / "lake"))
    # Other tests of this process may have one of their own, which lives on.
    before = set(psutil.Process().children(recursive=True))
    with WarmCompactor(tmp_path / "java.log") as compactor:
        with pytest.raises(ColdError, match="/nowhere is no Java that can be started"):
            compactor.run({**environment, "JAVA_HOME": "/nowhere"}, 60.0)
        with pytest.raises(subprocess.TimeoutExpired):
            compactor.run(environment, 0.05)
        children = set(psutil.Process().children(recursive=True)) - before
        assert not [
            one for one in children if alive(one) and "anabranch.testkit.warm_compactor_process" in one.cmdline()
        ]
