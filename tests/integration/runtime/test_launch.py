"""The two ways to start a service, as a program and by a fork, lead to the same process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import psutil
import pytest

from anabranch.ports import free_port
from anabranch.runtime import children
from anabranch.runtime.children import Child, Launch, Program
from anabranch.testkit import preforked
from anabranch.testkit.waiting import until

MODULE = "anabranch.testkit.echo_service"


@pytest.fixture(params=[children.launch, preforked.launch], ids=["program", "fork"])
def launch(request: pytest.FixtureRequest) -> Launch:
    chosen: Launch = request.param
    return chosen


class Made:
    """Processes of one test, and what they are given."""

    def __init__(self, launch: Launch, url: str, folder: Path) -> None:
        self.kept: list[Child] = []
        self._launch = launch
        self._folder = folder
        self._url = url

    def __call__(self, more: Mapping[str, str] | None = None) -> Child:
        environment = {
            **os.environ,
            "ANABRANCH_POSTGRES_URL": self._url,
            "ANABRANCH_LISTEN_ADDRESS": f"127.0.0.1:{free_port()}",
            "ANABRANCH_END_WITH_STDIN": "true",
            **(more or {}),
        }
        log = self._folder / f"{len(self.kept)}.log"
        program = Program("echo", (sys.executable, "-m", MODULE), environment, log)
        child = Child(program, restarts=False, say=print, launch=self._launch)
        self.kept.append(child)
        child.start()
        return child


@pytest.fixture
def start(launch: Launch, migrated_url: str, tmp_path: Path) -> Iterator[Made]:
    made = Made(launch, migrated_url, tmp_path)
    yield made
    for child in made.kept:
        child.stop(10)


def log_of(child: Child) -> str:
    return child.program.log.read_text()


def ended(child: Child) -> None:
    until(lambda: child.pid is None, why=lambda: f"it has ended; its log: {log_of(child)}")


def test_it_has_a_session_an_environment_and_files_of_its_own(
    start: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start()
    monkeypatch.chdir(tmp_path)
    one = start({"ANABRANCH_LOG_LEVEL": "debug"})
    for child in (one, other):
        until(lambda child=child: '"ready"' in log_of(child))  # type: ignore[misc]
        assert child.pid is not None
        assert os.getsid(child.pid) == child.pid
        assert os.readlink(f"/proc/{child.pid}/fd/1") == str(child.program.log)
    assert one.pid != other.pid
    assert one.pid is not None
    assert psutil.Process(one.pid).cwd() == str(tmp_path)
    # A fork has no more files of its parent's than a program has.
    files = {os.readlink(f"/proc/{one.pid}/fd/{n}") for n in os.listdir(f"/proc/{one.pid}/fd")}
    assert str(other.program.log) not in files


def test_a_signal_ends_it_in_order(start: Made) -> None:
    child = start()
    until(lambda: '"ready"' in log_of(child))
    child.send(signal.SIGTERM)
    ended(child)
    assert '"stopped"' in log_of(child)
    assert child.deaths == 1


def test_it_is_killed_once_and_starts_again(start: Made) -> None:
    child = start()
    before = child.pid
    child.kill()
    assert (child.pid, child.deaths) == (None, 1)
    child.start()
    until(lambda: '"ready"' in log_of(child))
    assert child.pid not in (None, before)


def test_it_ends_with_its_standard_input(start: Made) -> None:
    child = start()
    until(lambda: '"ready"' in log_of(child))
    assert child._process is not None
    assert child._process.stdin is not None
    child._process.stdin.close()
    ended(child)


def test_bad_settings_are_one_line_and_an_exit_code(launch: Launch, migrated_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "ANABRANCH_POSTGRES_URL": migrated_url, "ANABRANCH_DRAIN_MS": "soon"}
    program = Program("echo", (sys.executable, "-m", MODULE), environment, tmp_path / "log")
    with program.log.open("ab") as output:
        process = launch(program, output)
    process.await_end()
    assert process.wait() == 2
    assert process.stdin is not None
    process.stdin.close()
    [line] = program.log.read_text().splitlines()
    assert "ANABRANCH_DRAIN_MS" in line


def test_another_variable_than_a_setting_starts_the_program(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be one that Python reads when it starts, or a library when it is imported."""
    programs: list[Program] = []
    launch = children.launch

    def noted(program: Program, output: IO[bytes]) -> children.Process:
        programs.append(program)
        return launch(program, output)

    made = Made(preforked.launch, migrated_url, tmp_path)
    monkeypatch.setattr(children, "launch", noted)
    made()
    assert programs == []
    made({"PYTHONPATH": str(tmp_path)})
    assert len(programs) == 1
    for child in made.kept:
        child.stop(10)
