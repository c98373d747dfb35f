"""``base/``: the latest rows of a table.

Rows lie in buckets by the hash of their key (``packing.key_hashes``). Of each bucket there are files with all its rows
at some position, and deltas: the rows that later runs have changed, or found deleted. The row of a key is the one of
the greatest position. A bucket's deltas are merged into new files when they are many or large; buckets that a run does
not touch keep their files. Of every bucket the manifest has the proven sum of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from anabranch.columnar.manifest import Base, Bucket, File
from anabranch.columnar.proof import Sum
from anabranch_compactor.files.written import Replaced
from anabranch_compactor.prove import ProofError, Proven, require

MOST_DELTAS = 8
"""Delta files of one bucket."""
DELTA_SHARE = 0.25
"""The most that a bucket's deltas may have of its rows."""


def base_sum(base: Base) -> Sum:
    """The proven sum of all rows."""
    total = Sum()
    for one in base.buckets:
        total += one.sum
    return total


def live_sums(what: str, files: Iterable[Proven]) -> dict[int, Sum]:
    """By bucket, the sums of the rows of base files that are not deleted.

    Raises:
        ProofError: a row is not of its file's bucket.
    """
    found: dict[int, Sum] = {}
    for one in files:
        if one.found.astray:
            raise ProofError(f"{what}: {one.found.astray} rows of {one.written.path} are of other buckets")
        number = one.written.bucket
        found[number] = found.get(number, Sum()) + one.found.live
    return found


def require_gone(what: str, files: Iterable[Proven], reported: Iterable[Replaced]) -> None:
    """Raises ProofError where the rows that deltas mark as deleted are not exactly those that were found deleted: the
    sums of live rows do not show that."""
    wanted: dict[int, Sum] = {}
    for one in reported:
        wanted[one.bucket] = wanted.get(one.bucket, Sum()) + Sum(one.gone, int(one.gone_total, 16))
    found: dict[int, Sum] = dict.fromkeys(wanted, Sum())
    for file in files:
        bucket = file.written.bucket
        found[bucket] = found.get(bucket, Sum()) + file.found.sum - file.found.live
    for bucket, total in found.items():
        require(f"what is deleted of bucket {bucket} of {what}", total, wanted.get(bucket, Sum()))


def replaced_sums(replaced: Iterable[Replaced]) -> dict[int, Sum]:
    """By bucket, the sums of the rows that a run's changes have replaced."""
    found: dict[int, Sum] = {}
    for one in replaced:
        found[one.bucket] = found.get(one.bucket, Sum()) + Sum(one.count, int(one.total, 16))
    return found


def first_base(name: str, buckets: int, files: Sequence[Proven], table_sum: Sum) -> Base:
    """A table's first base.

    Raises:
        ProofError: its rows are not those of the table sum.
    """
    sums = live_sums(f"the first base of {name}", files)
    base = Base(tuple(_bucket(sums.get(number, Sum())) for number in range(buckets)), tuple(one.file for one in files))
    require(f"the first base of {name}", base_sum(base), table_sum)
    return base


def with_delta(base: Base, added: Sequence[File], old: Mapping[int, Sum], new: Mapping[int, Sum]) -> Base:
    """The base with a run's deltas. ``old`` and ``new``: by bucket, the sums of the rows that the run replaced and of
    those that it wrote."""
    sums = enumerate(kept.sum for kept in base.buckets)
    buckets = tuple(_bucket(kept - old.get(number, Sum()) + new.get(number, Sum())) for number, kept in sums)
    return Base(buckets, (*base.files, *added))


def with_sums(base: Base, sums: Mapping[int, Sum]) -> Base:
    """The base with other sums of its buckets."""
    return Base(tuple(_bucket(sums.get(number, Sum())) for number in range(len(base.buckets))), base.files)


def due_for_merge(base: Base) -> list[int]:
    """The buckets whose deltas are many or large."""
    whole, deltas, many = [0] * len(base.buckets), [0] * len(base.buckets), [0] * len(base.buckets)
    for file in base.files:
        (deltas if file.delta else whole)[file.bucket] += file.rows
        many[file.bucket] += file.delta
    return [
        number
        for number in range(len(base.buckets))
        if many[number] > MOST_DELTAS or deltas[number] > DELTA_SHARE * max(whole[number], 1)
    ]


def with_merged(base: Base, merged: Sequence[int], files: Sequence[File]) -> Base:
    """The base with new files for some buckets."""
    gone = set(merged)
    return Base(base.buckets, (*(f for f in base.files if f.bucket not in gone), *files))


def _bucket(total: Sum) -> Bucket:
    return Bucket(total.count, f"{total.total:032x}")
