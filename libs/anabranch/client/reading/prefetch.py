"""A stream that a thread reads ahead, so that the network and the file work at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.message import Message

from anabranch.client.errors import CallFailed
from anabranch.client.remote import Stream

M = TypeVar("M", bound=Message)

_END = object()


@contextmanager
def prefetched(stream: Stream[M], ahead: int, silence_s: float) -> Iterator[Iterator[M]]:
    """Responses of ``stream``, at most ``ahead`` of them waiting. Its failure is raised where the stream would have;
    ``silence_s`` seconds without a response raise CallFailed, because a connection that hangs stays silent for ever.
    Leaving the block cancels the stream and ends the thread."""
    waiting: queue.Queue[Any] = queue.Queue(ahead)
    left = threading.Event()

    def read() -> None:
        last: Any = _END
        try:
            for response in stream:
                if not _put(response):
                    return
        except Exception as error:
            last = error
        _put(last)

    def _put(item: Any) -> bool:
        while not left.is_set():
            try:
                waiting.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def _next() -> Any:
        try:
            return waiting.get(timeout=silence_s)
        except queue.Empty:
            message = f"nothing came for {silence_s:g} s"
            raise CallFailed("DEADLINE_EXCEEDED", "", message, again=True) from None

    def responses() -> Iterator[M]:
        while (item := _next()) is not _END:
            if isinstance(item, Exception):
                raise item
            yield item

    thread = threading.Thread(target=read, name="anabranch-prefetch", daemon=True)
    thread.start()
    try:
        yield responses()
    finally:
        left.set()
        stream.cancel()
        thread.join()
