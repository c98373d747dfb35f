"""Drops a call whose caller takes nothing of what it was sent.

gRPC keeps what was written to a call until its caller has taken it, and a status waits behind that. It has no way to
end a call from here but to let go of it: a call that nothing refers to any more is reset, and what was kept for it is
freed. Two tasks of gRPC's refer to it: one that waits for the call's end, and one, begun by the first, that runs the
handler. So a task is noted with the one that began it, and both are cancelled. gRPC itself keeps the last call that
came: if it is that one, it is reset when the next one comes.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Generator
from typing import Any

_HANDLER = "_handle_exceptions"
"""The coroutine of gRPC's second task."""
_began: weakref.WeakKeyDictionary[asyncio.Task[Any], weakref.ref[asyncio.Task[Any]]] = weakref.WeakKeyDictionary()


def watch_calls(loop: asyncio.AbstractEventLoop) -> None:
    """Note from now on which task began which, for calls."""
    loop.set_task_factory(_make)


def _make(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    **options: Any,
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    if getattr(coro, "__name__", "") == _HANDLER:
        begun_by = asyncio.current_task(loop)
        if begun_by is not None:
            _began[task] = weakref.ref(begun_by)
    return task


def drop_call(task: asyncio.Task[Any]) -> None:
    """Let go of the call whose handler runs in ``task``: its caller gets CANCELLED, if anything. The task is cancelled
    unless it is the current one, which has to end by itself then."""
    found = _began.pop(task, None)
    begun_by = None if found is None else found()
    if begun_by is not None:
        begun_by.cancel()
    if task is not asyncio.current_task():
        task.cancel()
