"""The programs of each language: what builds them, and what runs them. `README.md` says what they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import vectors

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build"
STUBS = BUILD / "stubs"
BUILT = BUILD / "stubs-test"
STEP_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 180.0
_TAIL = 4_000


@dataclass(frozen=True, slots=True)
class Program:
    """``build``: commands, each run in the language's folder; ``command``: what is run there, before its arguments."""

    language: str
    build: Sequence[Sequence[str]]
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_made(self) -> bool:
        """Whether its stubs are there."""
        return (STUBS / self.language).is_dir()

    def make(self) -> None:
        """Build it. Raises AssertionError with what was printed."""
        for command in self.build:
            _run(command, HERE / self.language, self.environment, STEP_TIMEOUT_S)

    def run(self, do: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run it to its end; what it told. Raises AssertionError where it failed, or told more than one line."""
        command = (*self.command, do, str(vectors.FILE))
        lines = _run(command, HERE / self.language, {**self.environment, **(environment or {})}, RUN_TIMEOUT_S)
        told = lines.splitlines()
        assert len(told) == 1, f"{self.language} told {len(told)} lines"
        out: dict[str, Any] = json.loads(told[0])
        return out


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float) -> str:
    """The output of a command on stdout. Raises AssertionError."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    said = f"{done.stdout[-_TAIL:]}\n{done.stderr[-_TAIL:]}"
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{said}"
    return done.stdout


PROGRAMS = {
    program.language: program
    for program in (
        Program("python", (), (sys.executable, "-m", "program"), {"PYTHONPATH": str(STUBS / "python")}),
        Program("go", (("go", "build", "-o", str(BUILT / "program-go"), "."),), (str(BUILT / "program-go"),)),
        Program(
            "typescript",
            (("npm", "ci", "--no-audit", "--no-fund", "--prefer-offline"), ("npx", "--no-install", "tsc")),
            ("node", "built/main.js"),
        ),
        Program(
            "java",
            (("mvn", "-B", "-q", "-ntp", "package"),),
            (
                "java",
                # The Arrow library needs this to reach memory outside of the heap.
                "--add-opens=java.base/java.nio=ALL-UNNAMED",
                "-cp",
                f"program/target/classes{os.pathsep}program/target/lib/*",
                "anabranch.stubs.Main",
            ),
        ),
    )
}
