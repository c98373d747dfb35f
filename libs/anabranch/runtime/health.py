"""Asks a service how it is, as whatever starts or watches services does."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PROBE_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]


def _stub(channel: grpc.Channel) -> Any:
    # The published types lack the stub's methods.
    return health_pb2_grpc.HealthStub(channel)


def probe(address: str, timeout_s: float) -> str:
    """``SERVING``, ``NOT_SERVING``, or ``UNREACHABLE``, of the service at ``address`` (without TLS)."""
    with grpc.insecure_channel(address, options=PROBE_OPTIONS) as channel:
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
