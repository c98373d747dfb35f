"""The canonical encoding against a second encoder, written here straight from its description.

``canonical_vectors.json`` holds what that second encoder makes, for other languages; run this file as a program to
write it anew. A cell is null or an object with one member: ``bool``; ``int64``, ``timestamp``, ``date``, ``time`` as
decimal text; ``double`` as the 16 hex digits of its bits; ``string``, ``decimal``, ``json``, ``uuid``, ``literal``;
``bytes`` as hex; ``array`` with its elements. ``initial``, where a table has it: the initial values of columns that
were added to it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.testkit.cell_strategies import cells
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.canonical import SUM_MODULUS, table_sum
from anabranch.values.cells import Literal
from anabranch.values.effect_hashes import EffectEncoder

VECTORS = Path(__file__).with_name("canonical_vectors.json")
TAGS = {
    "bool": 1,
    "int64": 2,
    "double": 3,
    "string": 4,
    "bytes": 5,
    "decimal": 6,
    "timestamp": 7,
    "date": 8,
    "time": 9,
    "json": 10,
    "uuid": 11,
    "array": 12,
    "literal": 13,
}
MEMBERS = {kind: kind.name.lower() for kind in Kind}


def text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return len(raw).to_bytes(4, "big") + raw


def value_bytes(cell: Any) -> bytes:
    if cell is None:
        return b"\x00"
    ((member, content),) = cell.items()
    tag = TAGS[member].to_bytes(1, "big")
    if member == "bool":
        return tag + (b"\x01" if content else b"\x00")
    if member in ("int64", "timestamp", "date", "time"):
        return tag + int(content).to_bytes(8, "big", signed=True)
    if member == "double":
        (number,) = struct.unpack(">d", bytes.fromhex(content))
        return tag + (bytes.fromhex("7ff8000000000000") if math.isnan(number) else bytes.fromhex(content))
    if member == "bytes":
        raw = bytes.fromhex(content)
        return tag + len(raw).to_bytes(4, "big") + raw
    if member == "array":
        return tag + len(content).to_bytes(4, "big") + b"".join(value_bytes(element) for element in content)
    return tag + text(content)


def key_bytes(table: str, key: list[str], columns: dict[str, Any]) -> bytes:
    encoded = text(table) + len(key).to_bytes(4, "big")
    for name in key:
        encoded += value_bytes(columns[name])
    return encoded


def row_bytes(
    table: str, key: list[str], columns: dict[str, Any], given: set[str], initial: dict[str, Any] | None = None
) -> bytes:
    """A row, or what follows an effect's type; ``initial``: of a row and of an INSERT."""
    encoded = key_bytes(table, key, columns)
    for name in sorted(given | set(key), key=lambda n: n.encode("utf-8")):
        value = value_bytes(columns[name])
        if name in key or name not in (initial or {}) or value != value_bytes((initial or {})[name]):
            encoded += text(name) + value
    return encoded


