"""A distribution with merge functions, good and bad, written where a test wants it."""

from __future__ import annotations

from pathlib import Path

_MODULE = '''
import itertools, os, time

def join(base, stored, incoming):
    """Both, the stored one first, as a person would put two notes together."""
    return incoming if stored is None else f"{stored} / {incoming}"

def fails(base, stored, incoming):
    raise KeyError("no such thing")

def hangs(base, stored, incoming):
    for _ in itertools.count():
        pass

def dies(base, stored, incoming):
    os._exit(3)

def echo(base, stored, incoming):
    return incoming

def number(base, stored, incoming):
    return 7

def nothing(base, stored, incoming):
    return None

def odd(base, stored, incoming):
    return object()

def nul(base, stored, incoming):
    return "a\\0b"

def huge(base, stored, incoming):
    return "x" * 20_000_000

no_function = 5
'''
_NAMES = ("join", "fails", "hangs", "dies", "echo", "number", "nothing", "odd", "nul", "huge", "no_function", "lacking")


def install(directory: Path) -> str:
    """Write the distribution into ``directory``; return the entry for ``PYTHONPATH``."""
    (directory / "notes_functions.py").write_text(_MODULE)
    info = directory / "notes_functions-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: notes-functions\nVersion: 1.0\n")
    lines = [f"{name} = notes_functions:{name}" for name in _NAMES]
    (info / "entry_points.txt").write_text("\n".join(["[anabranch.merge_functions]", *lines, ""]))
    return str(directory)
