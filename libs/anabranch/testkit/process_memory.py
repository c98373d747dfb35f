"""The resident memory of processes now and at its peak, as Linux reports it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

KNOWN = Path("/proc/self/clear_refs").exists()
"""Whether this machine reports it."""


def has_bytes(pid: int | str) -> int:
    """The bytes that are resident now. ``pid``: a process id, or "self"."""
    return _field(pid, "VmRSS")


def peak_bytes(pid: int | str) -> int:
    """The most that were resident since the process began, or since ``forget_peak``."""
    return _field(pid, "VmHWM")


def share_bytes(pid: int) -> int:
    """The bytes that are resident now, and of those that it shares with other processes its part."""
    return _field(pid, "Pss", "smaps_rollup")


def forget_peak(pid: int | str) -> None:
    """Reset the peak that ``peak_bytes`` returns.

    Raises:
        PermissionError: the process belongs to another user.
    """
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descendants() -> dict[int, list[int]]:
    """Every process of this machine that has children, with them and theirs: one look at all processes serves every
    service that is watched, where psutil takes one for each."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold anything.
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue  # It has ended meanwhile.
        children[int(parent)].append(int(stat.parent.name))

    def below(pid: int) -> list[int]:
        return [one for child in children.get(pid, ()) for one in (child, *below(child))]

    return {pid: below(pid) for pid in children}


def _field(pid: int | str, name: str, file: str = "status") -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"this machine does not report {name} of process {pid}")