def digest(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def double(number: float) -> dict[str, str]:
    return {"double": struct.pack(">d", number).hex()}


GROWN: list[dict[str, Any]] = [
    {
        "table": "grown",
        "key": ["id"],
        "initial": {"lacks": None, "price": {"decimal": "0.00"}, "ratio": double(math.nan), "words": {"array": []}},
        "columns": {"id": {"int64": "1"}, "old": None, "lacks": lacks, "price": price, "ratio": ratio, "words": words},
    }
    for lacks, price, ratio, words in (
        # As the row was before the columns; where no column has its initial value; where some have it.
        (None, {"decimal": "0.00"}, {"double": "fff4000000000001"}, {"array": []}),
        ({"string": ""}, {"decimal": "0.0"}, None, None),
        ({"string": "a"}, None, double(math.nan), {"array": [None]}),
    )
]
"""Rows of a table to which four columns were added."""
CASES: list[dict[str, Any]] = [
    {"table": "t", "key": ["id"], "columns": {"id": {"string": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}}},
    {
        "table": "m\u00e9mbers \U0001f600",
        "key": ["room", "member"],
        "columns": {
            "member": {"string": "07"},
            "room": {"int64": "-1"},
            "Zed": {"string": ""},
            "a": None,
            "\u00e9": {"string": "e\u0301 \U0001f600"},
            "\uffff": {"string": "\uffff before \U00010000 in UTF-8, after it in UTF-16"},
            "\U00010000": {"string": 'q"q'},
        },
    },
    {
        "table": "limits",
        "key": ["id"],
        "columns": {
            "id": {"int64": str(2**53 + 1)},
            "yes": {"bool": True},
            "no": {"bool": False},
            "int_min": {"int64": str(-(2**63))},
            "int_max": {"int64": str(2**63 - 1)},
            "double_zero": double(0.0),
            "double_minus_zero": double(-0.0),
            "double_tiny": double(5e-324),
            "double_pi": double(math.pi),
            "double_infinity": double(math.inf),
            "double_nan": double(math.nan),
            "double_other_nan": {"double": "fff4000000000001"},
            "bytes_empty": {"bytes": ""},
            "bytes": {"bytes": "deadbeef00"},
            "long": {"string": "x" * 300},
            "decimal": {"decimal": "1234567890123456789012345678.0123456789"},
            "decimal_zeros": {"decimal": "1.10"},
            "decimal_nan": {"decimal": "NaN"},
            "ts_before": {"timestamp": "-1"},
            "ts_infinity": {"timestamp": str(2**63 - 1)},
            "ts_minus_infinity": {"timestamp": str(-(2**63))},
            "ts_far": {"literal": "294276-12-31 23:59:59.999999+00"},
            "date": {"date": "-141438"},
            "date_infinity": {"date": str(2**31 - 1)},
            "time_end": {"time": "86400000000"},
            "json_null": {"json": "null"},
            "json": {"json": '{"a": null, "n": 12345678901234567890}'},
            "uuid": {"uuid": "6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d"},
            "interval": {"literal": "1 mon"},
        },
    },
    {
        "table": "arrays",
        "key": ["id"],
        "columns": {
            "id": {"uuid": "6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d"},
            "empty": {"array": []},
            "none": None,
            "texts": {"array": [{"string": ""}, None, {"string": "NULL"}, {"string": "a,b"}]},
            "two": {"array": [{"array": [{"int64": "1"}, None]}, {"array": [{"int64": "2"}, {"int64": "3"}]}]},
            "bounds": {"literal": "[2:3]={1,2}"},
        },
    },
    *GROWN,
]
# The column's kind where its only cell doesn't tell.
KINDS = {
    "a": (Kind.INT64, None),
    "ts_far": (Kind.TIMESTAMP, None),
    "empty": (Kind.ARRAY, Kind.DATE),
    "none": (Kind.ARRAY, Kind.STRING),
    "old": (Kind.INT64, None),
    "lacks": (Kind.STRING, None),
    "price": (Kind.DECIMAL, None),
    "ratio": (Kind.DOUBLE, None),
    "words": (Kind.ARRAY, Kind.STRING),
    "texts": (Kind.ARRAY, Kind.STRING),
    "two": (Kind.ARRAY, Kind.INT64),
    "bounds": (Kind.ARRAY, Kind.INT64),
}


def vectors() -> list[dict[str, Any]]:
    made = []
    for case in CASES:
        table, key, columns = case["table"], case["key"], case["columns"]
        initial = case.get("initial", {})
        encoded = row_bytes(table, key, columns, set(columns), initial)
        first = sorted(columns)[0]
        effects = [
            {
                "type": number,
                "given": given,
                "hash": digest(
                    bytes([number]) + row_bytes(table, key, columns, set(given), initial if number == 1 else {})
                ),
            }
            for number, given in ((1, list(columns)), (2, [*key, first]), (3, key), (4, key))
        ]
        hashes = {"hash": digest(encoded), "key_hash": digest(key_bytes(table, key, columns))}
        made.append({**case, "encoding": encoded.hex(), **hashes, "effects": effects})
    return made


def to_cell(cell: Any) -> Cell:
    if cell is None:
        return None
    ((member, content),) = cell.items()
    match member:
        case "int64" | "timestamp" | "date" | "time":
            return int(content)
        case "double":
            number: float = struct.unpack(">d", bytes.fromhex(content))[0]
            return number
        case "bytes":
            return bytes.fromhex(content)
        case "array":
            return tuple(to_cell(element) for element in content)
        case "literal":
            return Literal(content)
    scalar: Cell = content
    return scalar


def from_cell(kind: Kind, element: Kind | None, cell: Any) -> Any:
    if cell is None:
        return None
    if isinstance(cell, Literal):
        return {"literal": str(cell)}
    if kind is Kind.ARRAY:
        assert element is not None
        elements = [from_cell(Kind.ARRAY if type(c) is tuple else element, element, c) for c in cell]
        return {"array": elements}
    if kind is Kind.DOUBLE:
        return double(cell)
    if kind is Kind.BYTES:
        return {"bytes": cell.hex()}
    if kind in (Kind.INT64, Kind.TIMESTAMP, Kind.DATE, Kind.TIME):
        return {MEMBERS[kind]: str(cell)}
    return {MEMBERS[kind]: cell}


def kind_of(name: str, cell: Any) -> tuple[Kind, Kind | None]:
    if name in KINDS:
        return KINDS[name]
    (member,) = cell
    return Kind[member.upper()], None


def table_of(vector: dict[str, Any]) -> tuple[Table, list[Cell]]:
    columns = []
    for name, cell in vector["columns"].items():
        kind, element = kind_of(name, cell)
        initial = vector.get("initial", {})
        columns.append(Column(name, kind, "any", element, initial=(to_cell(initial[name]),) if name in initial else ()))
    row = [to_cell(cell) for cell in vector["columns"].values()]
    return Table(vector["table"], tuple(columns), tuple(vector["key"])), row


def test_the_file_is_what_the_second_encoder_makes() -> None:
    assert json.loads(VECTORS.read_text()) == vectors()


@pytest.mark.parametrize(
    "vector", json.loads(VECTORS.read_text()) if VECTORS.exists() else [], ids=lambda v: f"{v['table']} {v['hash'][:4]}"
)
def test_rows_and_effects_encode_as_in_the_file(vector: dict[str, Any]) -> None:
    table, row = table_of(vector)
    encoder = EffectEncoder(table)
    assert encoder.encode(row).hex() == vector["encoding"]
    assert f"{encoder.hash(row):032x}" == vector["hash"]
    assert encoder.key_hash(row).hex() == vector["key_hash"]
    assert encoder.hashes(row) == (encoder.key_hash(row), encoder.hash(row))
    assert encoder.row_hashes([row, row]) == [encoder.hash(row)] * 2
    for effect in vector["effects"]:
        assert encoder.effect_hash(effect["type"], row, effect["given"]).hex() == effect["hash"]
    insert = vector["effects"][0]
    assert encoder.effect_hash(1, row).hex() == insert["hash"]
    assert encoder.large_hash(row).hex() == vector["hash"]
    assert encoder.large_hash(row, None, 1).hex() == insert["hash"]


def test_a_row_from_before_its_columns_keeps_its_encoding() -> None:
    first, *_ = [vector for vector in vectors() if "initial" in vector]
    before = {name: cell for name, cell in first["columns"].items() if name not in first["initial"]}
    table, row = table_of({"table": first["table"], "key": first["key"], "columns": before})
    encoder = EffectEncoder(table)
    assert encoder.encode(row).hex() == first["encoding"]
    assert encoder.effect_hash(1, row).hex() == first["effects"][0]["hash"]


def test_a_keys_field_is_never_left_out() -> None:
    table = Table("t", (Column("id", Kind.INT64, "bigint", initial=(7,)),), ("id",))
    assert EffectEncoder(table).encode([7]) == row_bytes("t", ["id"], {"id": {"int64": "7"}}, {"id"})


def test_every_kind_is_in_the_file() -> None:
    kinds = {kind for v in CASES for name, cell in v["columns"].items() for kind in kind_of(name, cell)}
    assert kinds >= set(Kind)


SHAPES: list[tuple[Kind, Kind | None]] = [(kind, None) for kind in Kind if kind is not Kind.ARRAY]
SHAPES += [(Kind.ARRAY, kind) for kind, _ in SHAPES]


@pytest.mark.slow
@given(st.data())
def test_both_encoders_agree_on_any_row(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text(max_size=4), min_size=1, max_size=5, unique=True))
    shapes = [data.draw(st.sampled_from(SHAPES)) for _ in names]
    key = data.draw(st.permutations(names).flatmap(lambda order: st.integers(1, len(names)).map(lambda n: order[:n])))
    row = [data.draw(cells(kind, element)) for kind, element in shapes]
    initial = [
        data.draw(st.just(()) | st.just((cell,)) | st.tuples(cells(kind, element)))
        for cell, (kind, element) in zip(row, shapes, strict=True)
    ]
    table = Table(
        data.draw(st.text(max_size=4)),
        tuple(
            Column(name, kind, "any", element, initial=one)
            for name, (kind, element), one in zip(names, shapes, initial, strict=True)
        ),
        tuple(key),
    )
    left_out = {
        name: from_cell(kind, element, one[0])
        for name, (kind, element), one in zip(names, shapes, initial, strict=True)
        if one
    }
    columns = {
        name: from_cell(kind, element, cell) for name, (kind, element), cell in zip(names, shapes, row, strict=True)
    }
    encoder = EffectEncoder(table)
    encoded = row_bytes(table.name, list(key), columns, set(names), left_out)
    assert encoder.encode(row) == encoded
    assert encoder.hash(row) == int(digest(encoded), 16) == int.from_bytes(encoder.large_hash(row), "big")
    insert = encoder.effect_hash(1, row)
    assert insert.hex() == digest(b"\x01" + encoded) == encoder.large_hash(row, None, 1).hex()
    assert encoder.insert_hashes(1, encoder.fields(row)) == (insert, 1, encoder.hash(row))
    assert encoder.key_hash(row).hex() == digest(key_bytes(table.name, list(key), columns))
    assert encoder.hashes(row) == (encoder.key_hash(row), encoder.hash(row))
    assert encoder.row_hashes([row, row]) == [encoder.hash(row)] * 2
    given_columns = data.draw(st.sets(st.sampled_from(names)))
    for number in range(1, 5):
        not_there = left_out if number == 1 else {}
        expected = digest(bytes([number]) + row_bytes(table.name, list(key), columns, given_columns, not_there))
        assert encoder.effect_hash(number, row, given_columns).hex() == expected


def test_a_table_sum_counts_every_row_and_goes_round() -> None:
    table = Table("t", (Column("id", Kind.INT64, "bigint"),), ("id",))
    encoder = EffectEncoder(table)
    rows: list[list[Cell]] = [[i] for i in range(10)]
    total = sum(int(digest(row_bytes("t", ["id"], {"id": {"int64": str(i)}}, set())), 16) for i in range(10))
    assert total > SUM_MODULUS
    assert table_sum(encoder, rows) == (10, total % SUM_MODULUS)
    # A pair of equal rows does not vanish, as it would from an exclusive or.
    assert table_sum(encoder, [[1], [1]]) == (2, 2 * encoder.hash([1]) % SUM_MODULUS)
    assert table_sum(encoder, []) == (0, 0)


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1, ensure_ascii=True) + "\n")
