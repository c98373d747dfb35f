"""The programs of ``tools/``, which is no package, as modules that a test can call."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load_tool(name: str) -> ModuleType:
    """A new module made from ``tools/NAME.py``; a test may change what is in it.

    Raises:
        FileNotFoundError: there is no such program.
    """
    spec = importlib.util.spec_from_file_location(f"anabranch_tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look for their module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
