"""A published base read without Spark: the latest row of each key, in an order that can be gone back to."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from anabranch.columnar.base_proof import BaseProver, ProofStoppedError, PublishedBase
from anabranch.columnar.base_reader import RowPlace
from anabranch.columnar.evidence import EvidenceError
from anabranch.columnar.manifest import Manifest, epoch_folder, manifest_path, to_json
from anabranch.columnar.proof import Sum
from anabranch.testkit.base_writer import FileRows, write_base, write_manifest
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.arrow import to_cells
from anabranch.values.cells import TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, Literal

PLAIN = Table("item", (Column("id", Kind.STRING, "text"), Column("n", Kind.INT64, "bigint")), ("id",), 1)
TWO_KEYS = Table(
    "seat",
    (
        Column("at", Kind.TIMESTAMP, "timestamp without time zone"),
        Column("a.b", Kind.STRING, "text"),
        Column("anabranch", Kind.INT64, "bigint"),
        Column("a", Kind.DECIMAL, "numeric(12,8)"),
    ),
    ("a.b", "at"),
    2,
)
Rows = dict[tuple[Cell, ...], Sequence[Cell]]
START = RowPlace()


def published(folder: Path, table: Table, files: Sequence[FileRows], buckets: int = 1) -> PublishedBase:
    """A base of one table."""
    below = folder / epoch_folder("db", "e")
    tables = {table.name: write_base(table, below, "01ARZ3NDEKTSV4RRFFQ69G5FAV", files, buckets, row_group_rows=40)}
    manifest = Manifest("01ARZ3NDEKTSV4RRFFQ69G5FAV", "db", "e", 0, 9, 1, "", tables)
    write_manifest(below, manifest)
    return PublishedBase(str(folder), manifest)


def read(
    base: PublishedBase, table: Table, after: RowPlace = START, size: int = 600
) -> list[tuple[list[Cell], RowPlace]]:
    """The rows after a place, each with the place after its batch."""
    found: list[tuple[list[Cell], RowPlace]] = []
    for batch, place in base.reader(table.name, size).batches(after):
        assert batch.num_rows
        cells = [to_cells(c, values) for c, values in zip(table.columns, batch.columns, strict=True)]
        found += [(list(row), place) for row in zip(*cells, strict=True)]
    return found


def random_files(rng: random.Random, buckets: int) -> tuple[list[FileRows], Rows]:
    """Files of a base with deltas, and the rows that they show."""
    files, rows = [], {}
    for bucket in range(buckets):
        live: Rows = {
            (f"{bucket}-{i:04}",): (f"{bucket}-{i:04}", rng.randrange(99)) for i in range(rng.choice((0, 150)))
        }
        ordered = sorted(live.values(), key=lambda row: str(row[0]))
        half = rng.randrange(len(ordered) + 1)
        files += [FileRows(part, 1, bucket=bucket) for part in (ordered[:half], ordered[half:])]
        for position in range(2, rng.randrange(2, 5)):
            keys = [*live]
            gone = rng.sample(keys, min(len(keys), 7))
            files.append(FileRows([(*key, None) for key in gone], 2 * position, True, True, bucket))
            for key in gone:
                del live[key]
            changed = [*rng.sample([*live], min(len(live), 9)), (f"{bucket}-new-{position}",), *gone[:2]]
            written = {key: (*key, position * 1000 + at) for at, key in enumerate(changed)}
            files.append(FileRows([*written.values()], 2 * position + 1, delta=True, bucket=bucket))
            live.update(written)
        rows.update(live)
    return files, rows


@pytest.mark.parametrize("seed", range(12))
def test_the_latest_row_of_each_key_and_none_that_is_deleted(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    buckets = rng.choice((1, 3))
    files, rows = random_files(rng, buckets)
    base = published(tmp_path, PLAIN, files, buckets)
    found = read(base, PLAIN)
    assert sorted(str(row) for row, _ in found) == sorted(str([*row]) for row in rows.values())
    # From any place on the same rows come in the same order.
    for place in {place for _, place in found}:
        done = [i for i, (_, after) in enumerate(found) if after == place][-1] + 1
        assert [row for row, _ in read(base, PLAIN, place, size=333)] == [row for row, _ in found[done:]]
    unproven = (prover := BaseProver(threading.Event())).unproven(base, ["item"])
    assert len(unproven) == buckets
    prover.prove(base, unproven)
    assert prover.unproven(base, ["item"]) == []


def test_keys_of_several_columns_beyond_what_a_file_column_holds(tmp_path: Path) -> None:
    far, near = Literal("294276-12-31 23:59:59.999999"), 1_700_000_000_000_000
    moments: list[Cell] = [far, near, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, -62_135_596_800_000_001]
    rows: list[Sequence[Cell]] = [
        (at, name, i, f"{i}.00000001") for i, at in enumerate(moments) for name in ("", "x", "é")
    ]
    changed: list[Sequence[Cell]] = [
        (far, "x", None, "NaN"),
        (TIMESTAMP_INFINITY, "é", -1, "0.00000000"),
        (near, "new", 5, "-0.00000009"),
    ]
    files = [FileRows(rows, 1), FileRows(changed, 2, delta=True), FileRows([(near, "", None, None)], 3, True, True)]
    base = published(tmp_path, TWO_KEYS, files)
    wanted = {(row[1], row[0]): row for row in [*rows, *changed]}
    del wanted["", near]
    found = [row for row, _ in read(base, TWO_KEYS)]
    assert sorted(map(repr, found)) == sorted(repr([*row]) for row in wanted.values())
    (prover := BaseProver(threading.Event())).prove(base, prover.unproven(base, ["seat"]))


def test_a_proof_that_is_told_to_stop_ends_after_its_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [FileRows([(f"{b}{i:05}", i) for i in range(50)], 1, bucket=b) for b in range(3)]
    base = published(tmp_path, PLAIN, rows, buckets=3)
    stopping, whole = threading.Event(), PublishedBase.bucket_sum

    def told_meanwhile(self: PublishedBase, table: str, number: int) -> Sum:
        stopping.set()
        return whole(self, table, number)

    monkeypatch.setattr(PublishedBase, "bucket_sum", told_meanwhile)
    prover = BaseProver(stopping)
    with pytest.raises(ProofStoppedError):
        prover.prove(base, prover.unproven(base, ["item"]))
    assert [one.bucket for one in prover.unproven(base, ["item"])] == [1, 2]


def test_a_file_that_is_missing_or_changed_is_never_taken_as_proven(tmp_path: Path) -> None:
    rows = [(f"{i:05}", i) for i in range(500)]
    base = published(tmp_path, PLAIN, [FileRows(rows, 1), FileRows([("00001", 7)], 2, delta=True)])
    prover = BaseProver(threading.Event())
    prover.prove(base, prover.unproven(base, ["item"]))
    assert prover.unproven(base, ["item"]) == []
    below = tmp_path / epoch_folder("db", "e")
    files = [below / file.path for file in base.manifest.tables["item"].base.files]  # type: ignore[union-attr]
    for file in files:
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(EvidenceError, match="missing"):
            prover.unproven(base, ["item"])
        file.write_bytes(content + b"\0")
        with pytest.raises(EvidenceError, match="bytes"):
            prover.unproven(base, ["item"])
        file.write_bytes(bytes(b ^ 0xFF if 4 <= i < len(content) // 4 else b for i, b in enumerate(content)))
        with pytest.raises(EvidenceError):
            prover.prove(base, prover.unproven(base, ["item"]))
        file.write_bytes(content)
        prover.prove(base, prover.unproven(base, ["item"]))
    # Another row under the same size and a good checksum is found by its hash.
    fresh = tmp_path / "other"
    other = published(fresh, PLAIN, [FileRows([(f"{i:05}", {300: 301, 301: 300}.get(i, i)) for i in range(500)], 1)])
    whole = files[0]
    changed = fresh / epoch_folder("db", "e") / other.manifest.tables["item"].base.files[0].path  # type: ignore[union-attr]
    assert changed.stat().st_size == whole.stat().st_size
    whole.write_bytes(changed.read_bytes())
    with pytest.raises(EvidenceError, match="bucket 0"):
        prover.prove(base, prover.unproven(base, ["item"]))
    manifest = below / manifest_path(base.manifest.run_id)
    manifest.write_text(manifest.read_text().replace('"to_position": 9', '"to_position": 8'))
    with pytest.raises(EvidenceError, match="published"):
        prover.unproven(base, ["item"])
    assert to_json(base.manifest)["to_position"] == 9


KEYS: list[tuple[Kind, str, list[Cell]]] = [
    (Kind.BOOL, "boolean", [True, False]),
    (Kind.INT64, "smallint", [-(2**15), 0, 2**15 - 1]),
    (Kind.BYTES, "bytea", [b"", b"\0", b"\xff\0"]),
    (Kind.DATE, "date", [-2147483648, -141432, 2147483647]),
    (Kind.TIME, "time without time zone", [0, 86_400_000_000]),
    (Kind.TIMESTAMP, "timestamp with time zone", [TIMESTAMP_INFINITY, -1, Literal("294276-12-31 23:59:59+00")]),
    (Kind.UUID, "uuid", ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
    (Kind.LITERAL, "inet", ["1.2.3.4", "::1"]),
]


@pytest.mark.parametrize("key", KEYS, ids=[kind.name for kind, _, _ in KEYS])
def test_a_delta_hides_the_row_of_its_key_whatever_its_kind(tmp_path: Path, key: tuple[Kind, str, list[Cell]]) -> None:
    kind, postgres_type, cells = key
    table = Table("k", (Column("k", kind, postgres_type), Column("n", Kind.INT64, "bigint")), ("k",), 3)
    whole = [(cell, i) for i, cell in enumerate(cells)]
    base = published(
        tmp_path, table, [FileRows(whole, 1), FileRows([(cells[0], 9)], 2, delta=True), FileRows([], 3, delta=True)]
    )
    assert sorted((n, str(cell)) for (cell, n), _ in read(base, table)) == sorted(
        (n, str(cell)) for cell, n in [*whole[1:], (cells[0], 9)]
    )
    gone = published(tmp_path / "gone", table, [FileRows(whole, 1), FileRows([(cells[-1], None)], 2, True, True)])
    assert [n for (_, n), _ in read(gone, table)] == list(range(len(cells) - 1))
    (prover := BaseProver(threading.Event())).prove(gone, prover.unproven(gone, ["k"]))
