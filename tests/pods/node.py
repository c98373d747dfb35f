"""The one machine of a cluster: containerd, kubelet and kube-proxy, and what a cluster has in it from the start.

All of it runs inside the namespaces that `tools/pods.py` makes. containerd keeps what it has unpacked of images from
run to run; everything else is new each time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.api import Api, Refused
from tests.cluster.control_plane import await_answer, begin, kubeconfig_of
from tests.pods.inside import DNS_ADDRESS, NODE_ADDRESS

NAME = "node-1"
PODS = "10.88.0.0/16"
CALL_S = 300
TOLD_LINES = 20
_CONTAINERD = """version = 2
root = "{kept}"
state = "{folder}/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/busybox:1"
  # Where this machine has no CAP_SYS_RESOURCE, nobody's score may be lowered.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


@contextmanager
def running(
    programs: Mapping[str, Path], folder: Path, cache: Path, api: Api, tokens: Mapping[str, str]
) -> Iterator[None]:
    """Start the machine, and wait until it is ready. ``tokens``: those of kubelet and kube-proxy. Raises
    NotStarted."""
    with ExitStack() as stack:

        def start(program: Path, arguments: Mapping[str, object], answers: Callable[[], bool]) -> None:
            log = folder / f"{program.name}.log"
            ended = begin(stack, folder, program, arguments)
            await_answer(program.name, ended, lambda: "\n".join(log.read_text().splitlines()[-TOLD_LINES:]), answers)

        socket = folder / "containerd.sock"
        start(
            Path("/usr/bin/containerd"),
            {"config": _containerd(folder, cache, socket)},
            lambda: _ctr(socket, "version").returncode == 0,
        )
        _import(socket, cache)
        ways = {
            name: kubeconfig_of(folder, name, Api(api.port, token, api.authority)) for name, token in tokens.items()
        }
        start(programs["kubelet"], _kubelet(folder, socket, ways["kubelet"]), lambda: _ready(api))
        start(programs["kube-proxy"], _kube_proxy(folder, ways["kube-proxy"]), lambda: True)
        yield


def _containerd(folder: Path, cache: Path, socket: Path) -> Path:
    network = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "mtu": 1400,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(folder / "addresses"),
                    "ranges": [[{"subnet": PODS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
    (folder / "cni").mkdir()
    (folder / "cni" / "pods.conflist").write_text(json.dumps(network))
    file = folder / "containerd.toml"
    file.write_text(_CONTAINERD.format(kept=cache / "containerd", folder=folder, socket=socket))
    return file


def _ctr(socket: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["ctr", "--address", str(socket), "--namespace", "k8s.io", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_S)


def _import(socket: Path, cache: Path) -> None:
    """Have containerd take the images that it has not taken yet; their files are named after their content."""
    taken = cache / "containerd" / "taken"
    taken.mkdir(parents=True, exist_ok=True)
    for file in sorted((cache / "images").glob("*.tar")):
        if not (taken / file.name).exists():
            done = _ctr(socket, "images", "import", str(file))
            assert done.returncode == 0, done.stderr
            (taken / file.name).touch()


def _kubelet(folder: Path, socket: Path, way: Path) -> dict[str, object]:
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # The first version of control groups is refused unless it is asked for.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "address": "0.0.0.0",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "podLogsDir": str(folder / "logs"),
        # Nobody else is in this network.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        # The disk is the machine's: nothing is thrown away for its sake.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "serializeImagePulls": False,
    }
    file = folder / "kubelet-config.json"
    file.write_text(json.dumps(config))
    return {
        "config": file,
        "kubeconfig": way,
        "root-dir": folder / "kubelet",
        "hostname-override": NAME,
        "node-ip": NODE_ADDRESS,
    }


def _kube_proxy(folder: Path, way: Path) -> dict[str, object]:
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": PODS,
        "hostnameOverride": NAME,
        "clientConnection": {"kubeconfig": str(way)},
        # The table of connections has the machine's size, which is not ours to change.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }
    file = folder / "kube-proxy-config.json"
    file.write_text(json.dumps(config))
    return {"config": file}


def _ready(api: Api) -> bool:
    try:
        found = api.get(f"/api/v1/nodes/{NAME}")
    except Refused as refused:
        if refused.code == 404:
            return False
        raise
    return any(one["type"] == "Ready" and one["status"] == "True" for one in found["status"]["conditions"])
