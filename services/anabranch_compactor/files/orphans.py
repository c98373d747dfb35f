"""Removes files that are not needed: those of runs that were not published, those that later runs have merged, and
manifests that newer ones have replaced.

A file goes when no manifest that a reader may still follow names it (the newest one, and those that were it within the
grace) and its run began before the grace: a run that is still writing has begun later, and a reader that has just taken
a manifest finds all its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ulid import ULID

from anabranch.columnar.manifest import MANIFESTS, manifest_path
from anabranch.store.lake.compactions import Published
from anabranch_compactor.files.lake_files import LakeFiles

_ULID = "([0-7][0-9A-HJKMNP-TV-Z]{25})"
_RUN = re.compile(rf"(?:^|/){_ULID}/|^{MANIFESTS}/{_ULID}\.json(?:\.[^/]*draft)?$")


def run_of(path: str) -> str | None:
    """The run whose file this is; None for a file that no run has written."""
    found = _RUN.search(path)
    return None if found is None else found[1] or found[2]


def needed(recent: Iterable[Published]) -> set[str]:
    """The files that readers of these runs may want, their manifests among them."""
    return {path for one in recent for path in (manifest_path(one.run_id), *named(one.manifest))}


def named(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Every file that a manifest names, also an entry of an earlier release that this one does not use: other readers
    may."""
    for table in manifest["tables"].values():
        bases = (table["base"], *(one["base"] for one in table.get("ended") or ()))
        for files in (table["changes"], table["conflicts"], *((base or {}).get("files", ()) for base in bases)):
            yield from (file["path"] for file in files)


def remove_orphans(files: LakeFiles, keep: set[str], before_ms: int) -> int:
    """Remove the files of runs that began before ``before_ms`` and are not in ``keep``; gives their number."""
    removed = 0
    for found in files.below(""):
        run = run_of(found.path)
        if found.path in keep or run is None:
            continue
        if ULID.from_str(run).milliseconds < before_ms:
            files.remove(found.path)
            removed += 1
    return removed
