"""Columns that come, go and change their type: their file columns, their values in older files, their part in effects
and in manifests."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from anabranch.columnar.encode import ColumnEncoder, cells_of
from anabranch.columnar.file_columns import EXACT_TEXTS, KINDS, OWN, FileTable, file_table
from anabranch.columnar.manifest import (
    Base,
    Bucket,
    EarlierBase,
    EndedRegistration,
    File,
    FormerTable,
    Manifest,
    TableFiles,
    from_json,
    to_json,
)
from anabranch.columnar.proof import effect_sum
from anabranch.v1 import change_pb2
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.canonical import SUM_MODULUS
from anabranch.values.cells import Literal
from anabranch.values.effect_hashes import EffectEncoder
from anabranch.values.parquet import file_codecs
from anabranch.values.table import FormerColumn
from anabranch.wire.effects import INSERT, UPDATE, EffectBuilder
from anabranch_compactor.decode import log_decoder
from anabranch_compactor.shape import Shape

ID = Column("id", Kind.STRING, "text")
GONE = Column("gone", Kind.INT64, "bigint")
QTY = Column("qty", Kind.DECIMAL, "numeric(5,2)", initial=("1.50",), added_position=10)
TAG = Column("tag", Kind.STRING, "text", initial=(None,), added_position=30, renamed="label")


def table(*columns: Column, former: tuple[FormerColumn, ...] = ()) -> Table:
    return Table("t", (ID, *columns), ("id",), 7, former=former)


def names(files: FileTable) -> list[str]:
    return [column.file_name for column in files.columns]


def test_a_column_that_went_is_among_those_of_the_changes_before() -> None:
    before = file_table(table(GONE))
    after = file_table(table(QTY, former=(FormerColumn(GONE, 20),)), before.ever)
    assert names(after) == ["id", "qty"]
    assert names(after.with_former()) == names(after.with_former(19)) == ["id", "qty", "gone"]
    assert after.with_former(20) is after
    assert after.with_former().ends == {2: 20}
    assert after.ends == {}
    # One that came and went between two runs is in no file yet.
    unseen = file_table(table(former=(FormerColumn(QTY, 20),)), before.columns[:1])
    assert names(unseen.with_former()) == ["id", "qty"]
    assert Shape(after, since=20).history.width == 2
    assert Shape(after, since=19).history.width == 3


def test_an_identity_has_a_file_column_for_each_type_in_files() -> None:
    wide = Column("qty", Kind.DECIMAL, "numeric(9,3)")
    first = file_table(table(QTY))
    second = file_table(table(wide), first.ever)
    third = file_table(table(Column("qty", Kind.DECIMAL, "numeric")), second.ever)
    assert [names(one)[1] for one in (first, second, third)] == ["qty", "qty (2)", "qty (3)"]
    assert third.sources([1]) == ["qty (3)", "qty (2)", "qty"]
    dropped = file_table(table(former=(FormerColumn(wide, 40),)), third.ever)
    assert names(dropped.with_former()) == ["id", "qty (2)"]
    assert dropped.with_former().sources([1]) == ["qty (2)", "qty (3)", "qty"]
    back = file_table(table(QTY), third.ever)
    assert names(back)[1] == "qty"


def rows_of(files: FileTable, *rows: tuple[Cell, ...]) -> pa.RecordBatch:
    """Rows of a file."""
    written = [
        codec.write(cells)
        for codec, cells in zip(file_codecs(c.column for c in files.columns), zip(*rows, strict=True), strict=True)
    ]
    exact: list[list[tuple[str, str]]] = [[] for _ in rows]
    for one, (_, texts) in zip(files.columns, written, strict=True):
        for at, text in enumerate(texts or ()):
            if text is not None:
                exact[at].append((one.file_name, text))
    own = pa.StructArray.from_arrays([pa.array([texts or None for texts in exact], EXACT_TEXTS)], names=["exact"])
    arrays = [values for values, _ in written]
    return pa.RecordBatch.from_arrays([*arrays, own], names=[*names(files), OWN])


def cells_in(files: FileTable, batch: pa.RecordBatch) -> list[tuple[Cell, ...]]:
    """The rows of ``c…`` and ``x…``."""
    found = []
    for i, codec in enumerate(file_codecs(one.column for one in files.columns)):
        exact = batch.column(f"x{i}").to_pylist() if f"x{i}" in batch.schema.names else None
        found.append(codec.read(batch.column(f"c{i}"), exact))
    return list(zip(*found, strict=True))


DECIMALS = ["1.50", "-123.45", "NaN", None]
MOMENTS = [0, -1, 2**63 - 1, Literal("294270-06-01 00:00:00"), None]


@pytest.mark.parametrize(
    ("kind", "old", "new", "cells"),
    [
        (Kind.DECIMAL, "numeric(5,2)", "numeric(9,2)", DECIMALS),
        (Kind.DECIMAL, "numeric(5,2)", "numeric(9,3)", DECIMALS),
        (Kind.DECIMAL, "numeric(5,2)", "numeric", DECIMALS),
        (Kind.DECIMAL, "numeric", "numeric(5,2)", [*DECIMALS, "1.5", "12345678.90", "Infinity"]),
        (Kind.TIMESTAMP, "timestamp without time zone", "timestamp with time zone", MOMENTS),
        (Kind.TIMESTAMP, "timestamp with time zone", "timestamp without time zone", MOMENTS),
    ],
)
def test_values_of_an_older_file_column_are_what_they_were(kind: Kind, old: str, new: str, cells: list[Cell]) -> None:
    first = file_table(table(Column("v", kind, old)))
    second = file_table(table(Column("v", kind, new)), first.ever)
    assert names(second)[1] == "v (2)"
    rows = [(str(i), cell) for i, cell in enumerate(cells)]
    found = cells_of(second, rows_of(first, *rows), range(2))
    assert found.column("c1").type == second.columns[1].type
    assert cells_in(second, found) == rows


LATER = Table("t", (ID, QTY, TAG), ("id",), 7, former=(FormerColumn(GONE, 20),))
HELD = file_table(LATER, file_table(table(GONE)).ever).with_former()


def logged(*effects: tuple[int, Any]) -> pa.RecordBatch:
    count = len(effects)
    return pa.RecordBatch.from_pydict(
        {
            "position": pa.array([position for position, _ in effects], pa.int64()),
            "batch_id": pa.array(["B"] * count),
            "ordinal": pa.array(range(count), pa.int32()),
            "node_id": pa.array(["N"] * count),
            "type": pa.array([effect.type for _, effect in effects], pa.int16()),
            "effect": pa.array([effect.data for _, effect in effects], pa.binary()),
        }
    )


def test_effects_of_each_moment_are_read_and_added_up_by_the_columns_of_then() -> None:
    moments = {
        5: table(GONE),
        15: table(GONE, QTY),
        25: table(QTY, former=LATER.former),
        35: LATER,
    }
    rows: dict[int, list[tuple[Cell, ...]]] = {
        5: [("a", 1), ("b", None)],
        15: [("c", 2, "1.50"), ("d", None, None)],
        25: [("e", "2.00"), ("f", "1.50")],
        35: [("g", None, None), ("h", "1.50", "x")],
    }
    made = [(p, EffectBuilder(moments[p]).insert(row)) for p in rows for row in rows[p]]
    made.append((15, EffectBuilder(moments[15]).update(("c", 2, "1.50"), ("c", 3, "1.5"))))
    made.append((25, EffectBuilder(moments[25]).update(("e", "2.00"), ("e", "1.50"))))
    batch = pa.Table.from_batches(list(log_decoder(HELD.table)(logged(*made)))).sort_by("ordinal").combine_chunks()
    [decoded] = batch.to_batches()
    # An insert of before a column has its initial value, which is what the row has from then on.
    assert cells_in(HELD, decoded)[:8] == [
        ("a", "1.50", None, 1),
        ("b", "1.50", None, None),
        ("c", "1.50", None, 2),
        ("d", None, None, None),
        ("e", "2.00", None, None),
        ("f", "1.50", None, None),
        ("g", None, None, None),
        ("h", "1.50", "x", None),
    ]
    types = pa.array([KINDS[kind] for kind in decoded.column("kind").to_pylist()])
    given = types, decoded.column("changed"), decoded.column("position")
    found = effect_sum(ColumnEncoder(HELD.table), decoded, *given, HELD.ends)
    total = sum(int.from_bytes(effect.hash, "big") for _, effect in made)
    assert (found.count, found.total) == (len(made), total % SUM_MODULUS)
    assert {effect.type for _, effect in made} == {INSERT, UPDATE}
    # Its field counts where it was given, also when it is the initial value.
    assert made[-1][1].hash == EffectEncoder(LATER).effect_hash(UPDATE, ["e", "1.50", None], ["qty"])


def test_an_effect_names_no_column_that_its_table_never_had() -> None:
    effect = change_pb2.Effect(table="t", type=change_pb2.EFFECT_TYPE_UPDATE, columns=["qty"])
    with pytest.raises(ValueError, match="t can't be read"):
        list(log_decoder(table(GONE))(logged((5, type("Made", (), {"type": 2, "data": effect.SerializeToString()})))))


def manifest(files: FileTable) -> Manifest:
    base = Base((Bucket(3, "a"),), (File("base/x", 3, 10, "a", 1, 9),))
    earlier = (EarlierBase(19, Base((Bucket(1, "c"),), (File("base/earlier", 1, 9, "c", 0, 0),))),)
    ended = EndedRegistration(7, 9, files, base, 8, earlier)
    of_table = TableFiles(7, files, base=base, ended=(ended,), earlier=earlier)
    return Manifest("R", "db", "E", 0, 50, 9, "Q", {"t": of_table}, (FormerTable(files, 40),), 4)


def test_a_manifest_tells_what_columns_were_without_postgres() -> None:
    nan = Column("nan", Kind.DOUBLE, "float8", initial=(float("nan"),), added_position=40)
    words = Column("words", Kind.ARRAY, "text[]", Kind.STRING, initial=(("a", None),), added_position=40)
    former = (FormerColumn(GONE, 20), FormerColumn(Column("old", Kind.BOOL, "boolean"), 30, "old~2"))
    now = Table("t", (ID, QTY, TAG, nan, words), ("id",), 7, renamed="called", former=former)
    made = manifest(file_table(now, file_table(table(GONE)).ever))
    content = json.loads(json.dumps(to_json(made)))
    assert content["format"] == 3
    read = from_json(content)
    assert to_json(read) == content
    assert read.ddl_version == 4
    found = read.tables["t"]
    assert found.ended is not None
    for columns in (found.columns, found.ended[0].columns, read.former[0].columns):
        assert repr(columns.table) == repr(now)
        assert columns.table.former == former
        assert columns.table.sql_name == "called"
        assert names(columns.with_former()) == ["id", "qty", "tag", "nan", "words", "gone", "old"]
    assert found.earlier == found.ended[0].earlier == made.tables["t"].earlier
    assert read.paths == {"base/x", "base/earlier"}
    told = {one["name"]: one for one in content["tables"]["t"]["columns"]}
    assert (told["qty"]["initial_text"], told["qty"]["added_position"], told["tag"]["sql_name"]) == (
        "1.50",
        10,
        "label",
    )
    assert told["tag"]["initial_text"] is None
    assert [one.get("dropped_position") for one in content["tables"]["t"]["gone"]] == [20, 30]


def test_a_manifest_without_any_change_is_one_that_earlier_releases_read() -> None:
    files = file_table(table(GONE))
    ended = EndedRegistration(7, 9, files)
    made = Manifest("R", "db", "E", 0, 50, 9, "Q", {"t": TableFiles(7, files, ended=(ended,))})
    assert to_json(made)["format"] == 2
    assert from_json(to_json(made)) == made


@pytest.mark.parametrize("part", ["columns", "ended", "former"])
def test_a_manifest_with_any_change_is_none_that_earlier_releases_read(part: str) -> None:
    """They would take what a file lacks for NULL."""
    plain, grown = file_table(table(GONE)), file_table(table(QTY))
    ended = EndedRegistration(7, 9, grown if part == "ended" else plain)
    of_table = TableFiles(7, grown if part == "columns" else plain, ended=(ended,))
    former = (FormerTable(grown if part == "former" else plain, 40),)
    assert to_json(Manifest("R", "db", "E", 0, 50, 9, "Q", {"t": of_table}, former))["format"] == 3
