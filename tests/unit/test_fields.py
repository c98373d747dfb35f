"""Fields are counted before a message is parsed, exactly, and no further than the bound."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from anabranch.v1 import batch_pb2, change_pb2, ingest_pb2, position_pb2, resolver_pb2, snapshot_pb2, value_pb2
from anabranch.wire.fields import FLAT, count_fields, shape_of

MANY = 1_000_000


def counted(message: Any) -> int:
    return count_fields(message.SerializeToString(), shape_of(message.DESCRIPTOR), MANY)


def test_fields_of_all_depths_are_counted() -> None:
    state = position_pb2.NodeState(acknowledged=2**40, disagreements=[{}, {"table": "t" * 300}])  # type: ignore[list-item]
    request = change_pb2.GetRequest(db_name="shop", node_state=state, after=7)
    # A message that holds few fields in any case is one.
    assert counted(request) == 3 + 3
    request.node_state.dead_letters.counts.add(table="t", count=1)
    assert counted(request) == 6 + 1 + 1


def test_a_type_that_holds_itself() -> None:
    inner = value_pb2.Value(array_value=value_pb2.ArrayValue(elements=[value_pb2.Value(int64_value=1)] * 3))
    request = resolver_pb2.ListConflictsRequest(
        key=[value_pb2.Value(array_value=value_pb2.ArrayValue(elements=[inner] * 2))]
    )
    assert counted(request) == 1 + 1 + 2 + 2 * (1 + 3 + 3)


def test_large_fields_cost_one_step() -> None:
    request = ingest_pb2.SendRequest(envelopes=[batch_pb2.Envelope(payload=bytes(1_000_000))] * 3)
    assert counted(request) == 3


def test_the_count_ends_at_the_bound() -> None:
    assert count_fields(b"\x1a\x00" * MANY, FLAT, 10) == 11
    assert count_fields(b"\x1a\x00" * 10, FLAT, 10) == 10


@pytest.mark.parametrize(
    "raw", [b"\x00" * 100, b"\x1a", b"\x1a\xff", b"\xff" * 20, b"\x0a\x80\x80\x80\x80\x10", b"\x0d\x01", b"\x1f"]
)
def test_bytes_that_are_no_message_are_left_to_the_parser(raw: bytes) -> None:
    assert count_fields(raw, FLAT, 1_000) <= 20
    with pytest.raises(DecodeError):
        batch_pb2.DbMutationBatch.FromString(raw)


@hypothesis.given(st.binary(max_size=200))
def test_no_bytes_break_it(raw: bytes) -> None:
    for message in (change_pb2.GetRequest, snapshot_pb2.CompareRequest, ingest_pb2.SendRequest):
        assert 0 <= count_fields(raw, shape_of(message.DESCRIPTOR), 1_000) <= len(raw)
