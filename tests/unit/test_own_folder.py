"""Folders of runs that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from anabranch.testkit.own_folder import own_folder

RUN = """
import sys
from anabranch.testkit.own_folder import own_folder
with own_folder("story") as folder:
    (folder / "file").write_text("of a run")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def running(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run, and its folder; it ends with the block, or when it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_a_run_removes_what_killed_ones_of_its_kind_left_and_nothing_else(temporary: Path) -> None:
    others = [temporary / name for name in ("anabranch-story-made-by-hand", "anabranch-history-x", "anything")]
    for other in others:
        (other / "kept").mkdir(parents=True)
    (others[1] / "run.lock").touch()
    with ExitStack() as block:
        _, alive = block.enter_context(running(temporary))
        killed, left = block.enter_context(running(temporary))
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        assert (left / "file").read_text() == "of a run"
        with own_folder("story") as own:
            assert not left.exists()
            assert (alive / "file").read_text() == "of a run"
            assert own.parent == temporary
        assert not own.exists()
    assert not alive.exists()
    assert all((other / "kept").is_dir() for other in others)
