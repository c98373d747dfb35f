"""Requests for every call, made from the contract's descriptors: plausible ones, spoilt in one or several places.

A request that is random through and through fails at its first field; one that is plausible and spoilt in a single
place reaches the code behind it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from ulid import ULID

from anabranch.v1 import batch_pb2, value_pb2

DEEPEST = 5
MOST_BYTES = 4_200_000
"""A little more than a request may have."""

_TEXTS: tuple[str, ...] = (
    "", " ", "a", "item", "\0", "a\0b", "\x1b[31m", "line\nline", "\u202eabc", "'; drop table x; --", "\ufffd",
    "é" * 300, "0" * 26, "Z" * 26, "7" + "Z" * 25, "1e131071", "-", "NaN", "9" * 400, "{}", "x" * 64, "x" * 9_000,
    "y" * 200_000,
)  # fmt: skip
_INTEGERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**53, 2**63 - 1, -(2**63), 1_700_000_000_000)
_BYTES = (b"", b"\0", b"\xff" * 16, b"\x0a" * 64, b"\x80" * 32, bytes(range(256)))


class Fuzzer:
    """Makes requests; all chance comes from ``chance``."""

    def __init__(self, chance: random.Random, db_name: str) -> None:
        self._chance = chance
        self._hints: Mapping[str, Callable[[], Any]] = {
            "db_name": lambda: db_name,
            "table": lambda: "item",
            "id": self.ulid,
            "batch_id": self.ulid,
            "batch_ids": self.ulid,
            "prev": self.ulid,
            "unanswered_batch_ids": self.ulid,
            "columns": lambda: chance.choice(["id", "body", "n"]),
            "payload": lambda: self.batch().SerializeToString(),
            "type": lambda: chance.randrange(1, 4),
            "schema_version": lambda: 1,
            # A new node's, which has seen nothing.
            **dict.fromkeys(("after", "acknowledged", "server_timestamp_ms", "basis", "max_bytes"), lambda: 0),
            **dict.fromkeys(("token", "node_token", "page_token", "next_page_token", "resume"), lambda: b""),
            "epoch": lambda: "",
        }

    def ulid(self) -> str:
        """A new id, sometimes one of another time."""
        text = str(ULID())
        return text if self._chance.random() < 0.9 else self._chance.choice("0157") + text[1:]

    def request(self, descriptor: Descriptor) -> bytes:
        """The bytes of a request: plausible, or spoilt as a message, or in its bytes, or both."""
        message = self._message(descriptor, 0, full=self._chance.random() < 0.7)
        for _ in range(self._chance.choice([0, 1, 1, 1, 2, 5])):
            self._spoil(message)
        raw: bytes = message.SerializeToString()
        if self._chance.random() < 0.35:
            raw = self._spoil_bytes(descriptor, raw)
        return raw[:MOST_BYTES]

    def batch(self) -> Message:
        """A batch on table ``item`` (id, body, n), often a valid one."""
        batch = batch_pb2.DbMutationBatch(id=str(ULID()), schema_version=1)
        batch.db_name = self._hints["db_name"]()
        batch.node.id, batch.node.name = str(ULID()), "attacker"
        mutation = batch.mutations.add(table="item", type=self._chance.choice([1, 1, 2, 3]))
        columns = ["id"] if mutation.type == batch_pb2.MUTATION_TYPE_DELETE else ["id", "body", "n"]
        mutation.columns.extend(columns)
        for _ in range(self._chance.choice([1, 1, 1, 3, 100])):
            values = [value_pb2.Value(string_value=str(ULID()))]
            if len(columns) > 1:
                values += [value_pb2.Value(string_value="x"), value_pb2.Value(decimal_value="1.5")]
            mutation.rows.add(values=values)
        if self._chance.random() < 0.5:
            self._spoil(batch)
        return batch

    def _message(self, descriptor: Descriptor, depth: int, *, full: bool) -> Message:
        message: Message = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if full or self._chance.random() < 0.5:
                self._fill(message, field, depth, full=full)
        return message

    def _fill(self, message: Message, field: FieldDescriptor, depth: int, *, full: bool) -> None:
        if field.message_type is not None:
            if depth >= DEEPEST:
                return
            if field.is_repeated:
                if not field.message_type.GetOptions().map_entry:
                    for _ in range(self._chance.choice([0, 1, 1, 2])):
                        part = self._message(field.message_type, depth + 1, full=full)
                        getattr(message, field.name).append(part)
            else:
                getattr(message, field.name).CopyFrom(self._message(field.message_type, depth + 1, full=full))
            return
        hint = self._hints.get(field.name)
        make = hint if hint is not None and full else lambda: self._scalar(field)
        try:
            self._set(message, field, make)
        except (TypeError, ValueError):  # A hint of this name is for a field of another type.
            self._set(message, field, lambda: self._scalar(field))

    def _set(self, message: Message, field: FieldDescriptor, make: Callable[[], Any]) -> None:
        if field.is_repeated:
            getattr(message, field.name).extend([make() for _ in range(self._chance.choice([0, 1, 2, 30]))])
        else:
            setattr(message, field.name, make())

    def _scalar(self, field: FieldDescriptor) -> Any:
        kind, chance = field.cpp_type, self._chance
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return chance.choice(_BYTES) if field.type == FieldDescriptor.TYPE_BYTES else chance.choice(_TEXTS)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return chance.choice([0, 1, 2, 3, 999, 2**31 - 1, -1])
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return chance.choice([0.0, -0.0, float("nan"), float("inf"), 1e308])
        integer = chance.choice(_INTEGERS)
        if kind == FieldDescriptor.CPPTYPE_INT32:
            return max(-(2**31), min(integer, 2**31 - 1))
        if kind == FieldDescriptor.CPPTYPE_UINT32:
            return abs(integer) % 2**32
        return abs(integer) if kind == FieldDescriptor.CPPTYPE_UINT64 else integer

    def _spoil(self, message: Message) -> None:
        """Change one place of a message, or of one inside it: take a field away, or give it an odd value."""
        fields: list[Any] = list(message.DESCRIPTOR.fields)
        if not fields:
            return
        field = self._chance.choice(fields)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            if self._chance.random() < 0.75:
                inner = getattr(message, field.name)
                parts = list(inner) if field.is_repeated else [inner] if message.HasField(field.name) else []
                if parts:
                    self._spoil(self._chance.choice(parts))
                    return
            if field.is_repeated:
                empty = GetMessageClass(field.message_type)()
                getattr(message, field.name).extend([empty] * self._chance.choice([1, 10, 3_000]))
                return
        if self._chance.random() < 0.4:
            message.ClearField(field.name)
        elif field.message_type is None:
            self._set(message, field, lambda: self._scalar(field))

    def _spoil_bytes(self, descriptor: Descriptor, raw: bytes) -> bytes:
        chance = self._chance
        kind = chance.randrange(6)
        if kind == 0:
            return raw[: chance.randrange(len(raw) + 1)]
        if kind == 1 and raw:
            spoilt = bytearray(raw)
            for _ in range(chance.choice([1, 4, 50])):
                spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
            return bytes(spoilt)
        if kind == 2:  # Several arms of a oneof, a singular field more than once.
            return raw * chance.choice([2, 3])
        if kind == 3:
            return raw + chance.randbytes(chance.choice([1, 30, 5_000]))
        if kind == 4:
            return raw + self.nested(descriptor, chance.choice([20, 90, 120, 3_000]))
        return raw + self.empties(descriptor, chance.choice([100, 10_000, 300_000]))

    def empties(self, descriptor: Descriptor, count: int) -> bytes:
        """So many empty submessages of a message, two bytes each."""
        tags = [field.number << 3 | 2 for field in descriptor.fields if field.message_type is not None]
        return (_VarintBytes(self._chance.choice(tags)) + b"\0") * count if tags else b""

    def nested(self, descriptor: Descriptor, depth: int) -> bytes:
        """A message in a message, so deep, whatever the fields there mean."""
        tags = [field.number << 3 | 2 for field in descriptor.fields if field.message_type is not None] or [10]
        tag = _VarintBytes(self._chance.choice(tags))
        inner = b""
        for _ in range(depth):
            inner = tag + _VarintBytes(len(inner)) + inner
        return inner
