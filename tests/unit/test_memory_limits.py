"""Services that tests start are held to the chart's limits of memory, with all processes below them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from anabranch.runtime.children import Child, Program
from anabranch.runtime.fleet import SERVICES
from anabranch.testkit import memory_limits
from anabranch.testkit.memory_limits import MIB, MemoryLimitError, MemoryWatch, chart_limits
from anabranch.testkit.process_memory import KNOWN, descendants, has_bytes
from anabranch.testkit.waiting import until

VALUES = Path(__file__).parents[2] / "helm" / "anabranch" / "values.yaml"
LIMIT = 100 * MIB
linux = pytest.mark.skipif(not KNOWN, reason="this machine does not report a process's memory")

GROWS = "held = b'x' * (200 << 20)\nimport time\ntime.sleep(60)"
STAYS = "import time\ntime.sleep(60)"
COMES_AND_GOES = "held = b'x' * (200 << 20)\ndel held\nprint('gone', flush=True)\nimport time\ntime.sleep(60)"
CHILD_GROWS = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {GROWS!r}])"

Start = Callable[[str, str], Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a named program of Python."""
    children: list[Child] = []

    def one(name: str, code: str) -> Child:
        program = Program(name, (sys.executable, "-c", code), dict(os.environ), tmp_path / f"{name}.log")
        children.append(Child(program, restarts=False, say=print))
        children[-1].start()
        return children[-1]

    yield one
    for child in children:
        child.send(signal.SIGKILL)
        child.stop(10)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "LOOK_S", 0.02)
    monkeypatch.setattr(memory_limits, "TREE_S", 0.02)


def test_the_limits_are_those_of_the_chart() -> None:
    values = yaml.safe_load(VALUES.read_text())
    limits = chart_limits([*SERVICES, "conflict-resolver-2", "ingest-0", "compactor"])
    assert values["services"]["defaults"]["resources"]["limits"]["memory"] == "1Gi"
    assert limits.pop("compactor") == 3 * 1024 * MIB
    assert limits == dict.fromkeys([*SERVICES, "conflict-resolver-2", "ingest-0"], 1024 * MIB)


@linux
@pytest.mark.parametrize("code", [GROWS, CHILD_GROWS], ids=["itself", "a process below it"])
def test_one_that_grows_above_its_limit_is_killed_and_named_and_others_stay(start: Start, code: str) -> None:
    greedy, modest = start("greedy", code), start("modest", STAYS)
    said: list[str] = []
    with (
        pytest.raises(
            MemoryLimitError, match=r"^greedy had [12]\d\d MiB of memory and was killed; its limit is 100 MiB$"
        ),
        MemoryWatch({"greedy": greedy, "modest": modest}, {"greedy": LIMIT, "modest": LIMIT}, said.append) as watch,
    ):
        until(lambda: greedy.pid is None)
    assert len(said) == 1
    assert modest.pid is not None
    assert 0 < watch.greatest["modest"] < LIMIT < watch.greatest["greedy"]


@linux
def test_the_processes_below_it_are_killed_with_it(start: Start) -> None:
    greedy = start("greedy", CHILD_GROWS)
    pid = greedy.pid
    assert pid is not None
    until(lambda: bool(descendants().get(pid)))
    [below] = descendants()[pid]
    watch = MemoryWatch({"greedy": greedy}, {"greedy": LIMIT}, print)
    watch.start()
    until(lambda: greedy.pid is None)
    until(lambda: not _has_memory(below))
    assert [excess.name for excess in watch.take()] == ["greedy"]
    watch.stop()


def _has_memory(pid: int) -> bool:
    try:
        return has_bytes(pid) > 0
    except (OSError, LookupError):
        return False


@linux
def test_what_came_and_went_between_two_looks_counts(start: Start) -> None:
    greedy = start("greedy", COMES_AND_GOES)
    until(lambda: "gone" in greedy.log_tail())
    with pytest.raises(MemoryLimitError, match="greedy"), MemoryWatch({"greedy": greedy}, {"greedy": LIMIT}, print):
        until(lambda: greedy.pid is None)


@linux
def test_another_failure_is_told_with_it(start: Start) -> None:
    greedy = start("greedy", GROWS)
    watch, other = MemoryWatch({"greedy": greedy}, {"greedy": LIMIT}, print), ValueError("another")
    watch.start()
    until(lambda: greedy.pid is None)
    watch.stop(other)
    [note] = other.__notes__
    assert "greedy had" in note
    assert "limit is 100 MiB" in note


@pytest.mark.parametrize(
    ("known", "limits", "why"),
    [(False, {"one": LIMIT}, "this machine does not report"), (True, {}, "no chart says")],
    ids=["no /proc", "no chart"],
)
def test_it_says_where_it_enforces_nothing(
    monkeypatch: pytest.MonkeyPatch, known: bool, limits: dict[str, int], why: str
) -> None:
    monkeypatch.setattr(memory_limits, "KNOWN", known)
    said: list[str] = []
    with MemoryWatch({}, limits, said.append):
        pass
    assert len(said) == 1
    assert said[0].startswith(f"memory limits are not enforced: {why}")


@linux
def test_processes_below_a_process_are_found() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as parent:
        until(lambda: bool(descendants().get(parent.pid)))
        found = descendants()
        [below] = found[parent.pid]
        assert {parent.pid, below} <= set(found[os.getpid()])
        parent.communicate(b"\n")
