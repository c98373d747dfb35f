"""Files of a lake that are neither read nor written by tasks: manifests, and those that nobody needs any more."""

from __future__ import annotations

from dataclasses import dataclass

from pyarrow import fs
from ulid import ULID

from anabranch.columnar.lake import file_system

_AT_ONCE = {"s3", "gcs", "abfs"}
"""File systems in which a file is there as a whole, once it is closed, or not at all."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file: its path below the folder that was listed, and its size in bytes."""

    path: str
    bytes: int


class LakeFiles:
    """The files below one folder, as Hadoop names it (``file:/data/lake/…``, ``s3a://bucket/lake/…``)."""

    def __init__(self, folder: str) -> None:
        self._files, self._folder = file_system(folder)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def below(self, folder: str) -> list[Found]:
        """Every file below a folder; none where there is no such folder."""
        path = self._path(folder)
        infos = self._files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        start = len(path.rstrip("/")) + 1
        return [Found(info.path[start:], info.size) for info in infos if info.is_file]

    def put(self, name: str, text: str) -> None:
        """Write a file as one step: a reader finds all of it or nothing. One that is there stays as it is."""
        path = self._path(name)
        if self._files.get_file_info(path).is_file:
            return
        at_once = self._files.type_name in _AT_ONCE
        # Another run may be putting the same file there.
        draft = path if at_once else f"{path}.{ULID()}.draft"
        if not at_once:
            self._files.create_dir(path.rpartition("/")[0], recursive=True)
        with self._files.open_output_stream(draft) as stream:
            stream.write(text.encode())
        if not at_once:
            self._files.move(draft, path)

    def remove(self, name: str) -> None:
        """Remove a file; one that another run has removed meanwhile is gone all the same. Raises OSError where it can't
        be removed."""
        try:
            self._files.delete_file(self._path(name))
        except FileNotFoundError:
            return
