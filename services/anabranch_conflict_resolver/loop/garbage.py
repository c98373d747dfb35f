"""Decides when Python collects garbage in cycles.

A group makes some hundred thousand objects and drops them all at its end, without cycles. The collector, left to
itself, would go through them again and again while they live: it took a third of a group's time. So it runs only
between groups, when next to nothing is alive that was not there before, and thoroughly when there is nothing to do.
"""

from __future__ import annotations

import gc

_NEW_OBJECTS = 20_000


def collect_only_on_call() -> None:
    """Have the collector run only by the functions below. Objects that exist now are never looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()


def between_groups() -> None:
    """Look through the objects made since the last time, where they are many."""
    if gc.get_count()[0] > _NEW_OBJECTS:
        gc.collect(1)


def when_idle() -> None:
    """Look through everything that is not frozen."""
    gc.collect()
