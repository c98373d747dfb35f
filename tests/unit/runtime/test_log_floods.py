"""One cause can't flood a log, and what was left out is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from anabranch.runtime import children
from anabranch.runtime.children import Child, Program
from anabranch.runtime.log_floods import LINES, TEXT_CHARACTERS, WINDOW_S, Flood
from anabranch.testkit.waiting import until

FLOODS = """
import logging, structlog
from anabranch.runtime.logs import configure_logs
configure_logs("test", "info")
own, library = structlog.get_logger(), logging.getLogger("library")
for number in range(3_000):
    try:
        raise ValueError(f"{number}" + "x" * 100_000)
    except ValueError as error:
        own.error("failed", number=number, exc_info=error)
    library.warning("no luck with %s", number)
own.error("something else")
own.info("in the ordinary course")
"""


def test_one_cause_has_few_lines_and_others_have_theirs() -> None:
    done = subprocess.run([sys.executable, "-c", FLOODS], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    events = [line["event"] for line in lines]
    assert events.count("failed") == LINES
    assert sum(event.startswith("no luck") for event in events) == LINES
    assert events[-2:] == ["something else", "in the ordinary course"]
    assert max(len(line) for line in done.stderr.splitlines()) < 3 * TEXT_CHARACTERS


def test_the_next_line_tells_how_many_were_left_out() -> None:
    now = [0.0]
    flood = Flood(lambda: now[0])
    cause = ("failed", "error", "ValueError")
    assert [flood.left_out(cause) for _ in range(LINES + 5)] == [0] * LINES + [None] * 5
    assert flood.left_out(("failed", "error", "OSError")) == 0
    now[0] = WINDOW_S
    assert [flood.left_out(cause) for _ in range(2)] == [5, 0]


def _is_aside(log: Path, aside: Path) -> bool:
    return aside.exists() and log.stat().st_size == 0


def test_a_large_log_is_put_aside_while_its_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LOG_KEPT_BYTES", 100_000)
    monkeypatch.setattr(children, "LOG_LOOK_S", 0.02)
    log = tmp_path / "one.log"
    program = Program("one", (sys.executable, "-u", "-c", "while input(): print('x' * 200_000, flush=True)"), {}, log)
    child = Child(program, restarts=False, say=print)
    child.start()
    try:
        pid, process = child.pid, child._process
        assert process is not None
        assert process.stdin is not None
        for number in range(3):
            aside = tmp_path / "one.log.1"
            aside.unlink(missing_ok=True)
            process.stdin.write(b"more\n")
            process.stdin.flush()
            until(partial(_is_aside, log, aside), 10)
            assert aside.stat().st_size == 200_001, number
        assert child.pid == pid
    finally:
        child.stop(10)
