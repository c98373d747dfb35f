"""The parts of the runtime that need no server: reasons, limits, metrics, fault points, clock, children, the
command."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from anabranch import clock, faults
from anabranch.cli.app import COMMANDS
from anabranch.runtime import metrics
from anabranch.runtime.calls.limits import RateLimit
from anabranch.runtime.children import Child, Program
from anabranch.runtime.errors import CODES, CallError, reason_name, to_status
from anabranch.testkit.waiting import until
from anabranch.v1 import errors_pb2

FIRST_OF_CALLS = errors_pb2.REASON_UNAUTHENTICATED
"""In the contract, reasons from here on are those that a call fails for."""


def test_every_reason_of_a_call_has_a_code() -> None:
    of_calls = {number for number in errors_pb2.Reason.values() if number >= FIRST_OF_CALLS}
    assert of_calls
    assert of_calls <= set(CODES)


@pytest.mark.parametrize("reason", list(CODES), ids=reason_name)
def test_a_failure_is_a_status_with_exactly_one_error_info(reason: errors_pb2.Reason.ValueType) -> None:
    status = to_status(CallError(reason, "in words", floor="7"))
    assert status.code is CODES[reason]
    ((name, content),) = status.trailing_metadata
    assert name == "grpc-status-details-bin"
    (detail,) = status_pb2.Status.FromString(content).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert (info.domain, info.reason, dict(info.metadata)) == ("anabranch", reason_name(reason), {"floor": "7"})
    assert not info.reason.startswith("REASON_")


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    limit = RateLimit(50, 3)
    assert [limit.wait_s("a") for _ in range(3)] == [0, 0, 0]
    wait_s = limit.wait_s("a")
    assert 0 < wait_s <= 0.02
    assert limit.wait_s("b") == 0, "others have their own"
    time.sleep(wait_s + 0.001)
    assert limit.wait_s("a") == 0
    for _ in range(3):
        limit.wait_s("a")
    with pytest.raises(CallError) as caught:
        limit.take("a")
    assert caught.value.reason == errors_pb2.REASON_OVERLOADED
    assert int(caught.value.metadata["retry_after_ms"]) >= 1


def test_who_waits_for_tokens_gets_them_at_the_rate() -> None:
    async def run() -> float:
        limit, began = RateLimit(100, 3), time.monotonic()
        await asyncio.gather(*(limit.wait("a") for _ in range(13)))
        return time.monotonic() - began

    # Three of them at once, and ten more at the rate.
    assert asyncio.run(run()) >= 0.099


def test_buckets_are_bounded() -> None:
    limit = RateLimit(1, 1)
    for number in range(10_050):
        limit.wait_s(f"principal {number}")
    assert len(limit._buckets) == 10_000


def test_the_metrics_table_is_fit_for_dashboards() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(names) == len(set(names))
    for metric in metrics.METRICS:
        assert metric.name.startswith("anabranch_")
        assert metric.meaning
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert not {"node", "principal", "subject", "batch", "key", "table"} & set(metric.labels)


def test_other_labels_than_declared_are_refused() -> None:
    for labels in ({}, {"database": "x", "node": "y"}, {"node": "y"}):
        with pytest.raises(ValueError, match="anabranch_groups has the labels"):
            metrics.count("anabranch_groups", 1, **labels)
    with pytest.raises(KeyError):
        metrics.count("anabranch_unheard_of")


def test_arming_an_unknown_point_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such fault point"):
        faults.arm(tmp_path / "faults", "before_lunch")


REACH = """
import sys
from anabranch import faults
for point in sys.argv[1:]:
    faults.reach(point)
