"""A large transaction's captured changes, piece by piece, so that no process ever holds more than one; of the others
it keeps some bytes of each change (below), and its hash.

Two ways to cut it:

* *in the order of capture* (``in_capture_order``), where that is the order in which rows were changed, or where no row
  can have been changed twice (``Transaction.one_by_one`` says when). Each change is read once.
* *by row* (``by_row``), where changes were made inside other statements, foreign keys may have caused updates and
  deletes of one table, or keys were updated: all changes of a row come in one piece. The transaction is read twice:
  first the keys alone, which give for each change the one of many buckets that it belongs to; then bucket by bucket.
  Between the two 8 bytes of each change are held. A bucket that has grown far beyond the others has rows in it that
  were changed very often; such a row is logged by its first and its last image only.

Changes that were read are deleted, and the transaction's time limit begins anew after each piece.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from anabranch.store.capture import captured, large
from anabranch.store.capture.captured import Captured
from anabranch.store.capture.growth import growth, row_growth
from anabranch.store.capture.large import Transaction, key_bytes
from anabranch.store.capture.large_images import image_size
from anabranch.store.capture.older_images import key_places
from anabranch.store.inbox.claim import renew
from anabranch.store.session.engine import Session
from anabranch_conflict_resolver.captured.order import Image
from anabranch_conflict_resolver.captured.server_batches import Step
from anabranch_conflict_resolver.captured.steps import steps_of
from anabranch_conflict_resolver.group.tables import SyncedDatabase

PIECE_ROWS = 2_500
"""Captured rows that are read and logged at a time."""
PIECE_BYTES = captured.MOST_BYTES
"""The most bytes of the images that are read and logged at a time."""
BUCKET_ROWS = 2_000
"""Captured rows of a bucket, as a rule."""
BUCKET_BYTES = 4 * 2**20
"""The bytes of the images of a bucket, as a rule."""
MOST_BUCKETS = 50_000
HELD_ROWS = 10_000
"""Captured rows of a bucket that are held at most; where it has more, rows that were changed often are folded."""
HELD_BYTES = 4 * BUCKET_BYTES
"""The most bytes of the images of a bucket that are held."""
OFTEN = 1_000
"""Changes of one row beyond which, in such a bucket, it is logged by its first and its last image only."""

_Place = tuple[int, tuple[bytes, ...]]
"""Number of the table, and key bytes."""


def in_pieces(conn: Session, synced: SyncedDatabase, transaction: Transaction) -> Iterator[list[Step]]:
    """The changes that a group's own transaction has caused, cut as they may be."""
    return (in_capture_order if transaction.once else by_row)(conn, synced, transaction)


def in_capture_order(conn: Session, synced: SyncedDatabase, transaction: Transaction) -> Iterator[list[Step]]:
    """The changes in the order of their capture."""
    after = transaction.first - 1
    for rows in _read(conn, synced, transaction):
        [steps] = steps_of(conn, synced, rows).values()
        yield steps
        large.delete_of(conn, synced.database.id, transaction.xid, after, rows[-1].id)
        after = rows[-1].id
        # None is held while the next ones are read.
        del rows, steps
        renew(conn)


@dataclass(slots=True)
class UntilRekeyed:
    """Pieces in the order of capture, up to one in which a key was updated: from there on that need not be the order in
    which rows were changed. ``stopped``: there was one."""

    pieces: Iterable[list[Step]]
    stopped: bool = False

    def __iter__(self) -> Iterator[list[Step]]:
        for steps in self.pieces:
            # The number of changes would not show it: a row of a table that can't be read is no change.
            if any(step.rekeyed for step in steps):
                # Nor is any held then.
                self.stopped, self.pieces = True, ()
                return
            yield steps
            del steps


