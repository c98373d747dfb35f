"""The SQL of set statements on one synced table, and the parameters that go with it.

Every statement takes one array for each column and joins or inserts their rows (``unnest``). The row variables are
``v`` for the sent rows and ``t`` for the table; sent columns are ``v.k1…`` (the key) and ``v.c1…`` (values).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.store.cells.binary_cells import (
    CellSender,
    carried_type,
    is_built_in,
    literal_sender,
    quote,
    read_expression,
    sender,
)
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.cells import Literal
from anabranch.values.postgres_binary import Parameter

KEPT = 1_000
"""Statement texts kept for one table; writers choose the sets of columns, and there are more of those than of rows."""
Cells = Sequence[Cell]
"""One column: a cell for each row."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A column as sent: the table's column, its name in ``v``, and the sender of its cells."""

    column: Column
    alias: str
    sender: CellSender

    @property
    def expression(self) -> str:
        return f"v.{self.alias}{self.sender.cast}"

    @property
    def typed(self) -> str:
        """The expression, of the column's own type: what is sent may be wider, and no function may take that."""
        return self.expression if self.sender.cast else f"{self.expression}::{carried_type(self.column)}"

    @property
    def condition(self) -> str:
        return f"{self.held_in('t', self.column.sql_name)} = {self.expression}"

    def held_in(self, relation: str, name: str) -> str:
        """A column, by its name in SQL, that the sent values are compared with. A domain over an enumeration has no
        operators of its own; the cast that gives it some is none to an index."""
        carried = carried_type(self.column)
        cast = f"::{carried}" if self.column.base_type and not is_built_in(carried) else ""
        return f"{relation}.{quote(name)}{cast}"


class Statements:
    """SQL of one table. Texts are made once for each set of columns and kept, up to KEPT of them."""

    __slots__ = ("_columns", "_kept", "_key", "_read", "_read_key", "_table")

    def __init__(self, schema_name: str, table: Table) -> None:
        self._table = f"{quote(schema_name)}.{quote(table.sql_name)}"
        self._columns = table.by_name
        self._key = [
            Sent(column, f"k{i}", sender(column))
            for i, column in enumerate((table.by_name[name] for name in table.key_columns), 1)
        ]
        self._read = ", ".join(read_expression(column, "t") for column in table.columns)
        self._read_key = ", ".join(read_expression(sent.column, "t") for sent in self._key)
        self._kept: dict[object, bytes] = {}

    def _text(self, name: object, make: Callable[[], str]) -> bytes:
        """The kept text of that name, made when it is first asked for."""
        text = self._kept.get(name)
        if text is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            text = self._kept[name] = make().encode()
        return text

    def _sent(self, names: Sequence[str], values: Sequence[Cells]) -> list[Sent]:
        """How the columns ``names`` are sent, given their cells."""
        return sent_as([self._columns[name] for name in names], values, "c")

    def lock(self, keys: Sequence[Cells]) -> tuple[bytes, list[Parameter]]:
        """Rows by key, locked, without those that another transaction holds."""
        return self._text("lock", lambda: self._select(self._read, " for update skip locked")), self._keys(keys)

    def read(self, keys: Sequence[Cells]) -> tuple[bytes, list[Parameter]]:
        """Rows by key."""
        return self._text("read", lambda: self._select(self._read, " offset 0")), self._keys(keys)

    def present(self, keys: Sequence[Cells]) -> tuple[bytes, list[Parameter]]:
        """The keys among ``keys`` that have a row."""
        return self._text("present", lambda: self._select(self._read_key, " offset 0")), self._keys(keys)

    def _select(self, expressions: str, tail: str) -> str:
        # A lateral subquery that can't be pulled up (it locks, or has an OFFSET) is run by the index for each key,
        # whatever the statistics say; keys are sent in order, so that rows are locked in order.
        where = " and ".join(sent.condition for sent in self._key)
        return (
            f"select r.* from {_rows(self._key, 1)} "
            f"cross join lateral (select {expressions} from {self._table} as t where {where}{tail}) as r"
        )

    def _keys(self, keys: Sequence[Cells]) -> list[Parameter]:
        return [sent.sender.build(cells) for sent, cells in zip(self._key, keys, strict=True)]

    def insert(self, names: tuple[str, ...], values: Sequence[Cells]) -> tuple[bytes, list[Parameter]]:
        """Insert rows with cells for the columns ``names``. An identity column takes the sent value, too."""
        sent = self._sent(names, values)

        def make() -> str:
            into = ", ".join(quote(s.column.sql_name) for s in sent)
            select = ", ".join(s.expression for s in sent)
            return (
                f"insert into {self._table} as t ({into}) overriding system value "
                f"select {select} from {_rows(sent, 1)} returning {self._read}"
            )

        return self._text(("insert", _shape(sent)), make), _build(sent, values)

    def update(
        self,
        names: tuple[str, ...],
        keys: Sequence[Cells],
        values: Sequence[Cells],
        defaults: tuple[str, ...] = (),
    ) -> tuple[bytes, list[Parameter]]:
        """Set the columns ``names`` of rows by key; the columns ``defaults`` get their default."""
        sent = self._sent(names, values)

        def make() -> str:
            sets = ", ".join(
                [f"{quote(s.column.sql_name)} = {s.expression}" for s in sent]
                + [f"{quote(self._columns[name].sql_name)} = default" for name in defaults]
            )
            where = " and ".join(s.condition for s in self._key)
            return (
                f"update {self._table} as t set {sets} from {_rows([*self._key, *sent], 1)} "
                f"where {where} returning {self._read}"
            )

        return self._text(("update", _shape(sent), defaults), make), [*self._keys(keys), *_build(sent, values)]

    def delete(self, keys: Sequence[Cells]) -> tuple[bytes, list[Parameter]]:
        """Delete rows by key."""

        def make() -> str:
            where = " and ".join(s.condition for s in self._key)
            return (
                f"delete from {self._table} as t using {_rows(self._key, 1)} where {where} returning {self._read_key}"
            )

        return self._text("delete", make), self._keys(keys)


def sent_as(columns: Sequence[Column], values: Sequence[Cells], letter: str) -> list[Sent]:
    """How columns are sent, given their cells; each has a name in ``v`` of ``letter`` and its number."""
    sent = []
    for i, (column, cells) in enumerate(zip(columns, values, strict=True), 1):
        literal = column.kind is Kind.TIMESTAMP and Literal in map(type, cells)
        sent.append(Sent(column, f"{letter}{i}", literal_sender(column) if literal else sender(column)))
    return sent


def _shape(sent: Sequence[Sent]) -> tuple[tuple[str, str], ...]:
    """The part of a kept text's name that differs between two sets of columns."""
    return tuple((s.column.name, s.sender.array_type) for s in sent)


def _rows(sent: Sequence[Sent], first: int) -> str:
    arrays = ", ".join(f"${first + i}::{s.sender.array_type}" for i, s in enumerate(sent))
    return f"unnest({arrays}) as v ({', '.join(s.alias for s in sent)})"


def _build(sent: Sequence[Sent], values: Sequence[Cells]) -> list[Parameter]:
    return [s.sender.build(cells) for s, cells in zip(sent, values, strict=True)]
