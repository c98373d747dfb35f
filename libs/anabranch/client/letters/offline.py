"""The dead queue of a device's file, without a server and without the app that the file belongs to."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from anabranch.client.events import DeadLetter, Listeners
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.letters import dead, replay
from anabranch.client.writes.local import BatchBuilder
from anabranch.values import Column, Kind
from anabranch.values.kinds import TEXT_KINDS
from anabranch.values.python import converter


class DeadQueue:
    """The letters of the file at ``path``, for a person who maintains a device. Reading a letter here does not start
    the two weeks for which it is kept after the app has first shown it.

    Raises:
        ForeignFile: there is no such file, or it is no device's. Nothing is made or changed.
        FileDamaged: it is a device's, and damaged.
        ClientError: it is one of a later version.
    """

    def __init__(self, path: Path) -> None:
        self._file = DeviceFile(path, None, "", _now_ms, Listeners())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def letters(self) -> list[DeadLetter]:
        """All letters, in the order in which they were made."""
        return dead.letters(self._file.reader(), self._file.tables())

    def letter(self, beginning: str) -> DeadLetter:
        """The letter whose id begins with ``beginning``. Raises ValueError where none does, or several do."""
        found = [letter for letter in self.letters() if beginning and letter.id.startswith(beginning)]
        if len(found) != 1:
            raise ValueError(f"{len(found) or 'no'} dead letters have an id that begins with {beginning!r}")
        return found[0]

    def value(self, letter: DeadLetter, column: str, text: str) -> Any:
        """The value that ``text`` gives for ``column`` in one of the letter's tables: unchanged for text, read as JSON
        for all else.

        Raises:
            ValueError: no table of the letter has the column, or the text is no value of it.
        """
        tables = self._file.tables()
        for _, name, _ in letter.mutations:
            table = tables.named(name)
            found = None if table is None else table.writable.get(column)
            if table is not None and found is not None:
                return _parse(table, found, text)
        raise ValueError(f"no table of the letter has a column {column!r}")

    def replay(self, letter: DeadLetter, changes: Mapping[str, Any], leave_out: Collection[str]) -> str:
        """``SyncedDb.replay``; return the new batch's id."""
        with self._file.transaction() as tx:
            builder = BatchBuilder(tx, {})
            replay.replay(tx, builder, letter.id, changes, leave_out)
            return builder.queue(_now_ms())

    def discard(self, letter: DeadLetter) -> None:
        """``SyncedDb.discard``."""
        with self._file.transaction() as tx:
            dead.discard(tx, letter.id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _parse(table: DeviceTable, column: Column, text: str) -> Any:
    try:
        value = text if column.kind in TEXT_KINDS else json.loads(text)
    except ValueError:
        # A column may take a text that is no JSON: "infinity", a date's number of days.
        value = text
    if column.kind is Kind.BYTES and isinstance(value, str):
        value = bytes.fromhex(value)
    try:
        if value is not None:
            converter(column)(value)
    except ValueError as error:
        raise ValueError(f"{table.sql_name}.{column.sql_name}: {error}") from None
    return value