def by_row(conn: Session, synced: SyncedDatabase, transaction: Transaction) -> Iterator[list[Step]]:
    """The changes of some rows at a time, all of each of them, in the order of their capture."""
    number = synced.database.id
    wanted = max(transaction.changes // BUCKET_ROWS, transaction.size // BUCKET_BYTES)
    buckets = _Buckets(_Keys(synced), [array("q") for _ in range(min(wanted, MOST_BUCKETS) + 1)])
    ends = [transaction.first - 1]
    for rows in _read(conn, synced, transaction):
        captured.check_carried(synced.database, rows, synced.unreadable)
        buckets.sort(rows)
        ends.append(rows[-1].id)
        del rows
        renew(conn)
    for place, ids in enumerate(buckets.ids):
        if ids:
            rows = _of_bucket(conn, number, buckets, place)
            parts = 1 + growth(synced.growing, rows) // BUCKET_BYTES
            for part in range(parts):
                some = rows if parts == 1 else buckets.part(rows, place, part, parts)
                [steps] = steps_of(conn, synced, some).values() if some else [[]]
                # An update of a key is in the buckets of both.
                of_part = [step for step in steps if buckets.part_of(step, parts) == part]
                yield [step for step in of_part if buckets.of_step(step) == place]
                del some, steps, of_part
                renew(conn)
            del rows
    for after, up_to in pairwise(ends):
        large.delete_of(conn, number, transaction.xid, after, up_to)
        renew(conn)


def _read(conn: Session, synced: SyncedDatabase, transaction: Transaction) -> Iterator[list[Captured]]:
    after = transaction.first - 1
    number = synced.database.id
    while after < transaction.last:
        rows = large.read_of(conn, number, transaction, after, PIECE_ROWS, PIECE_BYTES)
        if not rows:
            return
        after = rows[-1].id
        yield from _grown_apart(synced, rows)
        del rows


def _grown_apart(synced: SyncedDatabase, rows: list[Captured]) -> Iterator[list[Captured]]:
    """Rows in parts that are not too large when their values have grown."""
    first = grown = 0
    for place, row in enumerate(rows) if synced.growing else ():
        grown += row_growth(synced.growing, row)
        if grown > BUCKET_BYTES and place > first:
            yield rows[first:place]
            first, grown = place, row_growth(synced.growing, row)
    yield rows[first:]


class _Keys:
    """The places of the key's columns in images."""

    def __init__(self, synced: SyncedDatabase) -> None:
        self._tables = synced.database.tables_by_id
        self._older = synced.older
        self.known: dict[tuple[int, int], Sequence[int]] = {}
        """By table and era, the places that were asked for."""

    def of(self, table_id: int, era: int, captured_id: int) -> Sequence[int] | None:
        """The places in a captured change of an era of a table; None where that is not synced any more.

        Raises:
            UndecodableError: the table had another key then.
        """
        places = self.known.get((table_id, era))
        if places is None and table_id in self._tables:
            table = self._tables[table_id]
            shape = self._older.shape_of(table_id, captured_id) if self._older is not None else None
            places = table.key_index if shape is None else key_places(table, shape)
            self.known[table_id, era] = places
        return places

    def era_of(self, row: Captured) -> int:
        """The era of its table that a captured change belongs to."""
        return 0 if self._older is None else self._older.era_of(row.table_id, row.id)


@dataclass(slots=True)
class _Buckets:
    """``keys``: where the key's columns are in an image. ``ids``: the numbers of the changes in each bucket."""

    keys: _Keys
    ids: list[array[int]]

    def of(self, place: _Place) -> int:
        """The bucket of a row."""
        return hash(place) % len(self.ids)

    def places(self, row: Captured) -> list[tuple[_Place, Image, Image]]:
        """The rows that a captured change is about, each with its image before and after."""
        index = self.keys.of(row.table_id, self.keys.era_of(row), row.id)
        if index is None:
            return []
        old = None if row.old is None else (row.table_id, key_bytes(row.old, index))
        new = None if row.new is None else (row.table_id, key_bytes(row.new, index))
        if old is None or new is None or old == new:
            both = old or new
            return [] if both is None else [(both, row.old, row.new)]
        return [(old, row.old, None), (new, None, row.new)]

    def sort(self, rows: Iterable[Captured]) -> None:
        """Put changes into their buckets."""
        ids = self.ids
        for row in rows:
            for bucket in {self.of(place) for place, _, _ in self.places(row)}:
                ids[bucket].append(row.id)

    def parts(self, row: Captured, bucket: int) -> list[tuple[_Place, Image, Image]]:
        """Those of ``places`` that are in a bucket."""
        return [part for part in self.places(row) if self.of(part[0]) == bucket]

    def place_of(self, step: Step) -> _Place:
        """The row that a change is of."""
        image = step.link[0] or step.link[1]
        assert image is not None
        number = step.table.table.id
        # Changes of this era were sorted.
        places = self.keys.known[number, step.era]
        return number, key_bytes(image, places)

    def of_step(self, step: Step) -> int:
        """The bucket of a change."""
        return self.of(self.place_of(step))

    def part(self, rows: Iterable[Captured], bucket: int, part: int, parts: int) -> list[Captured]:
        """Those changes of a bucket that are of one of its parts, of which each has all changes of its rows."""
        return [row for row in rows if any(self._part(at, parts) == part for at, _, _ in self.parts(row, bucket))]

    def part_of(self, step: Step, parts: int) -> int:
        """The part of its bucket that a change is in."""
        return self._part(self.place_of(step), parts) if parts > 1 else 0

    def _part(self, place: _Place, parts: int) -> int:
        return hash(place) // len(self.ids) % parts


def _of_bucket(conn: Session, database_id: int, buckets: _Buckets, bucket: int) -> list[Captured]:
    """The changes of a bucket, those of rows that were changed very often as one or two each."""
    ids = buckets.ids[bucket]
    held: list[Captured] = []
    size = 0
    for rows in _read_ids(conn, database_id, ids):
        held += rows
        size += captured.size(rows)
        del rows
        if len(held) > HELD_ROWS or size > HELD_BYTES:
            break
    else:
        return held
    del held
    changes: dict[_Place, tuple[int, int]] = {}
    for rows in _read_ids(conn, database_id, ids):
        _count(changes, buckets, bucket, rows)
        del rows
        renew(conn)
    often: dict[_Place, dict[int, _Fold]] = {
        place: {} for place, (count, size) in changes.items() if count > OFTEN or size > BUCKET_BYTES
    }
    del changes
    kept: list[Captured] = []
    for rows in _read_ids(conn, database_id, ids):
        kept += _folded(often, buckets, bucket, rows)
        del rows
        renew(conn)
    return kept + [row for folds in often.values() for fold in folds.values() for row in fold.folded()]


def _count(changes: dict[_Place, tuple[int, int]], buckets: _Buckets, bucket: int, rows: Iterable[Captured]) -> None:
    """Add to ``changes`` how many of each row there are, and the bytes of their images."""
    for row in rows:
        for place, old, new in buckets.parts(row, bucket):
            count, size = changes.get(place, (0, 0))
            changes[place] = (count + 1, size + image_size(old or b"") + image_size(new or b""))


def _folded(
    often: Mapping[_Place, dict[int, _Fold]], buckets: _Buckets, bucket: int, rows: Iterable[Captured]
) -> list[Captured]:
    """The changes of rows that are not in ``often``; those of the others are folded there, each era by itself."""
    kept: list[Captured] = []
    for row in rows:
        for place, old, new in buckets.parts(row, bucket):
            folds = often.get(place)
            if folds is None:
                kept.append(row._replace(old=old, new=new))
            else:
                folds.setdefault(buckets.keys.era_of(row), _Fold()).add(row, old, new)
    return kept


def _read_ids(conn: Session, database_id: int, ids: Sequence[int]) -> Iterator[list[Captured]]:
    after = 0
    while rows := large.read_ids(conn, database_id, ids, after, PIECE_ROWS, PIECE_BYTES):
        after = rows[-1].id
        yield rows
        del rows


@dataclass(slots=True)
class _Fold:
    """Changes of one row, each of which begins with the image that another one left. ``open``: the images that begin a
    change more often than they end one, or less often; of all changes these are the first and the last."""

    open: dict[Image, int] = field(default_factory=dict)
    last: Captured | None = None
    was_gone: bool = False

    def add(self, row: Captured, old: Image, new: Image) -> None:
        """One more change."""
        self.last = row._replace(old=None, new=None)
        self.was_gone |= old is None or new is None
        for image, step in ((old, 1), (new, -1)):
            count = self.open.get(image, 0) + step
            if count:
                self.open[image] = count
            else:
                del self.open[image]

    def folded(self) -> list[Captured]:
        """The net changes: none, one, or two where the row was gone in between."""
        row = self.last
        if not self.open or row is None:
            return []
        first = next(image for image, count in self.open.items() if count > 0)
        end = next(image for image, count in self.open.items() if count < 0)
        if self.was_gone and first is not None and end is not None:
            return [row._replace(old=first, new=None), row._replace(old=None, new=end)]
        return [row._replace(old=first, new=end)]
