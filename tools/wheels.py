"""Build the three wheels into build/wheels, and hold them apart: `make wheels`.

Each file of the source tree is in exactly one of them, so that a device has nothing of the server, and a server nothing
of the test kit. `wheels/*/pyproject.toml` says which file is in which wheel.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "wheels"
WHEELS = ("device", "server", "testkit")
"""Folders in wheels/; each stands on the one before it."""
TREES = ("libs", "services")
BUILD_TIMEOUT_S = 120


class BuildFailed(Exception):
    """A wheel can't be built."""


@dataclass(frozen=True)
class Wheel:
    """One that was built: which files of ours it has, and how many lines of Python are in them."""

    path: Path
    files: frozenset[str]
    lines: int

    @property
    def bytes(self) -> int:
        """Size of the wheel, as it travels."""
        return self.path.stat().st_size


def build(name: str, into: Path) -> Wheel:
    """Build the wheel of one folder of wheels/.

    Raises:
        BuildFailed: hatchling refuses, with its words.
    """
    into.mkdir(parents=True, exist_ok=True)
    before = set(into.iterdir())
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    done = subprocess.run(
        command, cwd=ROOT / "wheels" / name, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
    )
    if done.returncode:
        raise BuildFailed(f"the wheel of wheels/{name} was not built: {done.stderr.strip()}")
    (path,) = set(into.iterdir()) - before
    with zipfile.ZipFile(path) as archive:
        (record,) = (each for each in archive.namelist() if each.endswith(".dist-info/RECORD"))
        rows = csv.reader(io.StringIO(archive.read(record).decode()))
        files = frozenset(row[0] for row in rows if ".dist-info/" not in row[0])
        lines = sum(archive.read(file).count(b"\n") for file in files if file.endswith(".py"))
    return Wheel(path, files, lines)


def tree() -> frozenset[str]:
    """Every file that the wheels must hold between them, by the name that it has there."""
    found = set()
    for name in TREES:
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo"):
                found.add(path.relative_to(ROOT / name).as_posix())
    return frozenset(found)


def faults(held: Mapping[str, Set[str]], whole: Set[str]) -> list[str]:
    """Faults of the wheels' contents: a line for each file that is in two, in none, or not in the tree."""
    times = Counter(file for files in held.values() for file in files)
    wrong = []
    for file in (file for file, count in times.items() if count > 1):
        holders = " and ".join(name for name, files in held.items() if file in files)
        wrong.append(f"{file} is in {holders}: name it under `but` of one of them")
    wrong += [f"{file} is in no wheel: name it in a wheels/*/pyproject.toml" for file in whole - times.keys()]
    wrong += [f"{file} is in a wheel and not in the source tree" for file in times.keys() - whole]
    return sorted(wrong)


def main() -> int:
    """Exit status 1 where the contents are wrong."""
    shutil.rmtree(BUILT, ignore_errors=True)
    try:
        wheels = {name: build(name, BUILT) for name in WHEELS}
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    for wheel in wheels.values():
        name = wheel.path.relative_to(ROOT)
        print(f"{name}: {len(wheel.files)} files, {wheel.lines:,} lines of Python, {wheel.bytes / 1e3:,.0f} kB")
    wrong = faults({name: wheel.files for name, wheel in wheels.items()}, tree())
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
