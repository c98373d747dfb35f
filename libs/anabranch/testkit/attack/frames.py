"""HTTP/2 as no gRPC library sends it: calls that are reset at once, headers without end, calls that are never finished,
metadata outside every form, connections that say nothing.

Each attack is one connection, bounded in bytes and in seconds. Its answers are not judged: the connection may be
closed on it at any moment. The neighbours, the memory and the logs tell whether it did harm.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from anabranch.testkit.attack.calls import RPCS
from anabranch.testkit.attack.phases import Phases
from anabranch.testkit.attack.target import Findings, Target

CONNECT_S = 5.0
HOLD_S = 2.0
"""A connection that is left unfinished is held for so long."""
PAUSE_S = 0.1
RESETS = 300
UNFINISHED = 100
HEADERS = 200
IDLE_CONNECTIONS = 40

_Headers = list[tuple[bytes, bytes]]
_ODD_KEYS: Sequence[bytes] = (
    b"Bearer ab_\0" + b"0" * 40, b"Bearer \xff\xfe\x80", b"Bearer ab_" + b"k" * 7_000, b"Bearer \x1b[2J",
    b"Bearer " + b"." * 500, b"\0", b"Bearer ab_00000000000000000000000000\r\nx: y",
)  # fmt: skip


class _Connection:
    """A socket that speaks HTTP/2 and checks nothing of what it sends."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), CONNECT_S)
        self.socket.settimeout(CONNECT_S)
        self.http = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
            )
        )
        self.http.initiate_connection()
        self.send()

    def send(self) -> None:
        self.socket.sendall(self.http.data_to_send())

    def open(self, headers: _Headers, *, end: bool = False) -> int:
        """Begin a call; its stream."""
        stream = self.http.get_next_available_stream_id()
        self.http.send_headers(stream, headers, end_stream=end)
        return stream

    def close(self) -> None:
        self.socket.close()


def send_frames(target: Target, chance: random.Random, stop: Phases, found: Findings) -> None:
    """Attack until ``stop``, one connection after the other."""
    while not stop.rest(PAUSE_S):
        rpc = chance.choice(RPCS)
        name = chance.choice(list(_ATTACKS))
        try:
            _ATTACKS[name](target.addresses[rpc.service], rpc.path.encode(), chance, stop)
            found.answer(f"http/2 {name}: sent")
        except (OSError, ProtocolError):
            found.answer(f"http/2 {name}: cut off")


def _headers(path: bytes, *more: tuple[bytes, bytes]) -> _Headers:
    return [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc"), *more,
    ]  # fmt: skip


def _rapid_reset(address: str, path: bytes, chance: random.Random, stop: threading.Event) -> None:
    with closing(_Connection(address)) as connection:
        for _ in range(RESETS):
            stream = connection.open(_headers(path))
            connection.http.reset_stream(stream, 8)
            connection.send()


def _many_headers(address: str, path: bytes, chance: random.Random, stop: threading.Event) -> None:
    """More metadata than a call may have, in one block or in many CONTINUATION frames."""
    with closing(_Connection(address)) as connection:
        more = [(b"x-%d" % number, b"v" * chance.choice([10, 1_000])) for number in range(HEADERS)]
        connection.open(_headers(path, *more))
        connection.send()
        stop.wait(HOLD_S)


def _unfinished(address: str, path: bytes, chance: random.Random, stop: threading.Event) -> None:
    """Many calls whose message says how long it is and never comes."""
    with closing(_Connection(address)) as connection:
        for _ in range(chance.choice([1, UNFINISHED])):
            stream = connection.open(_headers(path))
            connection.http.send_data(stream, b"\0" + (4_000_000).to_bytes(4, "big") + b"\x0a")
            connection.send()
        stop.wait(HOLD_S)


def _slow_body(address: str, path: bytes, chance: random.Random, stop: threading.Event) -> None:
    with closing(_Connection(address)) as connection:
        stream = connection.open(_headers(path))
        connection.http.send_data(stream, b"\0" + (200).to_bytes(4, "big"))
        for _ in range(20):
            connection.http.send_data(stream, b"\0")
            connection.send()
            if stop.wait(HOLD_S / 20):
                return


def _odd_metadata(address: str, path: bytes, chance: random.Random, stop: threading.Event) -> None:
    with closing(_Connection(address)) as connection:
        for _ in range(20):
            key = (b"authorization", chance.choice(_ODD_KEYS))
            odd = (chance.choice([b"traceparent", b"grpc-timeout", b"grpc-encoding", b"x-\0"]), chance.randbytes(40))
            stream = connection.open(_headers(path, key, odd))
            connection.http.send_data(stream, b"\0\0\0\0\0", end_stream=True)
            connection.send()
        stop.wait(HOLD_S / 4)


def _junk(address: str, path: bytes, chance: random.Random, stop: threading.Event) -> None:
    """No frames at all, or frames of random types after a right beginning."""
    with closing(_Connection(address)) as connection:
        for _ in range(50):
            length = chance.choice([0, 8, 100])
            head = length.to_bytes(3, "big") + chance.randbytes(2) + (chance.randrange(8)).to_bytes(4, "big")
            connection.socket.sendall(head + chance.randbytes(length))


def _silent(address: str, path: bytes, chance: random.Random, stop: threading.Event) -> None:
    """Connections that say nothing, or only half of the first line."""
    host, _, port = address.rpartition(":")
    held = [socket.create_connection((host, int(port)), CONNECT_S) for _ in range(IDLE_CONNECTIONS)]
    try:
        for one in held[::2]:
            one.sendall(b"PRI * HTT")
        stop.wait(HOLD_S)
    finally:
        for one in held:
            one.close()


_ATTACKS: Mapping[str, Callable[[str, bytes, random.Random, threading.Event], None]] = {
    "rapid reset": _rapid_reset,
    "many headers": _many_headers,
    "unfinished messages": _unfinished,
    "slow body": _slow_body,
    "odd metadata": _odd_metadata,
    "junk frames": _junk,
    "silent connections": _silent,
}
