"""A channel that another thread may close at any moment.

A call that begins on a channel which was closed a moment ago has to fail as other calls fail. gRPC raises ValueError
instead; where the method is only looked up at that moment, as interceptors make every call do, gRPC ends the whole
process. So methods are looked up under the lock that closing takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc


class SharedChannel(grpc.Channel):
    """``closed`` says whether it was closed; then no method can be looked up."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self.closed = False

    def _method(self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        with self._lock:
            if self.closed:
                raise ValueError("the channel is closed")
            return make(*args, **options)

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        """Return the method, as all four do. Raises ValueError once the channel is closed."""
        return self._method(self._channel.unary_unary, args, options)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        """As ``unary_unary``."""
        return self._method(self._channel.unary_stream, args, options)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        """As ``unary_unary``."""
        return self._method(self._channel.stream_unary, args, options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        """As ``unary_unary``."""
        return self._method(self._channel.stream_stream, args, options)

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """Call ``callback`` with every state of the connection."""
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Stop calling ``callback``."""
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        """End all calls of the channel, with the code CANCELLED, and let none begin."""
        with self._lock:
            self.closed = True
            self._channel.close()

    def __enter__(self) -> SharedChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