print("alive")
"""


def reach(file: Path | None, *points: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"ANABRANCH_FAULT_FILE": str(file)} if file else {})}
    return subprocess.run(
        [sys.executable, "-c", REACH, *points], env=environment, capture_output=True, text=True, timeout=20, check=False
    )


def test_a_process_dies_at_an_armed_point_once(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    assert reach(None, "before_commit").stdout == "alive\n"
    assert reach(file, "before_commit").stdout == "alive\n", "there is no such file yet"
    faults.arm(file, "before_commit")
    faults.arm(file, "after_commit")
    assert reach(file, "after_claim").stdout == "alive\n", "another point"
    died = reach(file, "before_commit", "after_commit")
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "")
    assert faults.armed(file) == ["after_commit"]
    assert reach(file, "before_commit").stdout == "alive\n", "once"


def test_the_clock_follows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    moved = clock.Clock(1_000, file)
    assert abs(moved.now_ms() - time.time() * 1000 - 1_000) < 500
    for offset_ms in (-3_600_000, 7_200_000, 0):
        clock.set_offset(file, offset_ms)
        assert abs(moved.now_ms() - time.time() * 1000 - 1_000 - offset_ms) < 500
    file.write_text("noon")
    with pytest.raises(ValueError, match="noon"):
        moved.now_ms()


WAITS = "import sys; print('here', flush=True); sys.stdin.read()"
ENDS = "import sys; print('here', flush=True); sys.exit(3)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"


class Said:
    """Collects what is said, and waits for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, text: str) -> None:
        with self._changed:
            self.lines.append(text)
            self._changed.notify_all()

    def wait(self, text: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: sum(text in line for line in self.lines) >= times, 10), self.lines


def child(tmp_path: Path, script: str, said: Said, *, restarts: bool) -> Child:
    command = (sys.executable, "-c", script)
    return Child(Program("it", command, dict(os.environ), tmp_path / "it.log"), restarts=restarts, say=said)


def until_here(made: Child, times: int = 1) -> None:
    until(lambda: made.log_tail().count("here") >= times, 10)


def test_a_child_that_dies_is_started_again_and_that_is_said(tmp_path: Path) -> None:
    said = Said()
    made = child(tmp_path, WAITS, said, restarts=True)
    made.start()
    until_here(made)
    first = made.pid
    made.kill()
    until_here(made, 2)
    assert made.pid not in (None, first)
    said.wait("was ended by SIGKILL; starting it again in 0.2 s")
    said.wait("it was started again")
    made.stop(5)
    assert made.pid is None
    assert made.deaths == 1, "stopping is no death"


@pytest.mark.slow
def test_the_pause_doubles_while_it_does_not_stay(tmp_path: Path) -> None:
    said = Said()
    made = child(tmp_path, ENDS, said, restarts=True)
    made.start()
    said.wait("ended with exit code 3; starting it again in 0.8 s")
    made.stop(5)
    pauses = [line.partition("again in ")[2].partition(" s")[0] for line in said.lines if "ended with" in line]
    assert pauses[:3] == ["0.2", "0.4", "0.8"]
    before = len(said.lines)
    time.sleep(0.9)
    assert len(said.lines) == before, "stopped means stopped"


def test_a_child_that_is_not_restarted_stays_dead_until_started(tmp_path: Path) -> None:
    made = child(tmp_path, WAITS, Said(), restarts=False)
    made.start()
    until_here(made)
    made.kill()
    assert made.pid is None
    made.kill()  # harmless
    assert not made.send(signal.SIGTERM)
    made.start()
    until_here(made, 2)
    made.stop(5)
    made.stop(5)  # harmless
    assert (made.pid, made.deaths) == (None, 1)


def test_a_stubborn_or_a_stopped_child_is_ended(tmp_path: Path) -> None:
    said = Said()
    stubborn = child(tmp_path, STUBBORN, said, restarts=True)
    stubborn.start()
    until_here(stubborn)
    stubborn.stop(0.3)
    assert stubborn.pid is None
    said.wait("did not stop in 0.3 s and is killed")
    frozen = child(tmp_path / "..", WAITS, said, restarts=False)
    frozen.start()
    frozen.send(signal.SIGSTOP)
    frozen.stop(5)
    assert frozen.pid is None


HELP = """
import sys
sys.argv = ["anabranch", "--help"]
from anabranch.cli.app import app
try:
    app()
finally:
    heavy = set("grpc psycopg sqlalchemy pydantic".split())
    print("LOADED", sorted({name.partition(".")[0] for name in sys.modules} & heavy))
"""


def test_help_lists_every_command_and_loads_none() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=20, check=True)
    assert "LOADED []" in done.stdout
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    command = [sys.executable, "-c", "from anabranch.cli.app import app; app()", name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert f"anabranch {name}" in done.stdout.replace("-c ", "anabranch ")
