"""Merge functions of the fault run, as an application would install them: called by the resolvers, and by the judge.

``install`` makes a distribution of them that a resolver finds by its entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from anabranch.values import Cell

_LONGEST = 40


def longer(base: Cell, stored: Cell, incoming: Cell) -> Cell:
    """The longer text; the stored one where both are equally long."""
    return incoming if len(_text(incoming)) > len(_text(stored)) else stored


def blend(base: Cell, stored: Cell, incoming: Cell) -> Cell:
    """A mix of both. A value that ends with 7 raises, as in a function with a fault of its own."""
    if _text(incoming).endswith("7"):
        raise ValueError("it ends with 7")
    return f"{_text(incoming)}+{_text(stored)}"[:_LONGEST]


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else ""


FUNCTIONS: Mapping[str, Callable[[Cell, Cell, Cell], Cell]] = {"torture_longer": longer, "torture_blend": blend}


def install(folder: Path) -> str:
    """Write the distribution into ``folder``; return the entry for ``PYTHONPATH``."""
    info = folder / "torture_functions-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torture-functions\nVersion: 1.0\n")
    lines = [f"{name} = {__name__}:{function.__name__}" for name, function in FUNCTIONS.items()]
    (info / "entry_points.txt").write_text("\n".join(["[anabranch.merge_functions]", *lines, ""]))
    return str(folder)
