"""A run goes on from the files that were published before it, so it needs them below its own root."""

from __future__ import annotations

from collections.abc import Collection

from anabranch.errors import ServerError
from anabranch_compactor.files.lake_files import LakeFiles


class LakeMovedError(ServerError):
    """A database's files are at another root than the run's; the message says where, and what to do."""


def require_moved(files: LakeFiles, needed: Collection[str], before: str, now: str) -> None:
    """That the files of a database, whose folder was ``before``, are in the folder ``now``, too.

    Raises:
        LakeMovedError: some of them are not.
    """
    there = {found.path for found in files.below("")}
    missing = sum(path not in there for path in needed)
    if missing:
        raise LakeMovedError(
            f"the lake's files are in {before}, and {now} lacks {missing} of {len(needed)}: "
            "copy them there, or give the root that was used before"
        )
