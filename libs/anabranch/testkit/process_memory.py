"""How much memory a process has, and had at most, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

KNOWN = Path("/proc/self/clear_refs").exists()
"""Whether this machine tells."""


def has_bytes(pid: int | str) -> int:
    """The bytes that are resident now. ``pid``: or "self"."""
    return _field(pid, "VmRSS")


def peak_bytes(pid: int | str) -> int:
    """The most that were resident since the process began, or since ``forget_peak``."""
    return _field(pid, "VmHWM")


def forget_peak(pid: int | str) -> None:
    """Have ``peak_bytes`` begin anew.

    Raises:
        PermissionError: the process belongs to somebody else.
    """
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _field(pid: int | str, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{name} of process {pid} is not told")
