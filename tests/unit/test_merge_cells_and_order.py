"""Equality of cells, and the order of keys."""

from __future__ import annotations

import struct

import pytest
from ulid import ULID

from anabranch.merge import SERVER_NODE, same, ulid_time_ms
from anabranch.merge.model import Cell
from anabranch.merge.order import batch_key, key
from anabranch.testkit.memory_batches import batch
from anabranch.testkit.memory_node import ulid
from anabranch.values.cells import Literal

OTHER_NAN: float = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (None, None),
        (float("nan"), OTHER_NAN),
        (-0.0, -0.0),
        (5e-324, 5e-324),
        (2**53 + 1, 2**53 + 1),
        ("1.10", "1.10"),
        (Literal("infinity"), "infinity"),
        ((1, None, ("NULL",)), (1, None, ("NULL",))),
        ((float("nan"),), (OTHER_NAN,)),
        (b"\x00", b"\x00"),
        ((), ()),
    ],
)
def test_one_value(a: Cell, b: Cell) -> None:
    assert same(a, b)
    assert same(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        (0, False),
        (None, 0),
        (None, ""),
        (None, ()),
        ("1.10", "1.1"),
        ("a", b"a"),
        ("e\u0301", "\u00e9"),
        ((1,), (1, 1)),
        ((1, None), (1, 0)),
        ((True,), (1,)),
        ((-0.0,), (0.0,)),
        (("NULL",), (None,)),
        (1.0, float("nan")),
    ],
)
def test_two_values(a: Cell, b: Cell) -> None:
    assert not same(a, b)
    assert not same(b, a)


def test_the_time_inside_a_ulid() -> None:
    real = ULID.from_timestamp(1_732_752_000.123)
    assert ulid_time_ms(str(real)) == real.milliseconds == 1_732_752_000_123
    assert ulid(real.milliseconds, int(real) & (1 << 80) - 1) == str(real)


@pytest.mark.parametrize("text", ["", "01ARZ3NDEK", "01ARZ3NDEU0000000000000000", "01arz3ndek0000000000000000"])
def test_what_is_no_ulid_has_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="not a ULID"):
        ulid_time_ms(text)


def test_the_key_of_a_batch_is_that_of_its_stamp() -> None:
    for order in ("server", "edit"):
        for node in ("a", SERVER_NODE):
            for made, place in ((50, 90), (500, 90)):
                made_by = batch(made=made, place=place, node=node)
                assert batch_key(order, made_by) == key(order, place, made_by.id, node)


def test_keys_of_both_orders() -> None:
    assert key("server", 90, ulid(50, 0), "a") == (90, ulid(50, 0))
    assert key("edit", 90, ulid(50, 0), "a") == (50, ulid(50, 0))
    assert key("edit", 90, ulid(500, 0), "a") == (90, ulid(500, 0))
