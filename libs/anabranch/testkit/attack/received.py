"""The content of a response of any service as far as it is about rows: the marks in its bytes, and every sum, count,
audience and batch in it.

Marks are looked for in the bytes as they came, whatever field they stand in, also in one that is not known here. A
value that is cut into parts, over several responses of a call, is put together again over the cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message

from anabranch.testkit.attack.marks import LONGEST, marks_in
from anabranch.v1 import change_pb2, position_pb2, resolver_pb2, snapshot_pb2, verdict_pb2


@dataclass(frozen=True, slots=True)
class Counted:
    """A number of rows. ``audience``: "" where it is of no one audience. ``within``: the message that it stands in."""

    within: str
    table: str
    audience: str
    count: int


@dataclass(slots=True)
class Received:
    """The content of one response. ``reached``: the greatest position in it, 0 where it has none; ``as_of``: that which
    a pull's rows are of. ``bare``: the ids of batches that came without an effect, with the ids of their nodes."""

    method: str
    reached: int = 0
    as_of: int = 0
    marks: set[str] = field(default_factory=set)
    counted: list[Counted] = field(default_factory=list)
    audiences: set[str] = field(default_factory=set)
    bare: list[tuple[str, str]] = field(default_factory=list)


class Response:
    """Reads the responses of one call of ``method``, one after the other."""

    def __init__(self, method: str, kind: type[Message]) -> None:
        self._method = method
        self._kind = kind
        self._tails: dict[str, bytes] = {}
        self._compared = ""
        self._arrow = b""

    def read(self, data: bytes) -> Received:
        """Read the next response. Raises google.protobuf.message.DecodeError where it is none."""
        found = Received(self._method, marks=marks_in(data))
        message = self._kind()
        message.ParseFromString(data)
        self._walk(message, found)
        return found

    def _walk(self, message: Message, found: Received) -> None:
        _note(message, found)
        if isinstance(message, snapshot_pb2.CompareResponse):
            self._note_comparison(message, found)
        for descriptor, value in message.ListFields():
            many = value if descriptor.is_repeated else [value]
            if descriptor.message_type is not None:
                for one in many:
                    self._walk(one, found)
            elif descriptor.type in (descriptor.TYPE_BYTES, descriptor.TYPE_STRING):
                for one in many:
                    self._join(descriptor.full_name, one if isinstance(one, bytes) else one.encode(), found)
        if isinstance(message, snapshot_pb2.PullResponse):
            self._read_arrow(message, found)

    def _note_comparison(self, message: snapshot_pb2.CompareResponse, found: Received) -> None:
        """Note the counts of an answer; only the first one names the table."""
        self._compared = message.sum.table or self._compared
        if message.HasField("sum"):
            found.counted.append(Counted("CompareResponse", self._compared, "", message.sum.count))
        found.counted += [Counted("CompareResponse.sums", self._compared, "", one.count) for one in message.sums]

    def _join(self, name: str, part: bytes, found: Received) -> None:
        """Look for marks over the cut between the parts of a value."""
        tail = self._tails.get(name, b"")
        if tail:
            found.marks |= marks_in(tail + part[:LONGEST])
        self._tails[name] = (tail + part)[-LONGEST:]

    def _read_arrow(self, message: snapshot_pb2.PullResponse, found: Received) -> None:
        """Read a chunk's values as its reader does: they are not plain in its bytes where they are compressed."""
        self._arrow += message.arrow_ipc
        if message.arrow_ipc_incomplete or not self._arrow:
            return
        whole, self._arrow = self._arrow, b""
        with contextlib.suppress(pa.ArrowInvalid):
            for column in pa.ipc.open_stream(whole).read_all().columns:
                found.marks |= marks_in("\0".join(_texts(column.to_pylist())).encode())


def _texts(cells: list[Any]) -> Iterator[str]:
    for cell in cells:
        if isinstance(cell, list):
            yield from _texts(cell)
        elif cell is not None:
            yield cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


def _note(message: Message, found: Received) -> None:
    within = message.DESCRIPTOR.name
    match message:
        case position_pb2.Position():
            found.reached = max(found.reached, message.server_timestamp_ms)
        case verdict_pb2.Verdict() | resolver_pb2.Conflict():
            found.reached = max(found.reached, message.position)
        case change_pb2.LoggedGroup():
            found.reached = max(found.reached, message.position)
            found.bare += [(b.id, b.node.id) for b in message.batches if not b.effects and not b.losers]
            _note_sums(within, message.sums, found)
            found.audiences.update(message.audience_change.gained, message.audience_change.lost)
        case change_pb2.Page():
            found.audiences.update(message.audiences.values)
        case change_pb2.GetResponse() | change_pb2.SubscribeResponse():
            _note_sums(within, message.sums, found)
        case snapshot_pb2.PullResponse():
            found.as_of = max(found.as_of, message.as_of.server_timestamp_ms)
            _note_sums(within, message.sums, found)
            _note_sums(within, [message.sum] if message.HasField("sum") else [], found)
            found.counted.append(Counted(f"{within}.rows_done", message.table, "", message.rows_done))
            found.audiences.update(message.audiences.values)
        case snapshot_pb2.Table():
            found.counted.append(Counted(f"{within}.estimated_rows", message.name, "", message.estimated_rows))


def _note_sums(within: str, sums: Any, found: Received) -> None:
    found.counted += [Counted(within, one.table, one.audience, one.count) for one in sums]
