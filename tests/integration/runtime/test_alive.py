"""The probe of life: any answer is good, and a process that hangs gives none, though its connections are taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from anabranch.testkit.waiting import until

SERVER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
server, states = grpc.server(ThreadPoolExecutor(2)), health.HealthServicer()
states.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
health_pb2_grpc.add_HealthServicer_to_server(states, server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


def _asked(port: str, *more: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "anabranch.runtime.health", f"127.0.0.1:{port}", "--timeout-s", "2", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout.strip()


@pytest.mark.slow
def test_a_process_that_is_not_ready_is_alive_and_one_that_hangs_is_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        until(lambda: _asked(port, "--alive") == (0, "NOT_SERVING"), 30, "it answers nothing")
        assert _asked(port) == (1, "NOT_SERVING")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert _asked(port, "--alive") == (1, "UNREACHABLE")
        finally:
            os.kill(server.pid, signal.SIGCONT)
            server.kill()
