"""Payloads to batches as the rules take them: tables and columns found, values read, keys made.

A ``Decoder`` belongs to one database at one schema version. It keeps the way to read each (table, type, columns) that
it has met, so that a row costs a call for each value and no look-up.

A batch may be older than the tables are. It names tables and columns by their identities, so that renames change
nothing for it (``named_columns``). A value for a column that was retyped is read as that column was, and waits to be
cast (``carried``); one for a column that is gone is taken out and kept as lost.
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
from anabranch.store.group.named_columns import UnknownColumnError, named_columns, quoted
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2
from anabranch.values import Cell, Column, Kind, Table, key_text
from anabranch.values.cells import Literal
from anabranch.values.growth import MAY_GROW, growth_of
from anabranch.values.messages import ARMS, NotGivenError, Reader, column_reader
from anabranch.values.table import FormerColumn

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
class GoneValue:
    """A value for a column that is gone; ``mutation`` is the place of the change that gave it."""

    mutation: int
    table: str
    key: str
    former: FormerColumn
    value: Cell


@dataclass(slots=True)
class Uncast:
    """A value for a column that was retyped since, of one row of a mutation. It becomes a value of the last one of
    ``ways``, the columns that it became one after the other, and then stands in ``values``."""

    mutation: int
    table: str
    values: dict[str, Cell]
    former: Column
    ways: tuple[Column, ...]
    cell: Cell


@dataclass(slots=True)
class Decoded:
    """A batch, read. ``keys`` holds the key's cells of every row that it touches; ``twice``: it touches one of them
    more than once; ``expects_rows``: those that it updates or deletes. ``grown``: how many bytes more its values have
    where Postgres prints them. ``uncast`` and ``lost``: values for columns that were retyped since, or are gone;
    ``emptied``: updates that gave values for gone columns only, with these. With ``refusal`` the rest is empty."""

    time_ms: int = 0
    mutations: list[Mutation] = field(default_factory=list)
    keys: dict[RowKey, tuple[Cell, ...]] = field(default_factory=dict)
    twice: bool = False
    expects_rows: bool = False
    grown: int = 0
    uncast: list[Uncast] = field(default_factory=list)
    lost: list[GoneValue] = field(default_factory=list)
    emptied: dict[int, tuple[str, ...]] = field(default_factory=dict)
    refusal: Refusal | None = None


class _Shape:
    """Reads the rows of one table that a mutation of one type gives with certain columns."""

    __slots__ = (
        "arms",
        "called",
        "counters",
        "emptied",
        "former",
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

    def __init__(self, table: Table, kind: MutationType, given: tuple[str, ...]) -> None:
        try:
            columns, former = named_columns(table, given)
        except UnknownColumnError as error:
            raise _Refuse(errors_pb2.REASON_UNKNOWN_COLUMN, str(error)) from None
        names = tuple([column.name for column in columns])
        for name in table.key_columns:
            if name not in names:
                text = f"key column {quoted(table.by_name[name].sql_name)} is not given"
                if any(ways and ways[-1].name == name for _, ways in former):
                    text += ": what is given is of the type that it had before the table's key was changed"
                raise _Refuse(errors_pb2.REASON_INCOMPLETE_KEY, text)
        if kind is MutationType.DELETE and len(names) != len(table.key_columns):
            raise _Refuse(errors_pb2.REASON_INVALID_COLUMNS, "a delete names columns beside the key's")
        self.former = former
        gone = tuple([one.column.name for one, ways in former if not ways])
        only_gone = kind is MutationType.UPDATE and len(gone) + len(table.key_columns) == len(names)
        self.emptied = gone if only_gone else ()
        self.table = table
        self.kind = kind
        self.names = names
        self.called = [column.sql_name for column in columns]
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
                    text = f"column {quoted(self.called[i])} holds text with a NUL character"
                    raise _Refuse(errors_pb2.REASON_NUL_IN_TEXT, text)
        key = (cells[self.key_at[0]],) if self.simple_key else tuple([cells[i] for i in self.key_at])
        if None in key:
            name = self.called[self.key_at[key.index(None)]]
            raise _Refuse(errors_pb2.REASON_INCOMPLETE_KEY, f"key column {quoted(name)} is NULL or not given")
        for i in self.uuid_at:
            if not _UUID.fullmatch(str(cells[i])):
                raise _Refuse(errors_pb2.REASON_INVALID_VALUE, f"column {quoted(self.called[i])} holds no uuid")
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
                text = f"column {quoted(self.called[i])} is generated by the database"
                raise _Refuse(errors_pb2.REASON_GENERATED_COLUMN, text) from None
            except ValueError as error:
                text = f"column {quoted(self.called[i])}: {error}"
                raise _Refuse(errors_pb2.REASON_INVALID_VALUE, text) from None
        for i in self.key_at:
            if type(cells[i]) is Literal:
                # Its text need not be the one that Postgres prints, by which rows are known.
                text = f"key column {quoted(self.called[i])} takes a number of microseconds, not a moment in words"
                raise _Refuse(errors_pb2.REASON_INVALID_VALUE, text)
        return cells, missing

    def take_former(self, decoded: Decoded, key: str, values: dict[str, Cell]) -> None:
        """Take the values for columns that are former ones out of a row of the mutation that is read."""
        number, table = len(decoded.mutations), self.table.name
        for former, ways in self.former:
            name = former.column.name
            if name not in values:
                continue
            cell = values.pop(name)
            if ways:
                decoded.uncast.append(Uncast(number, table, values, former.column, ways, cell))
            elif cell is not None or self.kind is MutationType.UPDATE:
                # A row that is inserted without a value for it has lost nothing.
                decoded.lost.append(GoneValue(number, table, key, former, cell))

    def growth(self, values: Mapping[str, Cell]) -> int:
        """By how many bytes the values of a row grow."""
        grown = 0
        for name, measure in self.growing:
            cell = values.get(name)
            if cell is None:
                continue
            more = measure(cell)
            if more > limits.MAX_VALUE_BYTES:
                text = f"column {quoted(name)}: {_grows('the value', limits.MAX_VALUE_BYTES)}"
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
                text = f"column {quoted(name)} of the undo: {error}"
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


class Decoder:
    """Reads payloads for one database. ``stopped``: tables that can't be synced as they are, and why, in words."""

    __slots__ = ("_any_grow", "_gone", "_grow_always", "_identities", "_shapes", "_stopped", "_tables")

    def __init__(self, database: Database, stopped: Mapping[str, str] = _NONE) -> None:
        self._tables = database.tables
        self._identities = {table.sql_name: name for name, table in self._tables.items()}
        self._gone = database.gone
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
        shape = self._shape(mutation.table, mutation.type, tuple(mutation.columns))
        table = shape.table.name
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
            if shape.former:
                shape.take_former(decoded, key, values)
        if shape.kind is not MutationType.INSERT:
            decoded.expects_rows = True
        if shape.emptied:
            decoded.emptied[len(decoded.mutations)] = shape.emptied
        decoded.mutations.append(Mutation(table, shape.kind, rows))

    def _shape(self, table: str, kind: int, names: tuple[str, ...]) -> _Shape:
        shape = self._shapes.get((table, kind, names))
        if shape is None:
            if kind not in _TYPES:
                raise _Refuse(errors_pb2.REASON_MALFORMED, f"there is no mutation type {kind}")
            is_identity = table in self._tables or table in self._gone
            identity = table if is_identity else self._identities.get(table, table)
            if identity in self._stopped:
                raise _Refuse(errors_pb2.REASON_TABLE_CHANGED, self._stopped[identity])
            if identity not in self._tables:
                raise _Refuse(errors_pb2.REASON_UNKNOWN_TABLE, f"there is no synced table {quoted(table)}")
            shape = _Shape(self._tables[identity], MutationType(kind), names)
            # Callers choose the column sets: so the number that is kept has a limit.
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[table, kind, names] = shape
        return shape
