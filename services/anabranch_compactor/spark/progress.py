"""Reports Spark's progress twice a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S = 0.5


@contextmanager
def watched(spark: SparkSession, say: Callable[..., None]) -> Iterator[None]:
    """Report the tasks of the stages under way, done and in all, while the block lasts."""
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def watch() -> None:
        before = None
        while not ended.wait(INTERVAL_S):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            now = (sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))
            if now != before and now[1]:
                say(step="tasks", done=now[0], tasks=now[1])
            before = now

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
