"""Value messages to cells and back."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.errors import AnabranchError
from anabranch.v1 import value_pb2
from anabranch.values.calendar import without_offset
from anabranch.values.cells import Cell, Literal
from anabranch.values.kinds import ByKind, Kind
from anabranch.values.table import Column, has_zone

ARMS: ByKind[str] = ByKind(
    __name__,
    {
        Kind.BOOL: "bool_value",
        Kind.INT64: "int64_value",
        Kind.DOUBLE: "double_value",
        Kind.STRING: "string_value",
        Kind.BYTES: "bytes_value",
        Kind.DECIMAL: "decimal_value",
        Kind.TIMESTAMP: "timestamp_us",
        Kind.DATE: "date_days",
        Kind.TIME: "time_us",
        Kind.JSON: "json_value",
        Kind.UUID: "uuid_value",
        Kind.ARRAY: "array_value",
        Kind.LITERAL: "text_literal",
    },
)
"""The arm of Value that carries each kind."""

Reader = Callable[[value_pb2.Value], Cell]
Writer = Callable[[Cell], value_pb2.Value]
_which = value_pb2.Value.WhichOneof
_NULL = value_pb2.Value(null_value=0)  # type: ignore[arg-type]


class NotGivenError(AnabranchError, ValueError):
    """A Value without an arm: the row does not give this column."""


def value_reader(kind: Kind, element_kind: Kind | None = None, *, zone: bool = True) -> Reader:
    """The function that converts a Value of ``kind`` (of an array: with elements of ``element_kind``) to its cell.
    Without ``zone`` a moment given as text loses its offset, as in Postgres where a timestamp has no time zone.

    It raises NotGivenError for a Value without an arm and ValueError for an arm that does not carry the kind.
    """
    arm = ARMS[kind]
    if kind is Kind.ARRAY:
        element = value_reader(element_kind or Kind.STRING)

        def read_array(value: value_pb2.Value) -> Cell:
            have = _which(value, "kind")
            if have == "null_value":
                return None
            if have == "array_value":
                try:
                    return tuple(
                        read_array(v) if _which(v, "kind") == "array_value" else element(v)
                        for v in value.array_value.elements
                    )
                except NotGivenError:
                    # NotGivenError would mean the column, which is given.
                    raise ValueError("an element of the array has no value") from None
            if have == "text_literal":
                return Literal(value.text_literal)
            raise _misfit(have, arm)

        return read_array

    def read(value: value_pb2.Value) -> Cell:
        have = _which(value, "kind")
        if have == arm:
            cell: Cell = getattr(value, arm)
            return cell
        if have == "null_value":
            return None
        if have == "text_literal" and kind is Kind.TIMESTAMP:
            return Literal(value.text_literal if zone else without_offset(value.text_literal))
        raise _misfit(have, arm)

    if kind is not Kind.UUID:
        return read

    def read_uuid(value: value_pb2.Value) -> Cell:
        cell = read(value)
        return cell.lower() if isinstance(cell, str) else cell

    return read_uuid


def _misfit(have: str | None, arm: str) -> ValueError:
    if have is None:
        return NotGivenError("the value is not given")
    return ValueError(f"the value is a {have}, the column takes a {arm}")


def value_writer(kind: Kind, element_kind: Kind | None = None) -> Writer:
    """The function that converts a cell of ``kind`` to a new Value."""
    arm = ARMS[kind]
    make = value_pb2.Value
    if kind is Kind.ARRAY:
        element = value_writer(element_kind or Kind.STRING)

        def write_array(cell: Cell) -> value_pb2.Value:
            if cell is None:
                return _NULL
            if type(cell) is Literal:
                return make(text_literal=cell)
            value = make()
            value.array_value.elements.extend(
                write_array(c) if type(c) is tuple else element(c)
                for c in cell  # type: ignore[union-attr]
            )
            value.array_value.SetInParent()
            return value

        return write_array

    def write(cell: Cell) -> value_pb2.Value:
        if cell is None:
            return _NULL
        if type(cell) is Literal and kind is not Kind.LITERAL:
            return make(text_literal=cell)
        return make(**{arm: cell})  # type: ignore[arg-type]

    return write


def column_reader(column: Column) -> Reader:
    """``value_reader`` for a column."""
    return value_reader(column.kind, column.element_kind, zone=has_zone(column))


def column_writer(column: Column) -> Writer:
    """``value_writer`` for a column."""
    return value_writer(column.kind, column.element_kind)
