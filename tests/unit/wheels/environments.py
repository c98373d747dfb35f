"""Environments that have some of the wheels and what those ask for, and nothing else.

pip installs the wheels. What they ask for is linked from the environment that runs the tests: nothing is fetched.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from tests.tools import load_tool

ROOT = Path(__file__).resolve().parents[3]
COMMAND_S = 110
Wheel = Any
"""The tool's."""


TOOL = load_tool("wheels")


def metadata(wheel: Wheel) -> importlib.metadata.PackageMetadata:
    """The metadata of the wheel."""
    (info,) = (path for path in zipfile.Path(wheel.path).iterdir() if path.name.endswith(".dist-info"))
    return importlib.metadata.PathDistribution(info).metadata


def requirements(wheel: Wheel) -> list[Requirement]:
    """The requirements of the wheel."""
    return [Requirement(line) for line in metadata(wheel).get_all("Requires-Dist") or []]


@dataclass(frozen=True)
class Environment:
    """One of them."""

    folder: Path

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of it."""
        command = [str(self.folder / "bin" / program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False, cwd=self.folder)

    def python(self, script: str, *arguments: str) -> str:
        """The output of a Python program, which ends well."""
        done = self.run("python", "-I", "-c", script, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


def environment(folder: Path, wheels: Sequence[Wheel]) -> Environment:
    """Make one."""
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    pip += ["--python", str(folder / "bin" / "python")]
    pip += ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", *(str(wheel.path) for wheel in wheels)]
    for command in (venv, pip):
        subprocess.run(command, check=True, timeout=COMMAND_S)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    _link([requirement for wheel in wheels for requirement in requirements(wheel)], site)
    return Environment(folder)


def _link(asked: Sequence[Requirement], site: Path) -> None:
    """Put what is asked for, and what that asks for, into an environment."""
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in asked if not requirement.name.startswith("anabranch")]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        distribution = importlib.metadata.distribution(requirement.name)
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for wanted in {(name, ""), *((name, extra) for extra in requirement.extras)} - seen:
            seen.add(wanted)
            waiting += [(Requirement(line), wanted[1]) for line in distribution.requires or []]
        for file in distribution.files or []:
            there = site / file
            if ".." not in file.parts and file.suffix != ".pyc" and not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                there.symlink_to(Path(str(distribution.locate_file(file))))
