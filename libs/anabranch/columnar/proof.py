"""The proof that files hold what Postgres holds: their rows are encoded anew, by columns, and the hashes added up.

The compactor, the janitor and the snapshot all prove by this module, and compare the sums with those of Postgres. The
module does not know how the rows came into their files. Sums are modulo 2**128, and so may be added in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from anabranch.columnar.encode import ColumnEncoder, cells_of, joined, own_fields
from anabranch.columnar.file_columns import BASE, CAUSE, CHANGES, CONFLICT_FIELDS, CONFLICTS, KINDS, OWN, FileTable
from anabranch.columnar.losing_values import LosingValues
from anabranch.values.canonical import SUM_MODULUS

ROWS_AT_ONCE, BYTES_AT_ONCE = 65_536, 8 * 1024 * 1024
NAME_SEPARATOR = "\0"
"""Between the names of changed columns: no name in Postgres has it."""
_TYPES = {name: number for number, name in KINDS.items()}
_INSERT, _UPDATE = KINDS[1], KINDS[2]
# Copying a prepared state costs less than making one.
_new_hash = blake2b(digest_size=16).copy
_BETWEEN = pa.scalar("\x1f")
_READ = {CHANGES: ("type", "changed"), CONFLICTS: (*CONFLICT_FIELDS, CAUSE, "untyped"), BASE: ("deleted",)}
"""The fields that are read of our struct, by the folder, beside position and exact texts."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of hashes and their sum modulo 2**128."""

    count: int = 0
    total: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.count + other.count, (self.total + other.total) % SUM_MODULUS)

    def __sub__(self, other: Sum) -> Sum:
        return Sum(self.count - other.count, (self.total - other.total) % SUM_MODULUS)

    def to_bytes(self) -> bytes:
        """The sum alone, as ``anabranch.table_sums`` keeps it: 16 bytes, big-endian."""
        return self.total.to_bytes(16, "big")


def hash_sum(encoded: pa.Array) -> Sum:
    """The sum of the BLAKE2b of each value. Raises TypeError where one is NULL."""
    # Every value is hashed by itself: there is no other way to have the sum of hashes.
    digests = []
    for data in encoded.to_pylist():
        one = _new_hash()
        one.update(data)
        digests.append(one.digest())
    return _added(digests)


def _added(digests: list[bytes]) -> Sum:
    return Sum(len(digests), sum(map(int.from_bytes, digests)) % SUM_MODULUS)


def row_sum(encoder: ColumnEncoder, cells: pa.RecordBatch) -> Sum:
    """The sum of the row hashes of ``c…`` and ``x…``."""
    return hash_sum(encoder.rows(encoder.values(cells)))


def pulled_sum(encoder: ColumnEncoder, rows: pa.RecordBatch) -> Sum:
    """The sum of the row hashes of a table's columns as a Pull carries them."""
    return hash_sum(encoder.rows([encoder.value(i, values) for i, values in enumerate(rows.columns)]))


def effect_sum(
    encoder: ColumnEncoder,
    cells: pa.RecordBatch,
    types: pa.Array,
    changed: pa.Array,
    positions: pa.Array | None = None,
    ends: Mapping[int, int] | None = None,
) -> Sum:
    """The sum of the effect hashes of ``c…`` and ``x…``. ``types``: as files say; ``changed``: the names of the columns
    that an update changed, with NAME_SEPARATOR. ``ends``: by place, the positions from which on inserts do not give a
    column, since it was dropped there.

    Raises:
        KeyError: there is no such type, or no such column.
    """
    forms = pc.binary_join_element_wise(types.fill_null(""), changed.fill_null(""), NAME_SEPARATOR).dictionary_encode()
    total = Sum()
    for code, form in enumerate(forms.dictionary.to_pylist()):
        kind, _, text = form.partition(NAME_SEPARATOR)
        rows = pc.indices_nonzero(pc.equal(forms.indices, code))
        if kind == _INSERT and ends:
            assert positions is not None
            for given, some in _by_columns(encoder, rows, positions.take(rows), ends):
                total += hash_sum(encoder.effects(_TYPES[kind], given, cells, some))
            continue
        changes = text.split(NAME_SEPARATOR) if text and kind == _UPDATE else ()
        given = encoder.table.column_names if kind == _INSERT else changes
        total += hash_sum(encoder.effects(_TYPES[kind], given, cells, rows))
    return total


def _by_columns(
    encoder: ColumnEncoder, rows: pa.Array, positions: pa.Array, ends: Mapping[int, int]
) -> Iterator[tuple[Sequence[str], pa.Array]]:
    """Rows of inserts, by the columns that their table had at their positions."""
    names = encoder.table.column_names
    bounds = sorted(set(ends.values()))
    for first, end in pairwise([None, *bounds, None]):
        here = pa.repeat(pa.scalar(True), len(rows))
        if first is not None:
            here = pc.greater_equal(positions, first)
        if end is not None:
            here = pc.and_(here, pc.less(positions, end))
        some = rows.filter(here)
        if len(some):
            yield [name for i, name in enumerate(names) if i not in ends or first is None or ends[i] > first], some


class Prover:
    """Adds up the rows of a table's files in one folder (``what``). For CHANGES ``files`` are ``with_former``."""

    def __init__(self, what: str, files: FileTable) -> None:
        self.files = files
        self.encoder = ColumnEncoder(files.table)
        self._what = what
        self._losers = LosingValues(files) if what == CONFLICTS else None

    def read(self, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, with all that a proof needs of them, so many at a time as fit in memory."""
        there = set(file.schema_arrow.names)
        files = self.files
        mine = [one.file_name for one in files.ever] if self._what == CONFLICTS else files.sources()
        own = [f"{OWN}.{name}" for name in ("position", "exact", *_READ[self._what])]
        return batches_of(file, [*(name for name in mine if name in there), *own])

    def sum(self, rows: pa.RecordBatch) -> Sum:
        """The sum of the hashes of effects, of conflicts, or of rows.

        Raises:
            ValueError, KeyError, TypeError, pyarrow.ArrowException: they are no such rows.
        """
        own = own_fields(rows)
        if self._losers is not None:
            fields = [own[name].cast(pa.string()) for name in CONFLICT_FIELDS]
            fields = pc.binary_join_element_wise(*fields, _BETWEEN)
            if CAUSE in own:
                # A value that lost to another one has no cause, and is hashed without.
                caused = pc.binary_join_element_wise(fields, own[CAUSE].cast(pa.string()), _BETWEEN)
                fields = pc.coalesce(caused, fields)
            conflicts = joined(fields.cast(pa.binary()), self._losers.of(rows, own))
            return _added([sha256(one).digest()[:16] for one in conflicts.to_pylist()])
        cells = cells_of(self.files, rows, range(len(self.files.columns)))
        if self._what == BASE:
            return row_sum(self.encoder, cells)
        changed = pc.binary_join(own["changed"], NAME_SEPARATOR)
        return effect_sum(self.encoder, cells, own["type"], changed, own["position"], self.files.ends)


def open_file(filesystem: fs.FileSystem, path: str) -> pq.ParquetFile:
    """Open a file whose pages are compared with their checksums, where they have some. Of each row group all columns
    are read at once: an object store takes long for each read, however little it is."""
    return pq.ParquetFile(path, filesystem=filesystem, pre_buffer=True, page_checksum_verification=True)


def batches_of(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """A file's rows, so many at a time as fit in memory; none of two row groups together."""
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        size = min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE * about.num_rows // max(1, about.total_byte_size)))
        yield from file.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)
