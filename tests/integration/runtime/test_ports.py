"""Ports for services: nobody gets another's, from the choice on."""

from __future__ import annotations

import subprocess
import sys
from concurrent import futures

import grpc
import pytest

from anabranch import ports
from anabranch.ports import HOST, free_port

ASK = """
from anabranch import ports
ports.PORTS = range({0}, {1})
print(ports.free_port(), flush=True)
input()
"""


def test_a_port_that_was_given_is_given_to_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred ports one process has 99 and another one the last: then there is none left."""
    base = ports.PORTS.start - 2_000
    while not all(ports.is_free(port) for port in range(base, base + 100)):
        base += 100
        assert base < ports.PORTS.start
    monkeypatch.setattr(ports, "PORTS", range(base, base + 100))
    mine = {free_port() for _ in range(50)}
    script = ASK.format(base, base + 100)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        assert theirs not in mine
        rest = {free_port() for _ in range(49)}
        assert len(mine | rest) == 99
        assert theirs not in rest
        with pytest.raises(ports.NoFreePortError, match="no free port"):
            free_port()
        other.communicate("\n", timeout=10)
    assert free_port() == theirs, "who ends gives back what it had"


def test_a_server_listens_on_a_port_that_was_given_again_and_again() -> None:
    port = free_port()
    for _ in range(2):
        server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
        assert server.add_insecure_port(f"{HOST}:{port}") == port
        server.start()
        with grpc.insecure_channel(f"{HOST}:{port}") as channel:
            grpc.channel_ready_future(channel).result(5)
        with pytest.raises(RuntimeError):
            grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)]).add_insecure_port(
                f"{HOST}:{port}"
            )
        server.stop(0).wait()


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "RESERVED", 3)
    given = [free_port() for _ in range(5)]
    assert [own.getsockname()[1] for own in ports._reserved] == given[-3:]
