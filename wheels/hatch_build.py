"""How the three wheels are made of one source tree: each folder beside names its files, all else comes from here.

Version, Python and the packages that are needed are those of the workspace's `pyproject.toml`, where the lock is made
from, so that no wheel can say otherwise. The hooks run within hatchling, on whatever machine installs from a clone, and
import nothing but it and the standard library.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parent.parent
TREES = ("libs", "services")
"""Folders whose contents lie at the top of a wheel."""
OURS = "anabranch["


class Metadata(MetadataHookInterface):
    """``extra`` is the workspace's extra that this wheel needs, ``extras`` are those that it offers, and ``wheels`` are
    the other wheels, of its own version, that it stands on."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in what is dynamic."""
        workspace = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        offered = workspace["optional-dependencies"]
        version = workspace["version"]
        metadata["version"] = version
        metadata["requires-python"] = workspace["requires-python"]
        metadata["dependencies"] = [
            *(f"{wheel}=={version}" for wheel in self.config.get("wheels", ())),
            *others(offered[self.config["extra"]]),
        ]
        metadata["optional-dependencies"] = {name: others(offered[name]) for name in self.config.get("extras", ())}


class Files(BuildHookInterface[Any]):
    """``files`` are files and folders of the workspace, ``but`` is what is not taken of them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Say what goes into the wheel. Raises ValueError for an editable one: those are the workspace's."""
        if version == "editable":
            raise ValueError(f"to develop, install the workspace: pip install -e {ROOT}")
        for file in files(self.config["files"], self.config.get("but", ())):
            build_data["force_include"][str(ROOT / file)] = file.partition("/")[2]


def others(requirements: Sequence[str]) -> list[str]:
    """Requirements without those that name an extra of the workspace itself."""
    return [one for one in requirements if not one.startswith(OURS)]


def files(named: Sequence[str], but: Sequence[str] = ()) -> Iterator[str]:
    """Files of the workspace, relative to it, that ``named`` holds and ``but`` does not.

    Raises:
        FileNotFoundError: something named is not there.
    """
    left_out = set(files(but)) if but else set()
    for name in named:
        found = [ROOT / name] if (ROOT / name).is_file() else sorted(_walk(ROOT / name))
        if not found:
            raise FileNotFoundError(f"{name}, which a wheel is to hold, is not there")
        relative = (file.relative_to(ROOT).as_posix() for file in found)
        yield from (file for file in relative if file not in left_out)


def _walk(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(at) / name for name in names if not name.endswith((".pyc", ".pyo")))
