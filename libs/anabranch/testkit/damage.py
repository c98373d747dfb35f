"""A wire that flips one bit: a gRPC client interceptor in front of the real channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import Message


class BitFlip(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Give it to ``RemoteDb(interceptors=[flip])``. ``arm`` has the lowest bit flipped of the last byte of ``text``,
    where it first stands in a response of the method, once; ``flipped`` says whether that has happened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._method = ""
        self._text = b""
        self.flipped = False

    def arm(self, method: str, text: bytes) -> None:
        """``method``: the end of its full name, as in "/Get"."""
        with self._lock:
            self._method, self._text, self.flipped = method, text, False

    def _pass(self, method: str, response: Any) -> Any:
        with self._lock:
            if not self._method or not method.endswith(self._method):
                return response
            data = bytearray(response.SerializeToString())
            place = data.find(self._text)
            if place < 0:
                return response
            data[place + len(self._text) - 1] ^= 1
            self._method, self.flipped = "", True
        changed: Message = type(response).FromString(bytes(data))
        return changed

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Called by gRPC."""
        call = continuation(details, request)
        return _Answer(call, self._pass(details.method, call.result()))

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Called by gRPC."""
        return _Answers(continuation(details, request), lambda response: self._pass(details.method, response))


class _Answer:
    """A finished call with another response; all other attributes are those of the call."""

    def __init__(self, call: Any, response: Any) -> None:
        self._call = call
        self._response = response

    def result(self, timeout: float | None = None) -> Any:
        """The response."""
        return self._response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class _Answers:
    def __init__(self, call: Any, change: Any) -> None:
        self._call = call
        self._change = change

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._change(next(self._call))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
