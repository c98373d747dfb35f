"""Ports of this machine for servers: one that nobody else has, and whether one is free.

Only the standard library, so that what starts Postgres and what starts services can both use it.
"""

from __future__ import annotations

import random
import socket
from collections import deque

from anabranch.errors import ServerError

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
RESERVED = 256


class NoFreePortError(ServerError):
    """Nearly all ports that this project takes from are in use: end what uses them, or name a port."""


_reserved: deque[socket.socket] = deque()


def free_port() -> int:
    """A port of this machine that no one else uses, also not between now and when a service listens on it, or while one
    is dead and about to be started again on it.

    This process keeps it: by a socket that is bound and does not listen, so that another ``free_port``, in whatever
    process, does not get it, while a server, which sets SO_REUSEADDR, may listen. Ports are below the range from which
    the kernel gives them to connections. Kept are the last ``RESERVED``.

    Raises:
        NoFreePortError: none is free.
    """
    for port in random.sample(PORTS, 100):
        own = socket.socket()
        try:
            own.bind((HOST, port))
        except OSError:
            own.close()
            continue
        # Only now: with it, the bind above would pass beside another reservation.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _reserved.append(own)
        while len(_reserved) > RESERVED:
            _reserved.popleft().close()
        return port
    raise NoFreePortError(f"no free port between {PORTS.start} and {PORTS.stop}")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
