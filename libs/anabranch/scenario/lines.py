"""The messages between runner and node: one JSON object a line, with forms for the values that JSON lacks.

``{"b": base64}`` is bytes, ``{"d": text}`` a Decimal, ``{"o": {...}}`` a mapping; lists, texts, numbers (NaN and the
infinities included), booleans and null stand for themselves.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_PIECE_BYTES = 1 << 16


def _out(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"d": str(value)}
    if isinstance(value, Mapping):
        return {"o": {k: _out(v) for k, v in value.items()}}
    return [_out(v) for v in value] if isinstance(value, list | tuple) else value


def _in(value: Any) -> Any:
    if isinstance(value, list):
        return [_in(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((form, content),) = value.items()
    if form == "b":
        return base64.b64decode(content)
    return Decimal(content) if form == "d" else {k: _in(v) for k, v in content.items()}


def send(peer: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message. Raises OSError where the peer is gone."""
    peer.sendall(json.dumps(_out(message), separators=(",", ":")).encode() + b"\n")


class Lines:
    """A peer's messages, line by line."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._heard = bytearray()

    def next(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message; None where the peer is gone. Raises TimeoutError where none comes in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        start = 0
        while (end := self._heard.find(b"\n", start)) < 0:
            start = len(self._heard)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._peer.settimeout(left)
            try:
                piece = self._peer.recv(_PIECE_BYTES)
            except ConnectionResetError:
                return None
            finally:
                self._peer.settimeout(None)
            if not piece:
                return None
            self._heard += piece
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        message: dict[str, Any] = _in(json.loads(line))
        return message
