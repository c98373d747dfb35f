"""The namespaces that a Kubernetes whose pods run lives in, for the tests in `tests/pods`.

`run COMMAND…` runs a command as the first in new namespaces (processes, mounts, network, host name), which ends
everything in them when it ends; what the kernel doesn't take away by itself (control groups, the run's folder) a
process does that waits for the end of this one, however it comes. Needs root, and names all that is missing. The
images are made by `pod_images.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "pods"
RUN = CACHE / "run"
INSIDE = ROOT / "tests" / "pods" / "inside.py"
PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "unshare": "util-linux",
    "dockerd": "docker.io",
    "debootstrap": "debootstrap",
    "busybox": "busybox-static",
}
"""Programs that have to be on the machine, and the Debian package of each."""
CNI = Path("/usr/lib/cni")
PLUGINS = ("ptp", "host-local", "loopback")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OURS = ("kubepods", "k8s.io")
"""The control groups that kubelet and containerd make in each hierarchy."""
PATH = f"/usr/sbin:/sbin:{os.environ.get('PATH', '/usr/bin:/bin')}"
START_S = 60
END_S = 30
LOOK_S = 0.1
PR_SET_PDEATHSIG = 1


class Unusable(Exception):
    """Pods can't run here; the message says what is missing."""


def missing() -> list[str]:
    """All that this machine lacks, in words."""
    lacks = [] if os.geteuid() == 0 else ["root"]
    packages = {package for name, package in PROGRAMS.items() if shutil.which(name, path=PATH) is None}
    lacks += [f"the Debian package {package}" for package in sorted(packages)]
    if not all((CNI / name).exists() for name in PLUGINS):
        lacks.append("the Debian package containernetworking-plugins")
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="ascii"):
        lacks.append("the kernel's overlay file system")
    if not lacks:
        for kind in ("bridge", "veth"):
            if _tried("unshare", "--net", "ip", "link", "add", "name", "tried", "type", kind):
                lacks.append(f"network devices of type {kind} in the kernel")
        if _tried("unshare", "--net", "nft", "add table ip tried"):
            lacks.append("nf_tables in the kernel")
    return lacks


def _tried(*command: str) -> bool:
    done = subprocess.run(command, env={**os.environ, "PATH": PATH}, capture_output=True, check=False, timeout=START_S)
    return done.returncode != 0


def require() -> None:
    """Raises Unusable, with everything that is missing."""
    lacks = missing()
    if lacks:
        raise Unusable(f"no pod can run here; missing: {', '.join(lacks)}")


# Namespaces


def run(command: list[str]) -> int:
    """Run it in namespaces of its own; gives its exit code. Raises Unusable."""
    require()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable("another run of this checkout is under way, or is being cleaned up after") from None
        used = [str(group) for group in _groups() if _processes(group)]
        if used:
            raise Unusable(f"pods of another cluster run on this machine: {', '.join(used)}")
        _remove()
        RUN.mkdir()
        with _cleaned_up_after():
            own = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
            inside = [*own, "--propagation", "private", sys.executable, str(INSIDE), *command]
            environment = {**os.environ, "PATH": PATH, "ANABRANCH_PODS": str(CACHE)}
            with subprocess.Popen(inside, env=environment, preexec_fn=_end_with(os.getpid())) as process:
                return _waited(process)


def _end_with(parent: int):  # type: ignore[no-untyped-def]
    library = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(70)

    return ask


def _waited(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The command inside got it, too, and ends in its own time.
            continue


@contextlib.contextmanager
def _cleaned_up_after() -> Iterator[None]:
    """Have a process of its own clean up once this one is gone, or done."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.close(writing)
        os.read(reading, 1)
        _remove()
        os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def _remove() -> None:
    """Remove control groups and the run's folder, once no process is left in them."""
    deadline = time.monotonic() + END_S
    while any(_processes(group) for group in _groups()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    for group in _groups():
        for folder, _, _ in os.walk(group, topdown=False):
            # One that is still in use stays, and the next run tells of it.
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    shutil.rmtree(RUN, ignore_errors=True)


def _groups() -> list[Path]:
    return [group for name in OURS for group in (*CONTROL_GROUPS.glob(f"*/{name}"), *CONTROL_GROUPS.glob(name))]


def _processes(group: Path) -> bool:
    return any(Path(folder, "cgroup.procs").read_text(encoding="ascii") for folder, _, _ in os.walk(group))


def main(arguments: list[str]) -> int:
    """Exit code 2 where pods can't run here."""
    try:
        match arguments:
            case ["run", *command] if command:
                return run(command)
            case ["missing"]:
                require()
            case _:
                sys.exit("usage: pods.py missing | run COMMAND…")
    except Unusable as error:
        print(f"pods: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
