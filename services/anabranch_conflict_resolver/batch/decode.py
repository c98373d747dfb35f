"""Payloads to batches as the rules take them: tables and columns found, values read, keys made.

A ``Decoder`` belongs to one database at one schema version. It keeps the way to read each (table, type, columns) that
it has met, so that a row costs a call for each value and no look-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from anabranch import limits
from anabranch.merge import Mutation, MutationType, RowChange, function_of, ulid_time_ms
from anabranch.store.catalog.databases import Database
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2
from anabranch.values import Cell, Kind, Table, key_text
from anabranch.values.cells import Literal
from anabranch.values.growth import MAY_GROW, growth_of
from anabranch.values.messages import ARMS, NotGivenError, Reader, column_reader

RowKey = tuple[str, str]
"""Table name and key text."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SLOW = (Kind.ARRAY, Kind.UUID)
_WITHOUT_TEXT = (Kind.BOOL, Kind.INT64, Kind.DOUBLE, Kind.BYTES, Kind.DATE, Kind.TIME)
_UNREAD = object()
_HOLDING_TEXT = (tuple, Literal)
_which = value_pb2.Value.WhichOneof
_MOST_SHAPES = 4_096
_SURELY_SHORT = limits.MAX_KEY_BYTES // 4
_TYPES = frozenset(int(kind) for kind in MutationType)
_NONE: Mapping[str, str] = MappingProxyType({})


class Refusal(NamedTuple):
    """Why a batch is refused without asking the rules. ``reason`` is an ``anabranch.v1.Reason``."""

    reason: int
    message: str
    mutation: int = 0
    table: str = ""
    sqlstate: str = ""


