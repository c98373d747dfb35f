"""Work by columns (effects decoded, rows and effects hashed, histories filled) against the same work value by value."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from anabranch.columnar.encode import ColumnEncoder, cells_of
from anabranch.columnar.file_columns import EXACT_TEXTS, KINDS, OWN, file_table
from anabranch.columnar.proof import NAME_SEPARATOR, effect_sum, row_sum
from anabranch.testkit.cell_strategies import cells
from anabranch.v1 import change_pb2, value_pb2
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.canonical import SUM_MODULUS, RowEncoder
from anabranch.values.cells import Literal
from anabranch.values.parquet import file_codecs
from anabranch.wire.effects import DELETE, INSERT, NONE, UPDATE, Effect, EffectBuilder
from anabranch_compactor import history
from anabranch_compactor.decode import log_decoder
from anabranch_compactor.effect_columns import EffectDecoder, MalformedEffectError
from anabranch_compactor.files.parquet_files import write_files
from anabranch_compactor.prove import file_sum
from anabranch_compactor.shape import OLD, Shape
from anabranch_compactor.spark.packing import Route, pack, unpacked

COLUMNS = (
    Column("id", Kind.STRING, "text"),
    Column("part", Kind.INT64, "bigint"),
    Column("flag", Kind.BOOL, "boolean"),
    Column("number", Kind.INT64, "bigint"),
    Column("ratio", Kind.DOUBLE, "double precision"),
    Column("raw", Kind.BYTES, "bytea"),
    Column("free", Kind.DECIMAL, "numeric"),
    Column("price", Kind.DECIMAL, "numeric(38,10)"),
    Column("wall", Kind.TIMESTAMP, "timestamp without time zone"),
    Column("moment", Kind.TIMESTAMP, "timestamp with time zone"),
    Column("day", Kind.DATE, "date"),
    Column("clock", Kind.TIME, "time without time zone"),
    Column("doc", Kind.JSON, "json"),
    Column("uid", Kind.UUID, "uuid"),
    Column("words", Kind.ARRAY, "text[]", Kind.STRING),
    Column("numbers", Kind.ARRAY, "bigint[]", Kind.INT64),
    Column("ä span", Kind.LITERAL, "interval"),
)
TABLE = Table("kinds", COLUMNS, ("part", "id"), 7)
INITIAL: dict[str, Cell] = {
    "flag": False, "number": 3, "ratio": float("nan"), "raw": b"", "price": "NaN",
    "wall": Literal("294270-06-01 00:00:00"), "moment": None, "words": ("a", None), "ä span": "1 mon",
}  # fmt: skip
GROWN = Table(
    "kinds",
    tuple(replace(one, initial=(INITIAL[one.name],)) if one.name in INITIAL else one for one in COLUMNS),
    TABLE.key_columns,
    7,
)
"""The same table, with columns that were added to it."""
TABLES = st.sampled_from([TABLE, GROWN])
LATE = Literal("294270-06-01 00:00:00")
PRICES = st.none() | st.just("NaN") | st.integers(-(10**30), 10**30).map(lambda n: _price(n))


def _price(number: int) -> str:
    digits = f"{abs(number):011}"
    return f"{'-' if number < 0 else ''}{digits[:-10]}.{digits[-10:]}"


def a_cell(column: Column) -> st.SearchStrategy[Cell]:
    if column.name in TABLE.key_columns:
        return st.sampled_from(["", "a", "é"]) if column.kind is Kind.STRING else st.integers(-3, 2**63 - 1)
    if column.name == "price":
        return PRICES
    if column.kind is Kind.TIMESTAMP:
        return cells(column.kind) | st.just(LATE)
    found = cells(column.kind, column.element_kind)
    return found | st.just(INITIAL[column.name]) if column.name in INITIAL else found


Made = tuple[tuple[Effect, dict[str, Cell]], bool]
"""An effect with the cells that it gives, and whether it is written in another way."""
A_ROW: st.SearchStrategy[tuple[Cell, ...]] = st.tuples(*(a_cell(column) for column in COLUMNS))


@st.composite
def an_effect(draw: st.DrawFn, table: Table = TABLE) -> tuple[Effect, dict[str, Cell]]:
    """An effect, and the cells that it gives."""
    builder = EffectBuilder(table)
    row = draw(A_ROW)
    match draw(st.sampled_from([INSERT, UPDATE, UPDATE, DELETE, NONE])):
        case int() as kind if kind == INSERT:
            return builder.insert(row), dict(zip(TABLE.column_names, row, strict=True))
        case kind if kind == UPDATE:
            after = list(row)
            for i in draw(st.sets(st.integers(0, len(COLUMNS) - 1), max_size=4)):
                if COLUMNS[i].name not in TABLE.key_columns:
                    after[i] = draw(a_cell(COLUMNS[i]))
            effect = builder.update(row, after)
            given = (*TABLE.key_columns, *effect.changed)
            return effect, {name: after[TABLE.index[name]] for name in given}
        case kind:
            key = [row[i] for i in TABLE.key_index]
            effect = builder.delete(row) if kind == DELETE else builder.none(key)
            return effect, dict(zip(TABLE.key_columns, key, strict=True))


def reordered(effect: Effect) -> bytes:
    """The same effect as nobody here would write it: values first, and a field of a later release."""
    message = change_pb2.Effect.FromString(effect.data)
    head = change_pb2.Effect(table=message.table, type=message.type, columns=message.columns)
    values = change_pb2.Effect(values=message.values)
    return values.SerializeToString() + head.SerializeToString() + b"\xfa\x01\x00"


def log_rows(effects: list[bytes], types: list[int]) -> pa.RecordBatch:
    count = len(effects)
    return pa.RecordBatch.from_pydict(
        {
            "position": pa.array(range(count), pa.int64()),
            "batch_id": pa.array(["B"] * count),
            "ordinal": pa.array(range(count), pa.int32()),
            "node_id": pa.array(["N"] * count),
            "type": pa.array(types, pa.int16()),
            "effect": pa.array(effects, pa.binary()),
        }
    )


def decoded(effects: list[bytes], types: list[int]) -> pa.RecordBatch:
    batches = list(log_decoder(TABLE)(log_rows(effects, types)))
    return pa.Table.from_batches(batches).sort_by("position").combine_chunks().to_batches()[0]


def cells_at(batch: pa.RecordBatch, row: int) -> dict[str, Cell]:
    found = {}
    for i, codec in enumerate(file_codecs(COLUMNS)):
        exact = batch.column(f"x{i}").to_pylist() if f"x{i}" in batch.schema.names else None
        found[COLUMNS[i].name] = codec.read(batch.column(f"c{i}"), exact)[row]
    return found


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_effects_by_columns_are_those_of_the_contracts_class(drawn: st.DataObject) -> None:
    table = drawn.draw(TABLES)
    made: list[Made] = drawn.draw(st.lists(st.tuples(an_effect(table), st.booleans()), min_size=1, max_size=12))
    data = [reordered(effect) if odd else effect.data for (effect, _), odd in made]
    batch = decoded(data, [effect.type for (effect, _), _ in made])
    assert batch.num_rows == len(made)
    for row, ((effect, given_cells), _) in enumerate(made):
        want = {**dict.fromkeys(TABLE.column_names), **given_cells}
        assert repr(cells_at(batch, row)) == repr(want)
        assert batch.column("changed")[row].as_py() == NAME_SEPARATOR.join(effect.changed)
    hashes = sum(int.from_bytes(effect.hash, "big") for (effect, _), _ in made)
    types = pa.array([KINDS[kind] for kind in batch.column("kind").to_pylist()])
    found = effect_sum(ColumnEncoder(table), batch, types, batch.column("changed"))
    assert (found.count, found.total) == (len(made), hashes % SUM_MODULUS)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(TABLES, st.lists(A_ROW, min_size=1, max_size=8))
def test_row_hashes_by_columns_are_those_of_the_rows(table: Table, rows: list[tuple[Cell, ...]]) -> None:
    builder, encoder = EffectBuilder(table), RowEncoder(table)
    batch = decoded([builder.insert(row).data for row in rows], [INSERT] * len(rows))
    found = row_sum(ColumnEncoder(table), batch)
    assert (found.count, found.total) == (len(rows), sum(map(encoder.hash, rows)) % SUM_MODULUS)


def test_files_that_are_older_than_columns_have_their_initial_values() -> None:
    old = file_table(Table("kinds", tuple(c for c in GROWN.columns if not c.initial), TABLE.key_columns, 7))
    rows = [tuple(None for _ in old.columns) for _ in range(2)]
    codecs = file_codecs(one.column for one in old.columns)
    arrays = [codec.write(cells)[0] for codec, cells in zip(codecs, zip(*rows, strict=True), strict=True)]
    own = pa.StructArray.from_arrays([pa.nulls(2, EXACT_TEXTS)], names=["exact"])
    batch = pa.RecordBatch.from_arrays([*arrays, own], names=[*old.names, OWN])
    grown = file_table(GROWN, old.columns)
    found = row_sum(ColumnEncoder(GROWN), cells_of(grown, batch, range(len(COLUMNS))))
    expected = 2 * RowEncoder(old.table).hash(rows[0]) % SUM_MODULUS
    assert (found.count, found.total) == (2, expected)
    shown = cells_at(cells_of(grown, batch, range(len(COLUMNS))), 1)
    assert repr(shown) == repr({c.name: INITIAL.get(c.name) for c in COLUMNS})


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\x0a\x05kinds",
        change_pb2.Effect(table="kinds", type=change_pb2.EFFECT_TYPE_INSERT, columns=["id"]).SerializeToString(),
        change_pb2.Effect(
            table="kinds", type=change_pb2.EFFECT_TYPE_UPDATE, columns=["gone"], values=[value_pb2.Value(int64_value=1)]
        ),
        change_pb2.Effect(
            table="kinds", type=change_pb2.EFFECT_TYPE_UPDATE, columns=["flag"], values=[value_pb2.Value(int64_value=1)]
        ),
        change_pb2.Effect(
            table="kinds", type=change_pb2.EFFECT_TYPE_UPDATE, columns=["flag"], values=[value_pb2.Value()]
        ),
        change_pb2.Effect(
            table="kinds",
            type=change_pb2.EFFECT_TYPE_UPDATE,
            columns=["raw"],
            values=[value_pb2.Value(bytes_value=b"abc")],
        ),
    ],
)
def test_what_is_no_effect_is_an_error(broken: Any) -> None:
    if isinstance(broken, bytes):
        data = broken
    else:
        data = broken.SerializeToString()
        data = data[:-1] if broken.columns == ["raw"] else data
    good = EffectBuilder(TABLE).none([1, "a"]).data
    effects = pa.array([good, data, good], pa.binary())
    if data in (b"", b"\x0a\x05kinds"):
        # Nothing is given: two forms without a cell.
        assert sum(len(form.rows) for form in EffectDecoder(TABLE).decode(effects)) == 3
        return
    with pytest.raises(MalformedEffectError, match="kinds"):
        list(EffectDecoder(TABLE).decode(effects))


@pytest.mark.parametrize("fault", [MemoryError, TypeError, AttributeError])
def test_a_fault_of_the_program_or_the_machine_is_not_the_effects(fault: type[Exception]) -> None:
    effect = change_pb2.Effect(
        table="kinds", type=change_pb2.EFFECT_TYPE_UPDATE, columns=["flag"], values=[value_pb2.Value(int64_value=1)]
    )
    decoder = EffectDecoder(TABLE)

    def fail(_: object) -> Cell:
        raise fault

    decoder._readers = [fail for _ in TABLE.columns]
    with pytest.raises(fault):
        list(decoder.decode(pa.array([effect.SerializeToString()], pa.binary())))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(an_effect(), min_size=1, max_size=12))
def test_a_file_that_is_read_again_adds_up_to_its_effects(made: list[tuple[Effect, dict[str, Cell]]]) -> None:
    shape, encoder = Shape(file_table(TABLE)), ColumnEncoder(TABLE)
    batch = decoded([effect.data for effect, _ in made], [effect.type for effect, _ in made])
    slices = history.changes_of(shape, history.filled(shape, history.in_order(shape, batch), encoder))
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(fs.LocalFileSystem(), folder, "part", shape.changes_schema, slices)
        assert [file.rows for file in files] == [len(made)]
        path = Path(folder) / files[0].name
        assert path.stat().st_size == files[0].bytes
        found = file_sum("changes", shape, pq.ParquetFile(path))
    hashes = sum(int.from_bytes(effect.hash, "big") for effect, _ in made)
    assert (found.sum.count, found.sum.total) == (len(made), hashes % SUM_MODULUS)
    assert (found.first_position, found.last_position) == (0, len(made) - 1)


NARROW = Table("todo", (Column("id", Kind.STRING, "text"), Column("a", Kind.INT64, "bigint"),
                        Column("b", Kind.STRING, "text")), ("id",), 1)  # fmt: skip
A_STEP = st.tuples(st.sampled_from("xyz"), st.sampled_from(["put", "a", "b", "delete", "none"]), st.integers(0, 9))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sets(st.sampled_from("xyz")), st.lists(A_STEP, min_size=1, max_size=20), st.booleans())
def test_histories_by_columns_are_those_of_one_change_after_the_other(
    old: set[str], steps: list[tuple[str, str, int]], small: bool
) -> None:
    shape, builder = Shape(file_table(NARROW)), EffectBuilder(NARROW)
    known: dict[str, list[Cell] | None] = {key: [key, -1, "old"] for key in old}
    rows: dict[str, list[Any]] = {name: [] for name in ("position", "kind", "changed", "c0", "c1", "c2")}
    want = []

    def add(position: int, kind: int, changed: tuple[str, ...], values: list[Cell]) -> None:
        for name, value in zip(rows, (position, kind, NAME_SEPARATOR.join(changed), *values), strict=True):
            rows[name].append(value)

    for key in sorted(old):
        add(-1, OLD, (), [key, -1, "old"])
    for at, (key, step, n) in enumerate(steps):
        there = known.get(key)
        if step in ("a", "b") and there is not None:
            after = [key, n if step == "a" else there[1], str(n) if step == "b" else there[2]]
            effect = builder.update(there, after)
            changed = effect.changed
            given_cells = [key, *(after[i] if NARROW.columns[i].name in changed else None for i in (1, 2))]
            add(at, effect.type, changed, given_cells)
            before = [there[i] if NARROW.columns[i].name in changed else None for i in (1, 2)]
            want.append((key, at, after[1], after[2], *before, True))
            known[key] = after
        elif step == "put" and there is None:
            add(at, INSERT, (), [key, n, str(n)])
            want.append((key, at, n, str(n), None, None, True))
            known[key] = [key, n, str(n)]
        elif step == "delete" and there is not None:
            add(at, DELETE, (), [key, None, None])
            want.append((key, at, None, None, there[1], there[2], True))
            known[key] = None
        else:
            add(at, NONE, (), [key, None, None])
            values = there[1:] if there is not None else [None, None]
            want.append((key, at, *values, None, None, key in known))
    acted = {at for at, kind in zip(rows["position"], rows["kind"], strict=True) if kind not in (OLD, NONE)}
    count = len(rows["position"])
    batch = pa.RecordBatch.from_pydict(
        {
            "position": pa.array(rows["position"], pa.int64()),
            "batch": pa.array(["B"] * count),
            "ordinal": pa.array([0] * count, pa.int32()),
            "node": pa.array(["N"] * count),
            "kind": pa.array(rows["kind"], pa.int16()),
            "changed": pa.array(rows["changed"], pa.string()),
            "c0": pa.array(rows["c0"], pa.string()),
            "c1": pa.array(rows["c1"], pa.int64()),
            "c2": pa.array(rows["c2"], pa.string()),
        }
    )
    encoder = ColumnEncoder(NARROW)
    packages = list(pack([(Route(NARROW, 5, 4), batch)]))
    found, left, replaced = [], {}, set()
    most = history.SLICE_ROWS
    history.SLICE_ROWS = 2 if small else most
    try:
        for number in range(5, 9):
            part = unpacked((one for one in packages if one.column("part")[0].as_py() == number), number)
            if part is not None:
                filled = history.filled(shape, history.in_order(shape, part), encoder)
                for table in history.changes_of(shape, filled):
                    found += table.to_pylist()
                for row in history.rows_left(shape, filled, history.left(filled)).to_pylist():
                    left[row["c0"]] = None if row["deleted"] else [row["c0"], row["c1"], row["c2"]]
                    assert row["position"] == max(at for at in acted if steps[at][0] == row["c0"])
                replaced |= set(
                    filled.rows.take(pa.array(history.replaced(filled, history.left(filled)))).column("c0").to_pylist()
                )
    finally:
        history.SLICE_ROWS = most
    told = [
        (r["id"], r["anabranch"]["position"], r["a"], r["b"], r["anabranch"]["before"]["a"],
         r["anabranch"]["before"]["b"], r["anabranch"]["complete"])
        for r in found
    ]  # fmt: skip
    assert sorted(told) == sorted(want)
    touched = {steps[at][0] for at in acted}
    assert left == {key: known[key] for key in touched}
    assert replaced == touched & old
