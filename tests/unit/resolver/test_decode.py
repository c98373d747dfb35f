"""Payloads to batches: every value kind, every refusal."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from google.protobuf import struct_pb2

from anabranch.merge import MutationType
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2
from anabranch.values import Column, Kind, Table
from anabranch.values.table import FormerColumn
from anabranch_conflict_resolver.batch.decode import Decoded, Decoder

BATCH_ID = "01HZY0000000000000000000AA"
UUID = "0b4f5c5e-4a57-4c5e-9a6e-000000000001"
TABLE = Table(
    "t",
    (
        Column("id", Kind.UUID, "uuid", not_null=True),
        Column("n", Kind.INT64, "bigint", policy="counter"),
        Column("s", Kind.STRING, "text"),
        Column("tags", Kind.ARRAY, "text[]", Kind.STRING),
        Column("g", Kind.INT64, "bigint", generated=True),
    ),
    ("id",),
    7,
)
PAIR = Table("p", (Column("a", Kind.STRING, "text"), Column("b", Kind.INT64, "bigint")), ("b", "a"), 8)
Value = value_pb2.Value
NULL = Value(null_value=struct_pb2.NULL_VALUE)


@dataclasses.dataclass
class Tables:
    """As much of a database as is asked for."""

    tables: dict[str, Table]
    gone: frozenset[str] = frozenset()


def decode(*mutations: batch_pb2.DbMutation, batch_id: str = BATCH_ID) -> Decoded:
    decoder = Decoder(Tables({"t": TABLE, "p": PAIR}))  # type: ignore[arg-type]
    return decoder.decode(batch_id, batch_pb2.DbMutationBatch(id=batch_id, mutations=mutations).SerializeToString())


def mutation(kind: int, columns: list[str], *rows: list[value_pb2.Value], table: str = "t") -> batch_pb2.DbMutation:
    made = batch_pb2.DbMutation(table=table, type=batch_pb2.MutationType.ValueType(kind), columns=columns)
    for row in rows:
        made.rows.add(values=row)
    return made


def text(content: str) -> value_pb2.Value:
    return Value(string_value=content)


def test_rows_are_read_with_their_keys_and_what_they_give() -> None:
    tags = Value()
    tags.array_value.elements.extend([text("a"), NULL])
    decoded = decode(
        mutation(1, ["s", "id", "tags"], [text("x"), Value(uuid_value=UUID.upper()), tags]),
        mutation(2, ["id", "s", "n"], [Value(uuid_value=UUID), Value(), NULL]),
        mutation(3, ["id"], [Value(uuid_value=UUID[:-1] + "2")]),
    )
    assert decoded.refusal is None
    assert [m.type for m in decoded.mutations] == [MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE]
    [inserted], [updated], [deleted] = (m.rows for m in decoded.mutations)
    assert (inserted.key, inserted.values) == (UUID, {"s": "x", "id": UUID, "tags": ("a", None)})
    assert (updated.key, updated.values) == (UUID, {"n": None})
    assert deleted.values == {}
    assert decoded.keys == {("t", UUID): (UUID,), ("t", UUID[:-1] + "2"): (UUID[:-1] + "2",)}
    assert (decoded.twice, decoded.expects_rows) == (True, True)


def test_a_key_of_several_columns_stands_in_the_keys_order() -> None:
    decoded = decode(mutation(1, ["a", "b"], [text("x"), Value(int64_value=7)], table="p"))
    assert decoded.keys == {("p", '["7","x"]'): (7, "x")}
    assert (decoded.twice, decoded.expects_rows) == (False, False)


def test_a_counters_value_before_comes_from_the_undo() -> None:
    made = mutation(2, ["id", "n", "s"], [Value(uuid_value=UUID), Value(int64_value=5), text("x")])
    made.undo.columns.extend(["s", "n"])
    made.undo.rows.add(values=[text("old"), Value(int64_value=3)])
    [change] = decode(made).mutations[0].rows
    assert change.before == {"n": 3}


KEY = Value(uuid_value=UUID)


@pytest.mark.parametrize(
    ("reason", "made"),
    [
        ("UNKNOWN_TABLE", mutation(1, ["id"], [KEY], table="nowhere")),
        ("UNKNOWN_COLUMN", mutation(1, ["id", "zz"], [KEY, KEY])),
        ("UNKNOWN_COLUMN", mutation(1, ["id", "id"], [KEY, KEY])),
        ("INCOMPLETE_KEY", mutation(1, ["s"], [text("x")])),
        ("INCOMPLETE_KEY", mutation(1, ["id"], [NULL])),
        ("INCOMPLETE_KEY", mutation(1, ["id"], [Value()])),
        ("INVALID_COLUMNS", mutation(3, ["id", "s"], [KEY, text("x")])),
        ("INVALID_VALUE", mutation(1, ["id", "n"], [KEY, text("5")])),
        ("INVALID_VALUE", mutation(1, ["id", "n"], [KEY])),
        ("INVALID_VALUE", mutation(1, ["id"], [Value(uuid_value="{" + UUID + "}")])),
        ("NUL_IN_TEXT", mutation(1, ["id", "s"], [KEY, text("a\0")])),
        ("GENERATED_COLUMN", mutation(1, ["id", "g"], [KEY, Value(int64_value=1)])),
        ("GENERATED_COLUMN", mutation(1, ["id", "g"], [KEY, NULL])),
        ("EMPTY", mutation(1, ["id"])),
        ("MALFORMED", mutation(0, ["id"], [KEY])),
    ],
)
def test_what_can_not_be_is_refused_with_its_reason_and_place(reason: str, made: batch_pb2.DbMutation) -> None:
    good = mutation(1, ["id"], [Value(uuid_value=UUID[:-1] + "9")])
    refusal = decode(good, made).refusal
    assert refusal is not None
    assert errors_pb2.Reason.Name(errors_pb2.Reason.ValueType(refusal.reason)) == f"REASON_{reason}"
    assert (refusal.mutation, refusal.table) == (1, made.table)
    assert "\0" not in refusal.message


def test_a_generated_column_that_is_not_given_is_no_error() -> None:
    decoded = decode(mutation(1, ["id", "g"], [KEY, Value()]))
    assert decoded.refusal is None
    assert decoded.mutations[0].rows[0].values == {"id": UUID}


def test_bytes_that_are_no_batch_and_ids_that_are_none() -> None:
    decoder = Decoder(Tables({}))  # type: ignore[arg-type]
    refusals: list[Any] = [
        decoder.decode(BATCH_ID, b"\xff\xff").refusal,
        decoder.decode("not an id", b"").refusal,
        decoder.decode(BATCH_ID, b"").refusal,
    ]
    assert [r.reason for r in refusals] == [
        errors_pb2.REASON_MALFORMED,
        errors_pb2.REASON_INVALID_ID,
        errors_pb2.REASON_EMPTY,
    ]


ALTERED = Table(
    "job",
    (
        Column("id", Kind.STRING, "text", not_null=True),
        Column("title", Kind.STRING, "text", renamed="subject"),
        Column("a", Kind.STRING, "text", renamed="b"),
        Column("b", Kind.STRING, "text", renamed="a"),
        Column("minutes~3", Kind.DECIMAL, "numeric(6,2)", renamed="minutes"),
        Column("colour~2", Kind.STRING, "text", renamed="colour"),
    ),
    ("id",),
    9,
    renamed="task",
    former=(
        FormerColumn(Column("minutes", Kind.INT64, "integer"), 11, "minutes~2"),
        FormerColumn(Column("minutes~2", Kind.STRING, "text"), 12, "minutes~3"),
        FormerColumn(Column("colour", Kind.INT64, "bigint"), 10),
    ),
)


def decode_late(kind: int, columns: list[str], *rows: list[value_pb2.Value], table: str = "job") -> Decoded:
    made = batch_pb2.DbMutationBatch(id=BATCH_ID, mutations=[mutation(kind, columns, *rows, table=table)])
    return Decoder(Tables({"job": ALTERED})).decode(BATCH_ID, made.SerializeToString())  # type: ignore[arg-type]


def test_identities_find_renamed_columns_and_tables() -> None:
    decoded = decode_late(2, ["id", "title", "a", "b"], [text("1"), text("t"), text("A"), text("B")])
    [made] = decoded.mutations
    assert (made.table, made.rows[0].values) == ("job", {"title": "t", "a": "A", "b": "B"})


def test_a_name_that_is_no_identity_is_the_one_in_sql() -> None:
    decoded = decode_late(2, ["id", "subject"], [text("1"), text("t")], table="task")
    [made] = decoded.mutations
    assert (made.table, made.rows[0].values) == ("job", {"title": "t"})
    assert list(decoded.keys) == [("job", "1")]


def test_a_table_that_is_gone_is_none_that_has_its_name() -> None:
    made = batch_pb2.DbMutationBatch(id=BATCH_ID, mutations=[mutation(2, ["id"], [text("1")], table="task")])
    decoder = Decoder(Tables({"job": ALTERED}, gone=frozenset({"task"})))  # type: ignore[arg-type]
    refusal = decoder.decode(BATCH_ID, made.SerializeToString()).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.table) == (errors_pb2.REASON_UNKNOWN_TABLE, "task")


def test_a_value_for_a_gone_column_is_taken_out_and_kept() -> None:
    decoded = decode_late(2, ["id", "title", "colour"], [text("1"), text("t"), Value(int64_value=7)])
    assert decoded.mutations[0].rows[0].values == {"title": "t"}
    assert [(lost.key, lost.former.column.name, lost.value) for lost in decoded.lost] == [("1", "colour", 7)]
    assert not decoded.emptied


def test_an_update_of_a_gone_column_alone_is_emptied_and_an_insert_is_not() -> None:
    decoded = decode_late(2, ["id", "colour"], [text("1"), NULL])
    assert decoded.emptied == {0: ("colour",)}
    assert [lost.value for lost in decoded.lost] == [None]
    inserted = decode_late(1, ["id", "colour"], [text("1"), Value(int64_value=1)], [text("2"), NULL])
    assert not inserted.emptied
    assert [change.values for change in inserted.mutations[0].rows] == [{"id": "1"}, {"id": "2"}]
    assert [lost.key for lost in inserted.lost] == ["1"], "NULL is what a row has that knows nothing of the column"


def test_a_value_for_a_retyped_column_waits_to_be_cast_by_every_step() -> None:
    decoded = decode_late(2, ["minutes", "id"], [Value(int64_value=45), text("1")], [NULL, text("2")])
    assert [change.values for change in decoded.mutations[0].rows] == [{}, {}]
    assert [(one.cell, [way.name for way in one.ways]) for one in decoded.uncast] == [
        (45, ["minutes~2", "minutes~3"]),
        (None, ["minutes~2", "minutes~3"]),
    ]
    assert decoded.uncast[0].values is decoded.mutations[0].rows[0].values
    assert not decoded.emptied


@pytest.mark.parametrize("twice", ["minutes~3", "minutes~2", "minutes"])
def test_a_column_is_not_given_by_two_of_its_identities(twice: str) -> None:
    value = {"minutes": Value(int64_value=1), "minutes~2": text("1"), "minutes~3": Value(decimal_value="1")}
    other = "minutes~3" if twice == "minutes" else "minutes"
    decoded = decode_late(2, ["id", twice, other], [text("1"), value[twice], value[other]])
    assert decoded.refusal is not None
    assert decoded.refusal.reason == errors_pb2.REASON_UNKNOWN_COLUMN


def test_a_value_of_a_former_column_is_checked_as_that_column_was() -> None:
    decoded = decode_late(2, ["id", "colour"], [text("1"), text("red")])
    assert decoded.refusal is not None
    assert decoded.refusal.reason == errors_pb2.REASON_INVALID_VALUE
