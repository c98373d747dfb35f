"""Processes of pods, as the machine sees them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.api import Thing


def of_pod(pod: Thing, having: str) -> list[int]:
    """Processes of a pod whose command line has ``having`` in it."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if f"pod{pod['metadata']['uid']}" in _text(folder / "cgroup") and having in _text(folder / "cmdline")
    ]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        return ""  # the process has ended meanwhile
