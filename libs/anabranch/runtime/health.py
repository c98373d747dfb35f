"""Asks a service for its health; used by all that starts or watches services.

``python -m anabranch.runtime.health 127.0.0.1:7400 --ca-file ca.crt --server-name NAME`` is a probe for Kubernetes,
whose own gRPC probe speaks no TLS. Exit code 0: SERVING; 1: anything else, which it prints. With ``--alive`` any answer
is good, NOT_SERVING too: a process that answers is not helped by being started again, one that hangs is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PROBE_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Not the connection of another channel of this process, which may be full of its data.
    ("grpc.use_local_subchannel_pool", 1),
]


def _stub(channel: grpc.Channel) -> Any:
    # The published types lack the stub's methods.
    return health_pb2_grpc.HealthStub(channel)


def probe(
    address: str, timeout_s: float, root_certificates: bytes | None = None, server_name: str | None = None
) -> str:
    """``SERVING``, ``NOT_SERVING``, or ``UNREACHABLE``, of the service at ``address``: without TLS, or, with the PEM
    of an authority, with TLS and ``server_name`` as the name that its certificate must have."""
    options: list[tuple[str, int | str]] = list(PROBE_OPTIONS)
    if root_certificates is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        if server_name is not None:
            options.append(("grpc.ssl_target_name_override", server_name))
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(root_certificates), options=options)
    with channel:
        try:
            answer = _stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return "UNREACHABLE"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def becomes_ready(channel: grpc.Channel, timeout_s: float) -> bool:
    """Follow a service's health for a while; whether it became SERVING."""
    answers = _stub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
    try:
        for answer in answers:
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    except grpc.RpcError as error:
        if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            raise
    return False


def main() -> int:
    """The probe as a program."""
    parser = argparse.ArgumentParser(prog="python -m anabranch.runtime.health")
    parser.add_argument("address")
    parser.add_argument("--ca-file", type=Path)
    parser.add_argument("--alive", action="store_true")
    parser.add_argument("--server-name")
    parser.add_argument("--timeout-s", type=float, default=2.5)
    given = parser.parse_args()
    authority = None if given.ca_file is None else given.ca_file.read_bytes()
    state = probe(given.address, given.timeout_s, authority, given.server_name)
    print(state)
    good = state != "UNREACHABLE" if given.alive else state == "SERVING"
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
