"""The images of the tests in `tests/pods`, as files that containerd takes: those of the product, and the tests' own.

They are made by a Docker engine of its own, which leaves the machine's network alone, and only where something that
they are made of has changed since the last time: the product's apart from the tests' own, which build on them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "pods"
IMAGES = CACHE / "images"
OWN = ROOT / "tests" / "pods" / "images"
SOURCES = ("libs", "services", "wheels", "deploy/docker", "pyproject.toml", "requirements-build.lock", "LICENSE")
"""Sources of the product's images."""
PRODUCT = ("service", "compactor")
BUILT = ("coredns", "versitygw")
"""Programs that Go has built, and that an image of the tests' own is made of."""
BASE = "local/debian-python"
PATH = f"/usr/sbin:/sbin:{os.environ.get('PATH', '/usr/bin:/bin')}"
START_S = 60
END_S = 30
ASK_S = 300
LOOK_S = 0.1


class NotMade(Exception):
    """Images can't be made here; the message says what is missing."""


def stamp(paths: Iterable[Path]) -> str:
    """A hash of files, and of all files in folders."""
    total = hashlib.sha256()
    for top in paths:
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(top.parent)}\0{path.stat().st_size}\0".encode())
                total.update(path.read_bytes())
    return total.hexdigest()


def images() -> None:
    """Make those of the product, then one for each Dockerfile of the tests' own.

    Raises:
        NotMade: something is missing. CalledProcessError: one can't be built.
    """
    programs = _programs()
    product = stamp(ROOT / name for name in SOURCES)
    own = stamp([OWN, *(path for name, path in programs.items() if name in BUILT)]) + product
    wanted = {"product": product, "own": own}
    if all(_is_made(name, one) for name, one in wanted.items()):
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with engine() as environment:
        if not _is_made("product", product):
            _product(environment)
            (IMAGES / "product").write_text(product, encoding="ascii")
        names = sorted(file.name.removesuffix(".Dockerfile") for file in OWN.glob("*.Dockerfile"))
        for name in names:
            _own(environment, name, programs)
            _saved(environment, f"local/{name}:1")
        (IMAGES / "own").write_text(own, encoding="ascii")
    print(f"images: {time.monotonic() - started:.0f} s")


def _is_made(name: str, wanted: str) -> bool:
    made = IMAGES / name
    return made.exists() and made.read_text(encoding="ascii") == wanted


def version() -> str:
    """The product's."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise NotMade("pyproject.toml has no version")
    return found[1]


def _programs() -> dict[str, Path]:
    """Programs that images of the tests' own are made of."""
    found: dict[str, Path] = {"busybox": Path(shutil.which("busybox", path=PATH) or "")}
    tools = importlib.import_module("cluster_tools")  # beside this file
    for name in BUILT:
        program: Path | None = tools.find(name)
        if program is None:
            raise NotMade(tools.missing(name))
        found[name] = program
    return found


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
                    raise NotMade(f"the Docker engine does not start: see {folder}/log")
                time.sleep(LOOK_S)
            yield environment
        finally:
            daemon.terminate()
            daemon.wait(END_S)


def _answers(environment: dict[str, str]) -> bool:
    command = [environment["DOCKER"], "version"]
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=START_S).returncode == 0


def _called(environment: dict[str, str], *command: str) -> None:
    subprocess.run(command, env=environment, check=True, cwd=ROOT)


def _asked(environment: dict[str, str], *arguments: str) -> str:
    command = [environment["DOCKER"], *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=ASK_S)
    return done.stdout.strip()


def _product(environment: dict[str, str]) -> None:
    if not _asked(environment, "images", "--quiet", BASE):
        _base(environment)
    _called(environment, sys.executable, str(ROOT / "tools" / "images.py"), "--base", BASE)
    for name in PRODUCT:
        _saved(environment, f"anabranch/{name}:{version()}")


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


def _own(environment: dict[str, str], name: str, programs: dict[str, Path]) -> None:
    """An image of the tests' own, from a folder with the programs that it takes from here."""
    context = CACHE / "context"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(OWN, context)
    for program, path in programs.items():
        shutil.copy2(path, context / program)
    command = [environment["DOCKER"], "build", "--quiet", "--network", "host", "--tag", f"local/{name}:1"]
    command += ["--build-arg", f"VERSION={version()}"]
    _called(environment, *command, "--file", str(context / f"{name}.Dockerfile"), str(context))
    shutil.rmtree(context)


def _saved(environment: dict[str, str], image: str) -> None:
    """Write an image where it is not written yet; the file is named after its content."""
    number = _asked(environment, "image", "inspect", "--format", "{{.Id}}", image).removeprefix("sha256:")
    name = image.replace("/", "_").replace(":", "_")
    file = IMAGES / f"{name}-{number[:16]}.tar"
    if file.exists():
        return
    for old in IMAGES.glob(f"{name}-*.tar"):
        old.unlink()
    _called(environment, environment["DOCKER"], "save", "--output", f"{file}.part", image)
    Path(f"{file}.part").rename(file)


def main() -> int:
    """Exit code 2 where they can't be made."""
    try:
        images()
    except NotMade as error:
        print(f"images: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
