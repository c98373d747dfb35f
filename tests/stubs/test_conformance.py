"""The conformance file against this language; `make stubs-test` has the other languages read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.message import Message

from anabranch.v1 import batch_pb2, change_pb2, position_pb2, snapshot_pb2, value_pb2, verdict_pb2
from anabranch.values import Cell, Kind
from anabranch.values.messages import ARMS as WIRE_ARMS
from anabranch.values.messages import value_reader, value_writer

from . import vectors

STORED: list[dict[str, Any]] = json.loads(vectors.FILE.read_text())


def message_class(name: str) -> type[Message]:
    descriptor = descriptor_pool.Default().FindMessageTypeByName(name)
    made: type[Message] = message_factory.GetMessageClass(descriptor)
    return made


def walk(message: Message) -> Iterator[Message]:
    yield message
    for field, content in message.ListFields():
        if field.message_type is not None:
            for part in content if field.is_repeated else [content]:
                yield from walk(part)


def test_the_file_is_what_the_messages_make() -> None:
    assert vectors.vectors() == STORED


@pytest.mark.parametrize("vector", STORED, ids=lambda v: v["name"])
def test_bytes_and_json_make_the_bytes(vector: dict[str, Any]) -> None:
    kind = message_class(vector["message"])
    raw = bytes.fromhex(vector["bytes"])
    read = kind.FromString(raw)
    assert read.SerializeToString() == raw
    assert json_format.MessageToDict(read) == vector["json"]
    assert json_format.ParseDict(vector["json"], kind()).SerializeToString() == raw


def test_every_field_that_a_writer_or_reader_of_the_log_meets_is_in_the_file() -> None:
    met: dict[str, set[str]] = {}
    for _, message in vectors.messages():
        for part in walk(message):
            met.setdefault(part.DESCRIPTOR.full_name, set()).update(field.name for field, _ in part.ListFields())
    for kind in (
        batch_pb2.DbMutationBatch,
        batch_pb2.DbMutation,
        batch_pb2.Undo,
        batch_pb2.Envelope,
        change_pb2.Effect,
        change_pb2.LoggedBatch,
        change_pb2.LoggedGroup,
        snapshot_pb2.SchemaChange,
        position_pb2.Position,
        position_pb2.NodeState,
        position_pb2.ServerState,
        position_pb2.TableSum,
        verdict_pb2.Verdict,
        verdict_pb2.MutationVerdict,
        value_pb2.Value,
    ):
        fields = {field.name for field in kind.DESCRIPTOR.fields}
        assert fields - met[kind.DESCRIPTOR.full_name] == set(), kind.DESCRIPTOR.full_name


ARM_KINDS = {arm: kind for kind, arm in WIRE_ARMS.items()}


@pytest.mark.parametrize("arm", sorted(vectors.ARMS))
def test_the_client_writes_the_same_bytes_from_the_cells_that_it_reads(arm: str) -> None:
    kind = ARM_KINDS[arm]
    read, write = value_reader(kind), value_writer(kind)
    for content in vectors.ARMS[arm]:
        value = value_pb2.Value(**{arm: content})
        cell: Cell = read(value)
        assert write(cell).SerializeToString() == value.SerializeToString()


def test_the_client_writes_the_same_bytes_of_arrays() -> None:
    read, write = value_reader(Kind.ARRAY, Kind.STRING), value_writer(Kind.ARRAY, Kind.STRING)
    for row in vectors.limits_rows().rows:
        value = row.values[vectors.KINDS_COLUMNS.index("a")]
        assert write(read(value)).SerializeToString() == value.SerializeToString()
