"""R09: far more rows have expired than one statement may remove, and the janitor is killed again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.janitor.conftest import Ground
from tests.integration.janitor.test_process import Rig

from anabranch import faults
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.waiting import until

ROWS = 40_000
KILLS = 3
PATIENCE_S = 90.0
LEFT = "select count(*) from anabranch.log where database_id = %s and position <= %s"


def expired(ground: Ground) -> int:
    """A group of so many rows, and the last position."""
    [first, last] = ground.write(2, rows=1)
    ground.conn.execute(
        "insert into anabranch.log (database_id, position, batch_id, ordinal, node_id, table_id, key, type, effect, "
        "effect_hash) select database_id, position, batch_id, n, node_id, table_id, key, type, effect, effect_hash "
        "from anabranch.log, generate_series(1, %s) n where database_id = %s and position = %s",
        (ROWS - 2, ground.id, first),
    )
    return last


@contextmanager
def ending(over: threading.Event, rig: Rig) -> Iterator[None]:
    """Have nothing go on after the block, however it ends."""
    try:
        yield
    finally:
        over.set()
        rig.child.stop(15)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_life_gets_further_with_statements_that_run_out_of_time_and_writers_go_on(
    ground: Ground, tmp_path: Path
) -> None:
    last = expired(ground)
    rig = Rig(
        ground,
        tmp_path,
        40,
        {
            "ANABRANCH_SWEEP_STATEMENT_TIMEOUT_MS": "40",
            # However fast the machine is, one removal is not everything.
            "ANABRANCH_SWEEP_MAX_ROWS": "10000",
            "ANABRANCH_SWEEP_INTERVAL_MS": "100",
        },
    )
    slowest, over = 0.0, threading.Event()
    written: list[int] = []

    def write() -> None:
        nonlocal slowest
        writer = LogWriter(ground.url, "app")
        try:
            while not over.is_set():
                began = time.monotonic()
                written.append(writer.insert("todo", [[f"w{len(written):06}", "x"]]))
                slowest = max(slowest, time.monotonic() - began)
                over.wait(0.02)
        finally:
            writer.close()

    def left() -> int:
        return ground.number(LEFT, ground.id, last)

    def wait_for_none() -> None:
        until(lambda: not left(), PATIENCE_S, rig.child.log_tail)

    with ThreadPoolExecutor(1) as writers, ending(over, rig):
        beside = writers.submit(write)
        before = left()
        assert before == ROWS
        lives = []
        for _ in range(KILLS):
            faults.arm(rig.fault_file, "after_removal")
            deaths = rig.child.deaths
            rig.child.start()
            rig.child.wait_died(deaths, PATIENCE_S)
            faults.disarm(rig.fault_file)
            lives.append(left())
            assert 0 < lives[-1] < before, "it got further, by less than everything"
            before = lives[-1]
        rig.child.start()
        wait_for_none()
        over.set()
        beside.result(PATIENCE_S)
    print(f"{ROWS} rows; left after each life: {lives}; {len(written)} groups beside, the slowest {slowest:.3f} s")
    assert slowest < 5
    assert ground.number("select count(*) from app.todo where id like 'w%'") == len(written)
