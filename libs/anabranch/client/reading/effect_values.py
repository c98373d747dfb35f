"""The values of many effects, read by protobuf column by column: none is looked at by itself.

Serialized messages in a row are one message, whose repeated fields have the elements of all of them. So the values of
many effects are read as one list of bytes; and those of one column as one list of what their arm carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from anabranch.v1 import change_pb2, value_pb2
from anabranch.values import Cell, Column, Kind
from anabranch.values.messages import ARMS, column_reader

ColumnReader = Callable[[list[bytes]], list[Cell]]
_NULL = value_pb2.Value(null_value=0).SerializeToString()  # type: ignore[arg-type]


def _lists(of: Descriptor) -> Callable[[bytes], Any]:
    """The parser of many messages in a row: each field and each arm is a list; a message in one is bytes."""
    file = FileDescriptorProto(name=of.name, package="lists", syntax="proto3")
    made = file.message_type.add(name=of.name)
    for field in of.fields:
        if field.enum_type is None:
            carried = FieldDescriptorProto.TYPE_BYTES if field.message_type else field.type
            label = FieldDescriptorProto.LABEL_REPEATED
            made.field.add(name=field.name, number=field.number, type=carried, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"lists.{of.name}")).FromString


_effects, _values = _lists(change_pb2.Effect.DESCRIPTOR), _lists(value_pb2.Value.DESCRIPTOR)


def read_columns(effects: Sequence[bytes], readers: Sequence[ColumnReader | None]) -> list[list[Cell]]:
    """The cells of effects, column by column; nothing of a column without a reader.

    Raises:
        ValueError: a value does not fit its column, or one is lacking.
        google.protobuf.message.DecodeError: an effect is none.
    """
    values, width = _effects(b"".join(effects)).values[:], len(readers)
    if len(values) != len(effects) * width:
        raise ValueError("an effect has another number of values than of columns")
    return [[] if read is None else read(values[place::width]) for place, read in enumerate(readers)]


def reader_of(column: Column) -> ColumnReader:
    """The function that reads serialized Values of a column. Raises ValueError for one that does not fit it."""
    kind, arm, one = column.kind, ARMS[column.kind], column_reader(column)

    def read(values: list[bytes]) -> list[Cell]:
        if kind is not Kind.ARRAY:
            found: list[Cell] = getattr(_values(b"".join(values)), arm)[:]
            if kind is Kind.UUID:
                found = [value.lower() for value in found]  # type: ignore[union-attr]
            if len(found) == len(values):
                return found
            if len(found) + values.count(_NULL) == len(values):
                following = iter(found)
                return [None if value == _NULL else next(following) for value in values]
        return [one(value_pb2.Value.FromString(value)) for value in values]

    return read
