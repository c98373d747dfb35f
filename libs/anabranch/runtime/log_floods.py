"""Keeps one cause from flooding a log: of its lines so many are written in a while, the others are counted.

A cause is the event, the level and the class of the error: what the code says, and no value of a call. The next line of
the cause says how many were left out before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import structlog

LINES = 30
"""Lines of one cause that are written in ``WINDOW_S``."""
WINDOW_S = 60.0
CAUSES = 1_000
"""Causes that are remembered: those that logged last."""
TEXT_CHARACTERS = 4_000
"""The longest text of a line."""
LIMITED = frozenset({"warning", "error", "critical", "exception"})
"""The levels that are limited: what happens in the ordinary course is told in full."""
_Cause = tuple[str, str, str]


@dataclass(slots=True)
class _Window:
    since: float
    lines: int = 0
    left_out: int = 0


class Flood:
    """Counts lines by cause; used by all loggers of a process, from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: OrderedDict[_Cause, _Window] = OrderedDict()
        self._turn = threading.Lock()

    def left_out(self, cause: _Cause) -> int | None:
        """None where a line of this cause is to be left out; else the number of those left out since the last one."""
        now = self._clock()
        with self._turn:
            window = self._windows.get(cause)
            if window is None:
                window = self._windows[cause] = _Window(now)
                if len(self._windows) > CAUSES:
                    self._windows.popitem(last=False)
            self._windows.move_to_end(cause)
            if now - window.since >= WINDOW_S:
                window.since, window.lines = now, 0
            if window.lines >= LINES:
                window.left_out += 1
                return None
            window.lines += 1
            left_out, window.left_out = window.left_out, 0
            return left_out

    def processor(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor of structlog; the first one, so that a line that is left out costs nothing more."""
        if method not in LIMITED:
            return event
        left_out = self.left_out((str(event.get("event")), method, _error_name(event.get("exc_info"))))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """A filter of the standard module's handlers, by the text of a record before values are put in."""
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[0] if record.exc_info else None
        cause = (f"{record.name}: {record.msg}"[:200], record.levelname, error.__name__ if error else "")
        left_out = self.left_out(cause)
        if left_out:
            record.left_out = left_out
        return left_out is not None


def _error_name(given: Any) -> str:
    if isinstance(given, tuple):
        given = given[1]
    return type(given).__name__ if isinstance(given, BaseException) else ""


def cut_texts(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor that cuts long texts, those of errors too."""
    for name, value in event.items():
        if isinstance(value, str) and len(value) > TEXT_CHARACTERS:
            event[name] = _cut(value)
        elif name == "exception" and isinstance(value, list):
            for one in value:
                if len(str(one.get("exc_value", ""))) > TEXT_CHARACTERS:
                    one["exc_value"] = _cut(str(one["exc_value"]))
    return event


def _cut(text: str) -> str:
    return f"{text[:TEXT_CHARACTERS]}… ({len(text)} characters)"
