"""A table by key ranges: what is answered, what is refused, what ends."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from anabranch.ranges import WHOLE, KeyRange, RangeSums, in_ranges
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import snapshot_pb2, snapshot_pb2_grpc, value_pb2
from anabranch.values.canonical import RowEncoder, table_sum
from anabranch.values.messages import column_reader

STALL_MS = 1_500
ROWS = 400


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_PULL_STALL_MS": str(STALL_MS),
        "ANABRANCH_COMPARE_SESSIONS": "1",
        "ANABRANCH_FIRST_REQUEST_MS": str(STALL_MS),
    }


class Comparison:
    """One call; the test says when the client's side ends."""

    def __init__(self, reader: Reader, table: str) -> None:
        self.asked: queue.SimpleQueue[snapshot_pb2.CompareRequest | None] = queue.SimpleQueue()
        self.call: Any = reader.compare(table, iter(self.asked.get, None))

    def ask(self, **wanted: Any) -> None:
        self.asked.put(snapshot_pb2.CompareRequest(**wanted))

    def answer(self) -> Iterator[snapshot_pb2.CompareResponse]:
        for response in self.call:
            yield response
            if response.done:
                return

    def fails(self) -> str:
        try:
            with pytest.raises(grpc.RpcError) as failed:
                list(self.call)
        finally:
            self.asked.put(None)
        error: Any = failed.value
        return str(error.details())


def message(one: KeyRange) -> snapshot_pb2.KeyRange:
    return snapshot_pb2.KeyRange(bits=one.bits, prefix=one.prefix)


@pytest.mark.slow
def test_sums_and_rows_of_one_moment(writer: LogWriter, reader: Reader) -> None:
    table = writer.table("item")
    encoder = RowEncoder(table)
    made = [[f"k{i:04}", "x" * 10, i, None] for i in range(ROWS)]
    # One row that no message can carry whole.
    made.append(["large", "y" * 5_000_000, 1, None])
    head = writer.insert("item", made)
    expected = RangeSums()
    expected.add(encoder, made)
    one = Comparison(reader, "item")
    opening, *parts = one.answer()
    writer.insert("item", [["later", "", 1, None]])
    assert opening.as_of.server_timestamp_ms == head
    assert (opening.sum.count, int.from_bytes(opening.sum.hash, "big")) == table_sum(encoder, made)
    got = {KeyRange(s.range.bits, s.range.prefix): (s.count, s.hash) for p in parts for s in p.sums}
    assert got == {part: (found.rows, found.hash.to_bytes(16, "big")) for part, found in expected.parts(WHOLE).items()}
    of = KeyRange(8, encoder.key_hash(made[-1])[0])
    one.ask(split=[message(of)])
    finer = {KeyRange(s.range.bits, s.range.prefix): s.count for p in one.answer() for s in p.sums}
    assert finer == {part: found.rows for part, found in expected.parts(of).items()}
    wanted = [of, KeyRange(16, 7)]
    one.ask(read=map(message, wanted))
    data, rows, readers = b"", [], [column_reader(c) for c in table.columns]
    for response in one.answer():
        assert response.ByteSize() < 4 * 2**20
        for i, piece in enumerate(response.rows):
            data += piece
            if i < len(response.rows) - 1 or not response.row_incomplete:
                values = value_pb2.Row.FromString(data).values
                rows.append([read(value) for read, value in zip(readers, values, strict=True)])
                data = b""
    assert not data
    assert sorted(map(str, rows)) == sorted(map(str, filter(in_ranges(encoder, wanted), made)))
    one.asked.put(None)
    assert list(one.call) == []


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"read": [snapshot_pb2.KeyRange(bits=4, prefix=1)]}, "there is no key range of 4 bits 1"),
        ({"read": [snapshot_pb2.KeyRange(bits=8, prefix=256)]}, "there is no key range of 8 bits 256"),
        ({"split": [snapshot_pb2.KeyRange(bits=16, prefix=1)]}, "there is no key range of 16 bits 1"),
        ({"split": [snapshot_pb2.KeyRange(bits=8, prefix=1)] * 2}, "a request names a key range twice"),
    ],
)
def test_ranges_that_are_none_are_refused(writer: LogWriter, reader: Reader, wanted: dict[str, Any], why: str) -> None:
    one = Comparison(reader, "item")
    list(one.answer())
    one.ask(**wanted)
    assert one.fails() == why


UNREADABLE = """
insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application)
values (%s, %s, pg_current_xact_id(), 3, 1, '\\x00000000', 'r', 'a')
"""
"""A row that was captured of another table of the name: it has no columns."""


def test_captured_rows_that_cannot_be_read_are_a_reason(writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", [["there", "", 1, None]])
    writer.conn.execute(UNREADABLE, (writer.database.id, writer.table("item").id))
    try:
        assert Comparison(reader, "item").fails() == (
            'rows captured of table "item" can\'t be read: an image has 0 columns of 4'
        )
    finally:
        writer.conn.execute("delete from anabranch.captured")


@pytest.mark.slow
def test_nobody_goes_on_for_ever(place: Any, writer: LogWriter, reader: Reader) -> None:
    one = Comparison(reader, "item")
    list(one.answer())
    for _ in range(9):
        one.ask(split=[message(KeyRange(8, 1))])
    assert one.fails() == "more than 8 requests: begin anew"
    silent = Comparison(reader, "item")
    list(silent.answer())
    assert silent.fails() == "nothing was asked for 1.5 s: begin the comparison anew"
    assert Comparison(reader, "no such table").fails() == "there is no synced table 'no such table'"
    asked: queue.SimpleQueue[snapshot_pb2.CompareRequest | None] = queue.SimpleQueue()
    stub = snapshot_pb2_grpc.SnapshotServiceStub(reader.channel)
    never: Any = stub.Compare(iter(asked.get, None), metadata=reader.credentials)
    with pytest.raises(grpc.RpcError) as failed:
        next(never)
    asked.put(None)
    error: Any = failed.value
    assert error.details() == "the stream's first request did not come within 1.5 s"
    # The only turn is free again.
    last = Comparison(reader, "item")
    list(last.answer())
    last.asked.put(None)
    assert list(last.call) == []
