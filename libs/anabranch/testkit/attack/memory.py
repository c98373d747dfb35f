"""The memory of the services against the chart's limits."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from anabranch.testkit.process_memory import has_bytes

LIMIT_BYTES = 1024**3
"""The chart's ``services.defaults.resources.limits.memory``; a test compares them."""
LOOK_S = 0.05


def greatest(pids: Mapping[str, int], stop: threading.Event) -> dict[str, int]:
    """Look until ``stop``; the most bytes resident by name. A process that has ended counts as it was."""
    most = dict.fromkeys(pids, 0)
    while True:
        for name, pid in pids.items():
            try:
                most[name] = max(most[name], has_bytes(pid))
            except (FileNotFoundError, LookupError):
                continue  # It has ended; the attack's report says so.
        if stop.wait(LOOK_S):
            return most
