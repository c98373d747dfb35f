"""The holder of the file's open transaction: a thread, in it an asyncio task, in that a context, and where the block
stands in a generator, that generator.

A block in a coroutine or a generator can be left half done while other code runs in the same thread; the writes of that
code must not join the block. No single mark distinguishes the two: a task that is begun inside the block inherits its
context, as ``asyncio.to_thread`` does; a generator shares context and task with the code that asks it for its next
value. So all four are compared. A generator that is a context manager (``contextlib``) lends its block to the ``with``
that entered it, and so is skipped in the search; a generator that is driven by any other code keeps the block to
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
from contextvars import ContextVar
from types import FrameType

_opened: ContextVar[frozenset[object]] = ContextVar("anabranch_open_batches", default=frozenset())
"""The marks of the transactions, of whatever files, that are open in a context or were when it was copied."""
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_LENDERS = frozenset({contextlib.__file__, __file__})


def _task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # no event loop runs in this thread


def _generator(ours: frozenset[str]) -> FrameType | None:
    """The innermost generator that the calling code's block stands in, those that lend it out skipped; None if there is
    none. ``ours``: files whose frames are the block's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        driver = frame.f_back
        is_lent = driver is not None and driver.f_code.co_filename == contextlib.__file__
        if frame.f_code.co_filename in _LENDERS or frame.f_code.co_filename in ours:
            frame = driver
        elif not frame.f_code.co_flags & _GENERATORS:
            return None
        elif is_lent:
            frame = driver
        else:
            return frame
    return None


class Holder:
    """Made where a transaction is begun; ``ours`` are the files of the code that begins it for the app."""

    __slots__ = ("_generator", "_mark", "_task", "name", "thread")

    def __init__(self, ours: frozenset[str]) -> None:
        self.thread = threading.get_ident()
        self._task = _task()
        self._mark = object()
        self._generator = _generator(ours)
        _opened.set(_opened.get() | {self._mark})
        where = f"the thread {threading.current_thread().name}"
        if self._task is not None:
            where = f"the task {self._task.get_name()} of {where}"
        if self._generator is not None:
            where = f"the generator {self._generator.f_code.co_qualname} in {where}"
        self.name = where

    def is_here(self) -> bool:
        """Whether the calling code is part of the block."""
        if self.thread != threading.get_ident() or self._mark not in _opened.get() or _task() is not self._task:
            return False
        if self._generator is None:
            return True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._generator:
            frame = frame.f_back
        return frame is not None

    def would_wait_for_itself(self) -> bool:
        """Whether the block can't end while the calling code waits for it: code of its own thread, or begun inside."""
        return self.thread == threading.get_ident() or self._mark in _opened.get()

    def let_go(self) -> None:
        """Note that the transaction is over. Any thread may call this: a generator may be closed by another thread."""
        if self._mark in _opened.get():
            _opened.set(_opened.get() - {self._mark})
        self._generator = None
