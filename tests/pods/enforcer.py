"""Network policies are enforced: by a program of the machine's, which judges what leaves and reaches pods."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.api import until
from tests.cluster.control_plane import ControlPlane, begin
from tests.tools import load_tool

from .inside import NODE_ADDRESS

READY_S = 120
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@contextmanager
def running(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Enforce the policies of the cluster; ``folder`` is the run's."""
    program = load_tool("cluster_tools").find("kube-network-policies")
    # Where a program in a pod finds its account and the API server.
    ACCOUNT.mkdir(parents=True)
    (ACCOUNT / "token").write_text(plane.api.token)
    (ACCOUNT / "ca.crt").write_bytes(plane.api.authority.read_bytes())
    os.environ.update({"KUBERNETES_SERVICE_HOST": NODE_ADDRESS, "KUBERNETES_SERVICE_PORT": str(plane.api.port)})
    with ExitStack() as stack:
        arguments: dict[str, Any] = {
            "hostname-override": "node-1",
            "disable-nri": "true",
            "netfilter-bug-1766-fix": "false",
            "metrics-bind-address": "127.0.0.1:9080",
        }
        ended = begin(stack, folder, program, arguments)
        until("policies are enforced", READY_S, lambda: _has_rules(ended()))
        yield


def _has_rules(ended: str | None) -> bool:
    assert ended is None, ended
    done = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True, timeout=READY_S)
    return "kube-network-policies" in done.stdout
