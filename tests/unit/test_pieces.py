"""Large values in pieces are the bytes that they are of, to whoever looks at them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from anabranch.values import Column, Kind, Table, pieces
from anabranch.values.effect_hashes import EffectEncoder
from anabranch.values.pieces import LargeText, Pieces, whole
from anabranch.wire.effects import Effect, EffectBuilder
from anabranch.wire.large_effects import LargeEffect, LargeEffectBuilder

TEXT = "xé€😀" * 100
RAW = TEXT.encode()


def cut(raw: bytes, size: int) -> list[bytes]:
    return [raw[start:stop] for start, stop in pairwise([*range(0, len(raw), size), len(raw)])]


def test_a_slice_is_that_of_the_bytes() -> None:
    whole_of_it = Pieces([b"", *cut(RAW, 7), b""])
    assert len(whole_of_it) == len(RAW)
    assert b"head" + whole_of_it == b"head" + RAW
    for start in (None, 0, 1, 7, 13, -5, 5_000):
        for stop in (None, 0, 6, 7, 8, 500, -1, 5_000):
            assert whole_of_it[start:stop] == RAW[start:stop]
    with pytest.raises(ValueError, match="without steps"):
        whole_of_it[::2]


def test_equal_are_the_same_bytes_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_COMPARED_BYTES", 11)
    one, other = Pieces(cut(RAW, 7)), Pieces(cut(RAW, 64))
    changed = RAW[:-1] + b"!"
    assert one == other == RAW
    assert hash(one) == hash(other) == hash(RAW)
    assert one != Pieces(cut(changed, 7))
    assert one != changed
    assert one != Pieces(cut(RAW[:-1], 7))
    assert one != 7
    text = LargeText(cut(RAW, 7))
    assert text == TEXT
    assert text == LargeText(cut(RAW, 64))
    assert text != TEXT + "!"
    assert hash(text) == hash(TEXT)
    assert [type(cell) for cell in whole([text, one, 1, None])] == [str, bytes, int, type(None)]
    assert whole([text, one]) == [TEXT, RAW]


def test_effects_and_hashes_are_those_of_the_row_in_one_piece() -> None:
    columns = (
        Column("id", Kind.STRING, "text"),
        Column("raw", Kind.BYTES, "bytea"),
        Column("a", Kind.JSON, "json"),
        Column("n", Kind.INT64, "bigint"),
    )
    table = Table("doc", columns, ("id",))
    values = [(RAW, TEXT, 1), (RAW + b"!", TEXT, 2), (RAW, TEXT + "!", 2)]
    plain: list[Any] = [("k", raw, text, n) for raw, text, n in values]
    large: list[Any] = [("k", Pieces(cut(raw, 7)), LargeText(cut(text.encode(), 9)), n) for raw, text, n in values]
    beats: list[None] = []
    one, other = EffectBuilder(table), LargeEffectBuilder(table, lambda: beats.append(None))
    pairs: list[tuple[Effect, Effect | LargeEffect]] = []
    for before, large_before in zip(plain, large, strict=True):
        pairs.append((one.insert(before), other.insert(large_before)))
        pairs.append((one.delete(before), other.delete(large_before)))
        for after, large_after in zip(plain, large, strict=True):
            pairs.append((one.update(before, after), other.update(large_before, large_after)))
            # Whoever knows no pieces takes them for what they are.
            assert one.update(large_before, large_after) == one.update(before, after)
    for expected, made in pairs:
        assert (made.type, bytes(made.data), *made[2:]) == expected
    assert beats
    assert EffectEncoder(table).hash(large[1]) == EffectEncoder(table).hash(plain[1])


def test_hashes_of_pieces_leave_out_initial_values() -> None:
    initial: list[Any] = [RAW, TEXT]
    columns = (Column("id", Kind.STRING, "text"), Column("raw", Kind.BYTES, "bytea"), Column("a", Kind.JSON, "json"))
    added = [replace(column, initial=(cell,)) for column, cell in zip(columns[1:], initial, strict=True)]
    table = Table("doc", (*columns[:1], *added), ("id",))
    encoder, builder, large_builder = (
        EffectEncoder(table),
        EffectBuilder(table),
        LargeEffectBuilder(table, lambda: None),
    )
    plain: list[Any] = [("k", RAW, TEXT), ("k", RAW[:-1] + b"!", TEXT + "!"), ("k", None, TEXT[1:])]
    large: list[Any] = [
        ("k", None if raw is None else Pieces(cut(raw, 7)), LargeText(cut(text.encode(), 9))) for _, raw, text in plain
    ]
    assert encoder.hash(plain[0]) == EffectEncoder(Table("doc", columns[:1], ("id",))).hash(["k"])
    for row, large_row in zip(plain, large, strict=True):
        assert encoder.large_hash(large_row) == encoder.hash(row).to_bytes(16, "big")
        assert encoder.large_hash(large_row, None, 1) == encoder.effect_hash(1, row)
        assert large_builder.insert(large_row)[2:] == builder.insert(row)[2:]
        for after, large_after in zip(plain, large, strict=True):
            assert large_builder.update(large_row, large_after)[2:] == builder.update(row, after)[2:]
