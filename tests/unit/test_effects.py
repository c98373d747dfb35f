"""Effects are what protobuf serializes, hash as the canonical encoding says, and move table sums rightly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.testkit.cell_strategies import cells
from anabranch.v1 import change_pb2, value_pb2
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.canonical import SUM_MODULUS, table_sum
from anabranch.values.cells import Literal
from anabranch.values.effect_hashes import EffectEncoder
from anabranch.values.message_bytes import value_bytes, varint
from anabranch.values.messages import column_reader, column_writer
from anabranch.wire.effects import Effect, EffectBuilder

SHAPES: list[tuple[Kind, Kind | None]] = [(kind, None) for kind in Kind if kind is not Kind.ARRAY]
SHAPES += [(Kind.ARRAY, kind) for kind, _ in SHAPES]
ALL = Table(
    "ev\u00e9ry \U0001f600 kind",
    tuple(
        Column(f"{kind.name} {element.name if element else ''}" + "x" * (i * 10), kind, "any", element)
        for i, (kind, element) in enumerate(SHAPES)
    ),
    # The key's order is not the table's, and the key doesn't come first.
    (f"{Kind.UUID.name} " + "x" * (10 * SHAPES.index((Kind.UUID, None))), f"{Kind.INT64.name} " + "x" * 10),
)
NOTE = Table(
    "n",
    (Column("id", Kind.INT64, "bigint"), Column("f", Kind.DOUBLE, "float8"), Column("s", Kind.STRING, "text")),
    ("id",),
)
GROWN = Table(
    "n",
    (
        *NOTE.columns,
        Column("added", Kind.INT64, "bigint", initial=(5,)),
        Column("lacks", Kind.DOUBLE, "float8", initial=(None,)),
    ),
    ("id",),
)
rows = st.tuples(*(cells(kind, element) for kind, element in SHAPES)).map(list)


def official(table: Table, effect_type: int, row: list[Cell], columns: list[str]) -> bytes:
    effect = change_pb2.Effect(table=table.name, type=effect_type, columns=columns)  # type: ignore[arg-type]
    effect.values.extend(column_writer(table.by_name[name])(row[table.index[name]]) for name in columns)
    return effect.SerializeToString()


def hash_of(table: Table, row: list[Cell]) -> int:
    return EffectEncoder(table).hash(row)


def key_first(table: Table, columns: list[str]) -> list[str]:
    return [*table.key_columns, *(name for name in columns if name not in table.key_columns)]


@pytest.mark.slow
@given(rows)
def test_an_insert_gives_every_column_with_the_keys_first(row: list[Cell]) -> None:
    effect = EffectBuilder(ALL).insert(row)
    assert effect.data == official(ALL, 1, row, key_first(ALL, list(ALL.column_names)))
    assert effect.hash == EffectEncoder(ALL).effect_hash(1, row)
    assert (effect.type, effect.changed, effect.count_change) == (1, (), 1)
    assert effect.hash_change == hash_of(ALL, row)


@pytest.mark.slow
@given(rows, rows, st.sets(st.sampled_from(range(len(SHAPES)))))
def test_an_update_gives_the_key_and_what_differs(before: list[Cell], other: list[Cell], changes: set[int]) -> None:
    after = [other[i] if i in changes - set(ALL.key_index) else cell for i, cell in enumerate(before)]
    encoder = EffectEncoder(ALL)
    # Columns differ by the canonical encoding: it tells -0.0 from 0.0 and holds every NaN for one.
    old, new = encoder.fields(before), encoder.fields(after)
    differing = [name for i, name in enumerate(ALL.column_names) if old[i] != new[i]]
    effect = EffectBuilder(ALL).update(before, after)
    assert effect.changed == tuple(differing)
    if differing:
        given_columns = key_first(ALL, differing)
        assert effect.data == official(ALL, 2, after, given_columns)
        assert effect.hash == encoder.effect_hash(2, after, given_columns)
        assert effect.type == 2
    else:
        assert effect == EffectBuilder(ALL).none([before[i] for i in ALL.key_index])
    assert effect.count_change == 0
    assert (effect.hash_change - hash_of(ALL, after) + hash_of(ALL, before)) % SUM_MODULUS == 0


@pytest.mark.slow
@given(rows)
def test_a_delete_and_a_none_give_the_key(row: list[Cell]) -> None:
    key = list(ALL.key_columns)
    deleted = EffectBuilder(ALL).delete(row)
    assert deleted.data == official(ALL, 3, row, key)
    assert deleted.hash == EffectEncoder(ALL).effect_hash(3, row, key)
    assert (deleted.type, deleted.changed, deleted.count_change) == (3, (), -1)
    assert deleted.hash_change == -hash_of(ALL, row)
    nothing = EffectBuilder(ALL).none([row[i] for i in ALL.key_index])
    assert nothing == Effect(4, official(ALL, 4, row, key), (), EffectEncoder(ALL).effect_hash(4, row, key), 0, 0)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ([1, 0.0, "a"], [1, -0.0, "a"], ("f",)),
        ([1, float("nan"), "a"], [1, -float("nan"), "a"], ()),
        ([1, 1.5, "a"], [1, 1.5, None], ("s",)),
        ([1, None, None], [1, 0.0, ""], ("f", "s")),
        ([1, 1.0, "a"], [1, 1.0, "a"], ()),
    ],
)
def test_what_counts_as_changed(before: list[Cell], after: list[Cell], changed: tuple[str, ...]) -> None:
    assert EffectBuilder(NOTE).update(before, after).changed == changed


@pytest.mark.slow
@given(st.data())
def test_the_changes_of_effects_lead_to_the_tables_sum(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from([NOTE, GROWN]))
    builder = EffectBuilder(table)
    now: dict[int, list[Cell]] = {}
    count = total = 0
    for key in data.draw(st.lists(st.integers(0, 3), max_size=12)):
        row: list[Cell] = [key, data.draw(cells(Kind.DOUBLE)), data.draw(cells(Kind.STRING))]
        if table is GROWN:
            row += [data.draw(st.sampled_from([5, None, 6])), data.draw(st.sampled_from([None, 0.0]))]
        before = now.get(key)
        if before is None:
            effect = builder.insert(row)
        elif data.draw(st.booleans()):
            effect = builder.update(before, row)
        else:
            effect = builder.delete(before)
        if effect.type == change_pb2.EFFECT_TYPE_DELETE:
            del now[key]
        else:
            now[key] = row
        count, total = count + effect.count_change, total + effect.hash_change
    assert (count, total % SUM_MODULUS) == table_sum(EffectEncoder(table), now.values())


def test_an_update_names_what_it_gives_also_where_a_row_leaves_it_out() -> None:
    builder, encoder = EffectBuilder(GROWN), EffectEncoder(GROWN)
    old: list[Cell] = [1, 0.5, "a", 5, None]
    new: list[Cell] = [1, 0.5, "a", 6, 0.0]
    back: list[Cell] = [1, 0.5, "b", 5, None]
    assert hash_of(GROWN, old) == hash_of(NOTE, old[:3])
    for before, after in ((old, new), (new, back), (old, back)):
        effect = builder.update(before, after)
        assert effect.hash == encoder.effect_hash(2, after, effect.changed)
        assert effect.hash_change == hash_of(GROWN, after) - hash_of(GROWN, before)
        whole = builder.whole_update(before, after)
        assert whole.hash == encoder.effect_hash(2, after, whole.changed)
        assert whole.hash_change == effect.hash_change
        assert whole.changed == GROWN.column_names[1:]
    assert builder.update(new, back).changed == ("s", "added", "lacks")
    # The initial value, written, is an effect of its own: of another hash than one that writes nothing.
    assert encoder.effect_hash(2, back, ["s", "added"]) != encoder.effect_hash(2, back, ["s"])


def test_an_inserts_message_has_what_its_hash_leaves_out() -> None:
    row: list[Cell] = [1, 0.5, "a", 5, None]
    effect = EffectBuilder(GROWN).insert(row)
    assert effect.data == official(GROWN, 1, row, list(GROWN.column_names))
    assert (effect.hash, effect.hash_change) == EffectBuilder(NOTE).insert(row[:3])[3:6:2]


@given(
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(0, 63).map(lambda n: 2**n)
    | st.integers(1, 63).map(lambda n: 2**n - 1)
)
def test_varints_are_protobufs(number: int) -> None:
    number = min(number, 2**63 - 1)
    assert b"\x18" + varint(number) == value_pb2.Value(int64_value=number).SerializeToString()


@given(st.sampled_from(SHAPES), st.data())
def test_a_value_alone_is_what_protobuf_serializes(shape: tuple[Kind, Kind | None], data: st.DataObject) -> None:
    column = Column("c", shape[0], "any", shape[1])
    cell: Any = data.draw(cells(*shape))
    written = value_bytes(column)(cell)
    assert written == column_writer(column)(cell).SerializeToString()
    read = column_reader(column)(value_pb2.Value.FromString(written))
    assert value_bytes(column)(read) == written


@pytest.mark.parametrize(
    "size", [0, 1, 115, 116, 117, 118, 119, 120, 121, 125, 126, 127, 128, 255, 256, 16383, 16384, 70000]
)
def test_lengths_around_the_steps_of_a_varint(size: int) -> None:
    for kind, cell in ((Kind.STRING, "x" * size), (Kind.BYTES, b"x" * size), (Kind.TIMESTAMP, Literal("x" * size))):
        column = Column("c", kind, "any")
        assert value_bytes(column)(cell) == column_writer(column)(cell).SerializeToString()
        table = Table("t", (Column("id", Kind.INT64, "bigint"), column), ("id",))
        assert EffectBuilder(table).insert([1, cell]).data == official(table, 1, [1, cell], ["id", "c"])
    array = Column("c", Kind.ARRAY, "any", Kind.STRING)
    nested: Cell = (("x" * size, None), ("", "y" * size))
    assert value_bytes(array)(nested) == column_writer(array)(nested).SerializeToString()
