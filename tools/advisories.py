"""Known holes of the locked packages, as pip-audit tells them; run by `make advisories`, and last by `make check`.

A hole fails the check, unless `tools/advisories.toml` waives it, with a reason and a date. When that date has passed,
the waiver itself fails the check. Where no source of advisories answers within a minute, a line that begins with
"not checked" says so, and the check passes: a machine without that source can still develop. Packages that are locked
for other systems or Pythons than this one are not looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / ".venv" / "bin" / "pip-audit"
LOCKS = tuple(
    ROOT / name for name in ("requirements.lock", "deploy/docker/service.lock", "deploy/docker/compactor.lock")
)
WAIVERS = ROOT / "tools" / "advisories.toml"
# The locks name everything, so that pip need not work out what belongs to a package. The other sources of pip-audit
# ask the package index, and a mirror of that often has no advisories: it looks as if there were no holes.
OPTIONS = ("--disable-pip", "--require-hashes", "--vulnerability-service", "osv", "--format", "json")
QUIET = ("--progress-spinner", "off", "--desc", "off", "--aliases", "on", "--timeout", "15")
TIMEOUT_S = 60.0
WORDS_KEPT = 160


class WaiverError(Exception):
    """The file of waivers is not in form."""


@dataclass(frozen=True, slots=True)
class Waiver:
    """A hole that does not concern this project, for a reason, until the end of a day."""

    package: str
    id: str
    reason: str
    until: date


@dataclass(frozen=True, slots=True)
class Hole:
    """An advisory about a locked package. ``ids``: its own id, then the others under which it is known."""

    package: str
    version: str
    ids: tuple[str, ...]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        known_as = f" ({', '.join(self.ids[1:])})" if self.ids[1:] else ""
        fixed = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no version fixes it yet"
        return f"{self.package} {self.version}: {self.ids[0]}{known_as}: {fixed}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of pip-audit: how many packages were looked up, their holes, and the packages that no source knows."""

    packages: int
    holes: Sequence[Hole]
    unknown: Sequence[str]


def read_waivers(file: Path) -> list[Waiver]:
    """The waivers of a file. Raises WaiverError."""
    waivers = []
    entries: Sequence[Mapping[str, Any]] = tomllib.loads(file.read_text()).get("waived", [])
    for entry in entries:
        if entry.keys() != {"package", "id", "reason", "until"}:
            raise WaiverError(f"{file.name}: {entry}: package, id, reason and until are needed, and no more")
        texts = [entry[name] for name in ("package", "id", "reason")]
        # A moment is a date to isinstance.
        if not all(isinstance(text, str) and text.strip() for text in texts) or type(entry["until"]) is not date:
            raise WaiverError(f"{file.name}: {entry}: package, id and reason are texts, until is a date")
        waivers.append(Waiver(**entry))
    return waivers


def waived(hole: Hole, waivers: Sequence[Waiver]) -> bool:
    """Whether the hole is among the waivers, under any of its ids."""
    return any(waiver.package == hole.package and waiver.id in hole.ids for waiver in waivers)


def answer_of(text: str) -> Answer | None:
    """The answer that pip-audit has printed; None where it has printed none."""
    try:
        found: Sequence[Mapping[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    known = {(one["name"], one["version"]): one["vulns"] for one in found if "skip_reason" not in one}
    holes = [
        Hole(name, version, (hole["id"], *hole.get("aliases", ())), tuple(hole["fix_versions"]))
        for (name, version), its in sorted(known.items())
        for hole in its
    ]
    return Answer(len(known), holes, sorted({one["name"] for one in found if "skip_reason" in one}))


def pip_audit(*options: str, until: float) -> tuple[Answer | None, str]:
    """Run pip-audit over the locks; its answer, or why there is none. ``until``: a moment of the monotonic clock."""
    files = [argument for lock in LOCKS for argument in ("--requirement", str(lock))]
    try:
        done = subprocess.run(
            [PROGRAM, *OPTIONS, *QUIET, *options, *files],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=max(0.0, until - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {TIMEOUT_S:g} s"
    said = done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode} and said nothing"]
    return answer_of(done.stdout), shorten(said[-1], WORDS_KEPT, placeholder=" …")


def faults(waivers: Sequence[Waiver], holes: Sequence[Hole], today: date) -> Iterator[str]:
    """Every reason for which the check fails, in words."""
    for waiver in waivers:
        if waiver.until < today:
            yield f"the waiver of {waiver.id} for {waiver.package} ended on {waiver.until}: {waiver.reason}"
    for hole in holes:
        if not waived(hole, waivers):
            yield f"known hole: {hole}"


def main(today: date) -> int:
    """Check the locked packages; 1 where something fails the check."""
    try:
        waivers = read_waivers(WAIVERS)
    except (WaiverError, tomllib.TOMLDecodeError) as error:
        print(error, file=sys.stderr)
        return 1
    until = time.monotonic() + TIMEOUT_S
    # Without a network first: a lock that can't be read is a fault of this checkout.
    read, why = pip_audit("--dry-run", until=until)
    if read is None:
        print(f"the locks can't be read: {why}", file=sys.stderr)
        return 1
    answer, why = pip_audit(until=until)
    if answer is None:
        print(f"not checked: known holes of the locked packages: {why}")
    elif answer.unknown:
        print(f"not checked: the source of advisories does not know {', '.join(answer.unknown)}")
    found = list(faults(waivers, answer.holes if answer else (), today))
    for fault in found:
        print(fault, file=sys.stderr)
    if answer is not None and not found:
        print(f"{answer.packages} packages: no known hole" + (" but waived ones" if answer.holes else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(datetime.now(UTC).date()))