class _Refuse(Exception):
    def __init__(self, reason: int, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(slots=True)
class Decoded:
    """A batch, read. ``keys`` holds the key's cells of every row that it touches; ``twice``: it touches one of them
    more than once; ``expects_rows``: those that it updates or deletes. ``grown``: how many bytes more its values have
    where Postgres prints them. With ``refusal`` the rest is empty."""

    time_ms: int = 0
    mutations: list[Mutation] = field(default_factory=list)
    keys: dict[RowKey, tuple[Cell, ...]] = field(default_factory=dict)
    twice: bool = False
    expects_rows: bool = False
    grown: int = 0
    refusal: Refusal | None = None


class _Shape:
    """Reads the rows of one table that a mutation of one type gives with certain columns."""

    __slots__ = (
        "arms",
        "counters",
        "growing",
        "key_at",
        "kind",
        "names",
        "plain",
        "readers",
        "simple_key",
        "table",
        "text_at",
        "uuid_at",
        "value_at",
        "width",
    )

    def __init__(self, table: Table, kind: MutationType, names: tuple[str, ...]) -> None:
        unknown = [name for name in names if name not in table.by_name]
        if unknown:
            raise _Refuse(errors_pb2.REASON_UNKNOWN_COLUMN, f"the table has no column {_quoted(unknown[0])}")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _Refuse(errors_pb2.REASON_UNKNOWN_COLUMN, f"column {_quoted(twice)} is given twice")
        for name in table.key_columns:
            if name not in names:
                raise _Refuse(errors_pb2.REASON_INCOMPLETE_KEY, f"key column {_quoted(name)} is not given")
        if kind is MutationType.DELETE and len(names) != len(table.key_columns):
            raise _Refuse(errors_pb2.REASON_INVALID_COLUMNS, "a delete names columns beside the key's")
        columns = [table.by_name[name] for name in names]
        self.table = table
        self.kind = kind
        self.names = names
        self.width = len(names)
        self.readers: list[Reader] = [_generated if c.generated else column_reader(c) for c in columns]
        # Arrays and uuids are read by functions of their own, and so are all values where a column is generated.
        self.arms: list[Any] = ["" if c.kind in _SLOW else ARMS[c.kind] for c in columns]
        self.plain = not any(c.generated for c in columns)
        self.key_at = [names.index(name) for name in table.key_columns]
        self.uuid_at = [i for i in self.key_at if columns[i].kind is Kind.UUID]
        # The common case: one key column whose text is its cell.
        self.simple_key = [columns[i].kind in (Kind.STRING, Kind.UUID) for i in self.key_at] == [True]
        self.text_at = [i for i, c in enumerate(columns) if c.kind not in _WITHOUT_TEXT]
        self.growing = [(c.name, growth.measure) for c in columns if (growth := growth_of(c)) is not None]
        keys = set(table.key_columns)
        self.value_at = [i for i, name in enumerate(names) if name not in keys]
        self.counters = (
            {c.name: column_reader(c) for c in columns if c.policy == "counter" or function_of(c.policy)}
            if kind is MutationType.UPDATE
            else {}
        )

    def read(self, row: value_pb2.Row, look_for_nul: bool) -> tuple[str, tuple[Cell, ...], dict[str, Cell]]:
        """Key text, key cells and given values of a row; of an update those beside the key."""
        given = row.values
        if len(given) != self.width:
            raise _Refuse(errors_pb2.REASON_INVALID_VALUE, f"a row has {len(given)} values for {self.width} columns")
        missing: list[int] = []
        # No call of ours for each value: this line runs for every value that a node ever writes.
        cells: list[Any] = [
            getattr(value, arm) if (has := _which(value, "kind")) == arm else None if has == "null_value" else _UNREAD
            for value, arm in zip(given, self.arms)  # noqa: B905 - their lengths are the same
        ]
        if _UNREAD in cells or not self.plain:
            cells, missing = self._slowly(given)
        if look_for_nul:
            for i in self.text_at:
                cell = cells[i]
                if (type(cell) is str and "\0" in cell) or (type(cell) in _HOLDING_TEXT and _has_nul(cell)):
                    text = f"column {_quoted(self.names[i])} holds text with a NUL character"
                    raise _Refuse(errors_pb2.REASON_NUL_IN_TEXT, text)
        key = (cells[self.key_at[0]],) if self.simple_key else tuple([cells[i] for i in self.key_at])
        if None in key:
            name = self.names[self.key_at[key.index(None)]]
            raise _Refuse(errors_pb2.REASON_INCOMPLETE_KEY, f"key column {_quoted(name)} is NULL or not given")
        for i in self.uuid_at:
            if not _UUID.fullmatch(str(cells[i])):
                raise _Refuse(errors_pb2.REASON_INVALID_VALUE, f"column {_quoted(self.names[i])} holds no uuid")
        text = key[0] if self.simple_key else key_text(key)
        if len(text) > _SURELY_SHORT and self.kind is MutationType.INSERT:
            size = len(text.encode())
            if size > limits.MAX_KEY_BYTES:
                text = f"a key's text has {size} bytes, and {limits.MAX_KEY_BYTES} at most may be inserted"
                raise _Refuse(errors_pb2.REASON_LIMIT_EXCEEDED, text)
        if self.kind is MutationType.DELETE:
            values: dict[str, Cell] = {}
        elif self.kind is MutationType.INSERT:
            values = dict(zip(self.names, cells))  # noqa: B905 - their lengths are the same
        else:
            values = {self.names[i]: cells[i] for i in self.value_at}
        for i in missing:
            values.pop(self.names[i], None)
        return text, key, values

    def _slowly(self, given: Sequence[value_pb2.Value]) -> tuple[list[Any], list[int]]:
        cells: list[Any] = []
        missing: list[int] = []
        for i, (read, value) in enumerate(zip(self.readers, given, strict=True)):
            try:
                cells.append(read(value))
            except NotGivenError:
                cells.append(None)
                missing.append(i)
            except _GeneratedGiven:
                text = f"column {_quoted(self.names[i])} is generated by the database"
                raise _Refuse(errors_pb2.REASON_GENERATED_COLUMN, text) from None
            except ValueError as error:
                text = f"column {_quoted(self.names[i])}: {error}"
                raise _Refuse(errors_pb2.REASON_INVALID_VALUE, text) from None
        for i in self.key_at:
            if type(cells[i]) is Literal:
                # Its text need not be the one that Postgres prints, by which rows are known.
                text = f"key column {_quoted(self.names[i])} takes a number of microseconds, not a moment in words"
                raise _Refuse(errors_pb2.REASON_INVALID_VALUE, text)
        return cells, missing

    def growth(self, values: Mapping[str, Cell]) -> int:
        """By how many bytes the values of a row grow."""
        grown = 0
        for name, measure in self.growing:
            cell = values.get(name)
            if cell is None:
                continue
            more = measure(cell)
            if more > limits.MAX_VALUE_BYTES:
                text = f"column {_quoted(name)}: {_grows('the value', limits.MAX_VALUE_BYTES)}"
                raise _Refuse(errors_pb2.REASON_LIMIT_EXCEEDED, text)
            grown += more
        return grown

    def before(self, undo: batch_pb2.Undo, row: int) -> dict[str, Cell] | None:
        """The device's old values of the row's counters and function-merged columns; None where it sent none."""
        if row >= len(undo.rows):
            return None
        shown: dict[str, Cell] = {}
        for name, value in zip(undo.columns, undo.rows[row].values, strict=False):
            read = self.counters.get(name)
            if read is None:
                continue
            try:
                shown[name] = read(value)
            except NotGivenError:
                continue
            except ValueError as error:
                text = f"column {_quoted(name)} of the undo: {error}"
                raise _Refuse(errors_pb2.REASON_INVALID_VALUE, text) from None
        return shown


class _GeneratedGiven(ValueError):
    pass


def _generated(value: value_pb2.Value) -> Cell:
    if value.WhichOneof("kind") is None:
        raise NotGivenError("the value is not given")
    raise _GeneratedGiven


def _has_nul(cell: Cell) -> bool:
    if isinstance(cell, str):
        return "\0" in cell
    return isinstance(cell, tuple) and any(_has_nul(c) for c in cell if c is not None)


def _grows(what: str, most: int) -> str:
    return f"{what} would grow by more than {most} bytes: a number with an exponent is stored with all of its digits"


def _quoted(name: str) -> str:
    return '"' + name[:80] + '"'


class Decoder:
    """Reads payloads for one database. ``stopped``: tables that can't be synced as they are, and why, in words."""

    __slots__ = ("_any_grow", "_grow_always", "_shapes", "_stopped", "_tables")

    def __init__(self, database: Database, stopped: Mapping[str, str] = _NONE) -> None:
        self._tables = database.tables
        self._stopped = stopped
        growths = [growth_of(column) for table in database.tables.values() for column in table.columns]
        self._any_grow = any(growths)
        self._grow_always = any(growth is not None and growth.always for growth in growths)
        self._shapes: dict[tuple[str, int, tuple[str, ...]], _Shape] = {}

    def decode(self, batch_id: str, payload: bytes) -> Decoded:
        """The batch in ``payload``. Never raises: a payload that can't be read gives a refusal."""
        try:
            message = batch_pb2.DbMutationBatch.FromString(payload)
            decoded = Decoded(ulid_time_ms(batch_id))
        except DecodeError:
            return Decoded(refusal=Refusal(errors_pb2.REASON_MALFORMED, "the payload is not a DbMutationBatch"))
        except ValueError:
            return Decoded(refusal=Refusal(errors_pb2.REASON_INVALID_ID, "the batch's id is not a ULID"))
        look_for_nul = b"\0" in payload
        look_for_growth = self._grow_always or (self._any_grow and MAY_GROW(payload) is not None)
        table = ""
        try:
            if not message.mutations:
                raise _Refuse(errors_pb2.REASON_EMPTY, "the batch has no mutation")
            for mutation in message.mutations:
                table = mutation.table
                self._read(mutation, decoded, look_for_nul, look_for_growth)
        except _Refuse as refused:
            # The mutation is the one after those that were read.
            refusal = Refusal(refused.reason, refused.message, len(decoded.mutations), table)
            return Decoded(decoded.time_ms, refusal=refusal)
        return decoded

    def _read(
        self, mutation: batch_pb2.DbMutation, decoded: Decoded, look_for_nul: bool, look_for_growth: bool
    ) -> None:
        table = mutation.table
        shape = self._shape(table, mutation.type, tuple(mutation.columns))
        if not mutation.rows:
            raise _Refuse(errors_pb2.REASON_EMPTY, "the mutation has no row")
        keys = decoded.keys
        rows: list[RowChange] = []
        read = shape.read
        undo: Callable[[int], dict[str, Cell] | None] | None = (
            (lambda row: shape.before(mutation.undo, row)) if shape.counters else None
        )
        for i, row in enumerate(mutation.rows):
            key, cells, values = read(row, look_for_nul)
            at = (table, key)
            if at in keys:
                decoded.twice = True
            else:
                keys[at] = cells
            rows.append(RowChange(key, values) if undo is None else RowChange(key, values, undo(i)))
            if look_for_growth and shape.growing:
                decoded.grown += shape.growth(values)
                if decoded.grown > limits.MAX_BATCH_BYTES:
                    text = _grows("the batch", limits.MAX_BATCH_BYTES)
                    raise _Refuse(errors_pb2.REASON_LIMIT_EXCEEDED, text)
        if shape.kind is not MutationType.INSERT:
            decoded.expects_rows = True
        decoded.mutations.append(Mutation(table, shape.kind, rows))

    def _shape(self, table: str, kind: int, names: tuple[str, ...]) -> _Shape:
        shape = self._shapes.get((table, kind, names))
        if shape is None:
            if kind not in _TYPES:
                raise _Refuse(errors_pb2.REASON_MALFORMED, f"there is no mutation type {kind}")
            if table in self._stopped:
                raise _Refuse(errors_pb2.REASON_TABLE_CHANGED, self._stopped[table])
            if table not in self._tables:
                raise _Refuse(errors_pb2.REASON_UNKNOWN_TABLE, f"there is no synced table {_quoted(table)}")
            shape = _Shape(self._tables[table], MutationType(kind), names)
            # Callers choose the column sets: so the number that is kept has a limit.
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[table, kind, names] = shape
        return shape
