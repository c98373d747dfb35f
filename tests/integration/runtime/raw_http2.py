"""Calls in bytes of HTTP/2, for what gRPC's own clients refuse to send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_TIMEOUT_S = 10.0


def refused_calls(address: str, path: str, metadata: Iterable[tuple[bytes, bytes]], count: int) -> int:
    """Make ``count`` calls on one connection, one after the other, each with a message that never comes; how many the
    server ended, before it closed the connection perhaps. Raises TimeoutError."""
    host, _, port = address.rpartition(":")
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", address.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *metadata,
    ]
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
    ended = 0
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as conn:
        conn.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        incoming = conn.makefile("rb")
        for number in range(count):
            conn.sendall(_frame(_HEADERS, _END_HEADERS, 2 * number + 1, block))
            while True:
                head = incoming.read(9)
                if len(head) < 9:
                    return ended
                size, kind, flags, stream = _parsed(head)
                content = incoming.read(size)
                if kind == _SETTINGS and not flags & _ACK:
                    conn.sendall(_frame(_SETTINGS, _ACK, 0, b""))
                elif kind == _PING and not flags & _ACK:
                    conn.sendall(_frame(_PING, _ACK, 0, content))
                elif kind == _GOAWAY:
                    return ended
                elif stream == 2 * number + 1 and (kind == _RESET or (kind == _HEADERS and flags & _END_STREAM)):
                    ended += 1
                    break
    return ended


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, size = len(text) - 127, b"\x7f"
    while rest > 0x7F:
        size += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return size + bytes([rest]) + text


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def _parsed(head: bytes) -> tuple[int, int, int, int]:
    return int.from_bytes(head[:3]), head[3], head[4], int.from_bytes(head[5:]) & 0x7FFFFFFF
