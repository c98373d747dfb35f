"""The resident memory of a process now and at its peak, as Linux reports it."""

from __future__ import annotations

from pathlib import Path

KNOWN = Path("/proc/self/clear_refs").exists()
"""Whether this machine reports it."""


def has_bytes(pid: int | str) -> int:
    """The bytes that are resident now. ``pid``: a process id, or "self"."""
    return _field(pid, "VmRSS")


def peak_bytes(pid: int | str) -> int:
    """The most that were resident since the process began, or since ``forget_peak``."""
    return _field(pid, "VmHWM")


def forget_peak(pid: int | str) -> None:
    """Reset the peak that ``peak_bytes`` returns.

    Raises:
        PermissionError: the process belongs to another user.
    """
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _field(pid: int | str, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"this machine does not report {name} of process {pid}")
