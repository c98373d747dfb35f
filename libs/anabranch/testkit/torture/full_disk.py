"""A full disk on a node of the fault run: for a while its file may grow by a few pages only, to which SQLite reacts as
to a full disk, also for the sync's own writes; then there is room again.

Each batch that is written meanwhile has a text of its own in all rows that it makes. The text of a refused batch goes
into the record, {"nowhere": the text, "shown": in how many places of the device's file it is all the same}, and must be
nowhere: in no batch, and in no row. The same holds for a row that was refused alone, while its block saved the rest.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from anabranch.client import DiskFull, RowExists, RowMissing, SyncedDb
from anabranch.testkit.torture.tables import SHARED

MOST_PAGES = 24
"""The most pages by which the file may grow."""
ENOUGH_REFUSED = 3
MOST_BATCHES = 60
MOST_ROWS = 5
SMALLEST, LARGEST = 2_000, 200_000
"""Bytes of a row; they grow until one is refused: pages that are free in the file come first."""
PAUSE_S = 0.1
_NO_LIMIT = 1_073_741_823
_STANDS = """
SELECT (SELECT count(*) FROM parts WHERE instr(id, :text) OR instr(body, :text))
     + (SELECT count(*) FROM _db_mutations_queue WHERE instr(value, CAST(:text AS BLOB)))
"""


@contextmanager
def little_room(db: SyncedDb, pages: int) -> Iterator[None]:
    """Inside the block, the file of ``db`` may grow by so many pages, by any writer."""
    file = db._file
    with file._held():
        (now,) = file._write.execute("PRAGMA page_count").fetchone()
        file._write.execute(f"PRAGMA max_page_count = {now + pages}").fetchone()
    try:
        yield
    finally:
        with file._held():
            file._write.execute(f"PRAGMA max_page_count = {_NO_LIMIT}").fetchone()


class Filling:
    """``saved`` gets each batch that was saved; ``refused`` each text that must be nowhere, and in how many places it
    is. ``more`` writes a row of some table, with a text in it."""

    def __init__(
        self,
        db: SyncedDb,
        chance: random.Random,
        saved: Callable[[str], None],
        refused: Callable[[str, int], None],
        more: Callable[[SyncedDb, random.Random, str], None],
    ) -> None:
        self._db = db
        self._chance = chance
        self._saved = saved
        self._refused = refused
        self._more = more

    def run(self, mark: str) -> int:
        """Write until some batches were refused; return their number."""
        refused, size = 0, SMALLEST
        with little_room(self._db, self._chance.randrange(MOST_PAGES)):
            for number in range(MOST_BATCHES):
                if refused == ENOUGH_REFUSED:
                    break
                if not self._batch(f"{mark}.{number}!", size):
                    refused += 1
                    size = SMALLEST
                size = min(size * 2, LARGEST)
                time.sleep(self._chance.uniform(0, PAUSE_S))  # the sync writes, too
        return refused

    def _batch(self, text: str, size: int) -> bool:
        """Write one batch; return whether it was saved."""
        goes_on = self._chance.random() < 0.4
        missing: list[str] = []
        try:
            with self._db.batch() as batch:
                for part in range(self._chance.randint(1, MOST_ROWS)):
                    key = f"{text}{part}-"
                    try:
                        self._insert(key, size)
                    except DiskFull:
                        if not goes_on:
                            raise
                        missing.append(key)
                with suppress(RowMissing, RowExists):
                    self._more(self._db, self._chance, text)
        except DiskFull:
            self._tell(text)
            return False
        for key in missing:
            self._tell(key)
        if batch.id:
            self._saved(batch.id)
        return True

    def _insert(self, key: str, size: int) -> None:
        row = {"id": key, "shared_id": f"s{self._chance.randrange(SHARED):02}", "body": "x" * size}
        self._db.table("parts").insert(row)

    def _tell(self, text: str) -> None:
        (places,) = self._db.execute(_STANDS, {"text": text}).fetchone()
        self._refused(text, places)
