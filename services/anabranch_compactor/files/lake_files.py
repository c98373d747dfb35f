"""Files of a lake that are neither read nor written by tasks: manifests, and files that are no longer needed."""

from __future__ import annotations

from dataclasses import dataclass

from pyarrow import fs
from ulid import ULID

from anabranch.columnar.lake import file_system
from anabranch.errors import ServerError

_AT_ONCE = {"s3", "gcs", "abfs"}
"""File systems in which a file is there as a whole, once it is closed, or not at all."""


class RootError(ServerError):
    """The root is no place to put files into; the message says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file: its path below the folder that was listed, and its size in bytes."""

    path: str
    bytes: int


class LakeFiles:
    """The files below one folder, as Hadoop names it (``file:/data/lake/…``, ``s3a://bucket/lake/…``).

    Raises:
        RootError: it is a name of no file system that there is.
    """

    def __init__(self, folder: str) -> None:
        try:
            self._files, self._folder = file_system(folder)
        except (OSError, ValueError) as error:
            raise RootError(f"{folder}: {error}") from error

    def prepare(self) -> None:
        """Make the folder, where the file system has folders, so that an obstacle is known before anything is begun.

        Raises:
            RootError: there can't be such a folder.
        """
        if self._files.type_name in _AT_ONCE:
            return
        try:
            self._files.create_dir(self._folder, recursive=True)
        except OSError as error:
            raise RootError(f"{self._folder}: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def below(self, folder: str) -> list[Found]:
        """Every file below a folder; none where there is no such folder."""
        path = self._path(folder)
        infos = self._files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        start = len(path.rstrip("/")) + 1
        return [Found(info.path[start:], info.size) for info in infos if info.is_file]

    def put(self, name: str, text: str) -> None:
        """Write a file as one step: a reader finds all of it or nothing. One that is there stays as it is.

        Raises:
            RootError: it can't be written.
        """
        path = self._path(name)
        try:
            if not self._files.get_file_info(path).is_file:
                self._write(path, text)
        except OSError as error:
            raise RootError(f"{path}: {error}") from error

    def _write(self, path: str, text: str) -> None:
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
