"""The first process of the namespaces that a cluster lives in: makes a machine of them, runs a command, and ends.

`inside.py COMMAND…`, started by `tools/pods.py`. The machine's own file system shows through where it is read; what
programs of a cluster write beside their own folders (`/var/lib`, `/var/log`, `/run`) is theirs alone, and so are the
settings of the kernel that a kubelet would make for the whole machine. With this process everything in its namespaces
ends. Exit code: the command's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

NODE_ADDRESS = "10.77.0.2"
DNS_ADDRESS = "10.96.0.10"
"""Where the cluster's names are answered; nobody else's are asked for."""
SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Settings that a kubelet makes for the whole machine."""


def call(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def make_machine(folder: Path) -> None:
    """Mounts, addresses and settings; ``folder`` is the run's."""
    call("hostname", "node-1")
    call("mount", "--make-rshared", "/")
    call("mount", "-t", "tmpfs", "tmpfs", "/run")
    for name in ("containerd", "netns"):
        Path("/run", name).mkdir()
    call("mount", "--make-rshared", "/run")
    for where in ("lib", "log"):
        upper, work = folder / "var" / where, folder / "var" / f"{where}-work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/var/{where},upperdir={upper},workdir={work}"
        call("mount", "-t", "overlay", "overlay", "-o", options, f"/var/{where}")
    for name in SETTINGS:
        own = folder / "settings" / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(Path("/proc/sys", name).read_text(encoding="ascii"), encoding="ascii")
        call("mount", "--bind", str(own), f"/proc/sys/{name}")
    names = folder / "resolv.conf"
    names.write_text(f"nameserver {DNS_ADDRESS}\nsearch svc.cluster.local\n", encoding="ascii")
    call("mount", "--bind", str(names), "/etc/resolv.conf")
    call("ip", "link", "set", "lo", "up")
    call("ip", "link", "add", "name", "node", "type", "bridge")
    call("ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", "node")
    call("ip", "link", "set", "node", "up")
    call("ip", "route", "add", "default", "dev", "node")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def run(command: list[str]) -> int:
    """Run the command, and take leave of every process that ends meanwhile, whoever began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.posix_spawn(command[0], command, os.environ, setsigdef=[signal.SIGINT])
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    make_machine(Path(os.environ["ANABRANCH_PODS"]) / "run")
    sys.exit(abs(run(sys.argv[1:])))
