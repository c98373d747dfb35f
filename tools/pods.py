"""A Kubernetes whose pods run, for the tests in `tests/pods`: its images, and the namespaces that all of it lives in.

`images` makes them, with a Docker engine of its own, where sources have changed since then. `run COMMAND…` runs
a command as the first in new namespaces (processes, mounts, network, host name), which ends everything in them when it
ends; what the kernel doesn't take away by itself (control groups, the run's folder) a process does that waits for the
end of this one, however it comes. Needs root, and names all that is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib
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
IMAGES = CACHE / "images"
OWN = ROOT / "tests" / "pods" / "images"
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
SOURCES = ("libs", "services", "wheels", "deploy/docker", "tests/pods/images", "tools/cluster-dns")
FILES = ("pyproject.toml", "requirements-build.lock", "LICENSE")
BASE = "local/debian-python"
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


# Images


def stamp(more: Path) -> str:
    """A hash of everything that images are made of; ``more`` is a program that goes into one."""
    total = hashlib.sha256()
    found = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*"))]
    for path in (*found, *(ROOT / name for name in FILES), more):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def images(coredns: Path) -> None:
    """Make those of the product, of Postgres, of names and of a shell, as files that containerd takes.

    Raises:
        Unusable: something is missing. CalledProcessError: one can't be built.
    """
    require()
    made, wanted = IMAGES / "stamp", stamp(coredns)
    if made.exists() and made.read_text(encoding="ascii") == wanted:
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with engine() as environment:
        if not _asked(environment, "docker", "images", "--quiet", BASE):
            _base(environment)
        _called(environment, sys.executable, str(ROOT / "tools" / "images.py"), "--base", BASE)
        for name in ("postgres", "coredns", "busybox"):
            _own(environment, name, coredns)
        version = next(
            line.split('"')[1]
            for line in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
            if line.startswith("version = ")
        )
        names = [f"anabranch/{name}:{version}" for name in ("service", "compactor")]
        for image in (*names, *(f"local/{name}:1" for name in ("postgres", "coredns", "busybox"))):
            _saved(environment, image)
    made.write_text(wanted, encoding="ascii")
    print(f"images: {time.monotonic() - started:.0f} s")


@contextlib.contextmanager
def engine() -> Iterator[dict[str, str]]:
    """A Docker engine of our own, which leaves the machine's network alone; gives the environment that leads to it."""
    folder = CACHE / "docker"
    folder.mkdir(parents=True, exist_ok=True)
    socket = f"unix://{folder}/socket"
    command = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "--host", socket]
    command += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"]
    docker = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
    environment = {**os.environ, "PATH": PATH, "DOCKER_HOST": socket, "DOCKER": docker, "DOCKER_BUILDKIT": "1"}
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while not _answers(environment):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise Unusable(f"the Docker engine does not start: see {folder}/log")
                time.sleep(LOOK_S)
            yield environment
        finally:
            daemon.terminate()
            daemon.wait(END_S)


def _coredns() -> Path:
    tools = importlib.import_module("cluster_tools")  # beside this file
    found: Path | None = tools.find("coredns")
    if found is None:
        raise Unusable(tools.missing("coredns"))
    return found


def _answers(environment: dict[str, str]) -> bool:
    command = [environment["DOCKER"], "version"]
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=START_S).returncode == 0


def _called(environment: dict[str, str], *command: str) -> None:
    subprocess.run(command, env=environment, check=True, cwd=ROOT)


def _asked(environment: dict[str, str], _: str, *arguments: str) -> str:
    command = [environment["DOCKER"], *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=START_S * 5)
    return done.stdout.strip()


def _base(environment: dict[str, str]) -> None:
    folder = CACHE / "debian"
    shutil.rmtree(folder, ignore_errors=True)
    packages = "--include=python3,python3-venv,ca-certificates"
    _called(environment, "debootstrap", "--variant=minbase", packages, "trixie", str(folder))
    left_out = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")
    pack = ["tar", "-C", str(folder), *(f"--exclude=./{name}/*" for name in left_out), "-c", "."]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
        take = [environment["DOCKER"], "import", "-", BASE]
        subprocess.run(take, env=environment, stdin=packing.stdout, check=True)
    shutil.rmtree(folder)


def _own(environment: dict[str, str], name: str, coredns: Path) -> None:
    """An image of the tests' own, from a folder with the programs that it takes from here."""
    context = CACHE / "context"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(OWN, context)
    shutil.copy2(coredns, context / "coredns")
    shutil.copy2(shutil.which("busybox", path=PATH) or "", context / "busybox")
    command = [environment["DOCKER"], "build", "--quiet", "--network", "host", "--tag", f"local/{name}:1"]
    _called(environment, *command, "--file", str(context / f"{name}.Dockerfile"), str(context))
    shutil.rmtree(context)


def _saved(environment: dict[str, str], image: str) -> None:
    """Write an image where it is not written yet; the file is named after its content."""
    number = _asked(environment, "docker", "image", "inspect", "--format", "{{.Id}}", image).removeprefix("sha256:")
    name = image.replace("/", "_").replace(":", "_")
    file = IMAGES / f"{name}-{number[:16]}.tar"
    if file.exists():
        return
    for old in IMAGES.glob(f"{name}-*.tar"):
        old.unlink()
    _called(environment, environment["DOCKER"], "save", "--output", f"{file}.part", image)
    Path(f"{file}.part").rename(file)


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
            case ["images"]:
                images(_coredns())
            case ["run", *command] if command:
                return run(command)
            case ["missing"]:
                require()
            case _:
                sys.exit("usage: pods.py missing | images | run COMMAND…")
    except Unusable as error:
        print(f"pods: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
