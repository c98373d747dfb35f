"""A scenario's sweep: a call to the running janitor, at the servers' time."""

from __future__ import annotations

import time

import grpc

from anabranch.scenario.world import FellShortError, World
from anabranch.v1 import retention_pb2, retention_pb2_grpc

_SWEEP_S = 60.0
_AGAIN_S = 0.05


def sweep(world: World) -> None:
    """Have the janitor sweep the scenario's database to the end. Raises FellShortError where it fails."""
    stack = world.ground.stack
    request = retention_pb2.RunSweepRequest(db_name=world.name)
    metadata = (("authorization", f"Bearer {stack.key}"),)
    until = time.monotonic() + _SWEEP_S
    with grpc.insecure_channel(stack.addresses["retention-janitor"]) as channel:
        janitor = retention_pb2_grpc.RetentionJanitorServiceStub(channel)
        while time.monotonic() < until:
            try:
                response = janitor.RunSweep(request, metadata=metadata, timeout=_SWEEP_S, wait_for_ready=True)
            except grpc.RpcError as error:
                # The janitor is in a sweep that it began by itself, or was killed during one.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise FellShortError(f"the sweep failed: {error.details()}") from None
                time.sleep(_AGAIN_S)
                continue
            if not response.unfinished:
                return
    raise FellShortError(f"the sweep was not done after {_SWEEP_S:g} s")
