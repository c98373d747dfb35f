"""The child process of the merge functions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.testkit.merge_functions import install
from anabranch.testkit.waiting import until
from anabranch.values import Cell
from anabranch.values.cells import Literal
from anabranch_conflict_resolver.functions import child as module
from anabranch_conflict_resolver.functions.child import Answer, Functions, NotNowError


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Functions]:
    monkeypatch.setenv("PYTHONPATH", install(tmp_path))
    made = Functions(timeout_ms=400)
    yield made
    made.close()


def ask(functions: Functions, name: str, *values: Cell) -> Answer:
    """The answer, once the child has started."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return functions.ask(name, *(values or ("old", "theirs", "mine")))
        except NotNowError:
            assert time.monotonic() < deadline, "the child does not start"


def gone(pid: int) -> bool:
    """Whether a process, perhaps of somebody else, has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_one_child_answers_all(functions: Functions) -> None:
    assert functions.pid is None
    functions.warm()
    pid = functions.pid
    assert pid is not None
    assert ask(functions, "join") == Answer("theirs / mine")
    assert ask(functions, "join", None, None, "mine") == Answer("mine")
    assert functions.pid == pid


@pytest.mark.parametrize(
    "cell",
    [
        None,
        True,
        -(2**63),
        0.1,
        -0.0,
        float("inf"),
        "😀\n",
        b"\0\xff",
        (1, None, (2, 3)),
        Literal("[2:2]={a}"),
        "x" * 5_000_000,
    ],
)
def test_values_come_through_as_they_are(functions: Functions, cell: Cell) -> None:
    answer = ask(functions, "echo", None, None, cell)
    assert answer.failure == ""
    assert answer.value == cell
    assert str(answer.value) == str(cell)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fails", "it raised KeyError: 'no such thing'"),
        ("odd", "it returned a object, which is no value of a column"),
        ("no_function", "it is no function but int"),
        ("lacking", "it can't be loaded: AttributeError"),
        ("unheard_of", "no such function is installed where the resolver runs"),
    ],
)
def test_a_failure_is_told_and_the_child_stays(functions: Functions, name: str, told: str) -> None:
    assert ask(functions, "join").value == "theirs / mine"
    pid = functions.pid
    assert told in ask(functions, name).failure
    assert functions.pid == pid


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hangs", "it did not answer within 400 ms"),
        ("dies", "its process ended before it answered"),
        ("huge", "it returned a value of 20000"),
    ],
)
def test_one_that_overruns_or_dies_is_ended_and_replaced(functions: Functions, name: str, told: str) -> None:
    assert ask(functions, "join").value == "theirs / mine"
    pid = functions.pid
    assert pid is not None
    started = time.monotonic()
    assert told in ask(functions, name).failure
    assert time.monotonic() - started < 5
    assert gone(pid)
    assert functions.pid not in (None, pid)
    assert ask(functions, "join").value == "theirs / mine"


@pytest.mark.slow
def test_whoever_asks_while_another_is_asked_waits_no_longer_than_a_call(functions: Functions) -> None:
    assert ask(functions, "join").value == "theirs / mine"
    threads = [threading.Thread(target=ask, args=(functions, "hangs")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert ask(functions, "join").value == "theirs / mine"


def test_a_child_that_can_not_start_is_told_of_at_once(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MODULE", "no.such.module")
    assert "failed to start 3 times" in ask(functions, "join").failure
    started = time.monotonic()
    assert "failed to start 3 times" in functions.ask("join", None, None, None).failure
    assert time.monotonic() - started < 0.3, "the next one is launched after a pause"
    assert functions.pid is None


def test_it_gets_none_of_the_services_settings(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_POSTGRES_URL", "postgresql://secret")
    assert ask(functions, "join").value == "theirs / mine"
    assert b"secret" not in Path(f"/proc/{functions.pid}/environ").read_bytes()


def test_nothing_is_left_when_it_is_closed(functions: Functions) -> None:
    assert ask(functions, "join").value == "theirs / mine"
    pid = functions.pid
    assert pid is not None
    functions.close()
    assert gone(pid)
    with pytest.raises(NotNowError):
        functions.ask("join", None, None, None)


@pytest.mark.slow
def test_nothing_is_left_when_the_service_is_killed(tmp_path: Path) -> None:
    """Also where the function was under way, and would never come back."""
    code = (
        "import threading, time\n"
        "from anabranch_conflict_resolver.functions.child import Functions, NotNowError\n"
        "f = Functions(60_000)\n"
        "f.ask('join', 1, 2, 3)\n"
        "threading.Thread(target=f.ask, args=('hangs', 1, 2, 3), daemon=True).start()\n"
        "print(f.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": install(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    # Structured log lines may come first.
    pid = next(int(line) for line in parent.stdout if line.strip().isdigit())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: gone(pid), 20, "the child outlives its parent")
