"""The audiences of a restricted table's rows: Postgres evaluates the expression, one statement for many rows.

The expression is immutable, so that rows whose values it reads are equal have equal audiences: what was evaluated is
kept by those values, and most rows need no statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from anabranch.store.audiences.expression import Audience
from anabranch.store.cells.binary_cells import quote
from anabranch.store.group.rows_statements import sent_as
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Kind, Table
from anabranch.values.pieces import whole
from anabranch.values.postgres_binary import int8

Audiences: TypeAlias = tuple[str, ...]
"""A row's audiences, in the order of their bytes; none for a row that is nobody's."""
KEPT = 50_000
"""Rows' values whose audiences are kept for one table."""
AT_ONCE = 5_000
"""Rows that one statement evaluates."""
_NUMBER = "_DB_number"
_UNEQUAL = frozenset({Kind.DOUBLE, Kind.ARRAY})
"""Kinds whose cells may be equal in Python and different in Postgres (-0.0)."""


class RowAudiences:
    """The audience expression of one table. ``learn`` comes before ``of``: what it has evaluated is known until it is
    called again."""

    __slots__ = ("_audience", "_columns", "_key", "_known", "_name", "_texts")

    def __init__(self, table: Table, audience: Audience) -> None:
        self._audience = audience
        self._columns = [table.by_name[name] for name in audience.columns]
        self._name = table.name
        self._known: dict[tuple[Any, ...], Audiences] = {}
        self._texts: dict[tuple[str, ...], bytes] = {}
        self._key = _key_of(table, audience)

    def learn(self, conn: Connection, rows: Iterable[Sequence[Cell]]) -> None:
        """Evaluate the expression for ``rows``, as far as it was not yet.

        Raises:
            psycopg.Error: Postgres refused it for one of them.
        """
        wanted = {self._key(row): row for row in rows}
        unknown = [row for key, row in wanted.items() if key not in self._known]
        if len(self._known) + len(unknown) > KEPT:
            self._known = {key: self._known[key] for key in wanted if key in self._known}
        for first in range(0, len(unknown), AT_ONCE):
            some = unknown[first : first + AT_ONCE]
            for row, audiences in zip(some, self._evaluate(conn, some), strict=True):
                self._known[self._key(row)] = audiences

    def of(self, row: Sequence[Cell]) -> Audiences:
        """The audiences of a row that was learned. KeyError for one that was not."""
        return self._known[self._key(row)]

    def known(self, row: Sequence[Cell]) -> Audiences | None:
        """The audiences of a row, None where they were not learned."""
        return self._known.get(self._key(row))

    def reads(self, names: Iterable[str]) -> bool:
        """Whether the expression reads any of these columns."""
        return not set(self._audience.columns).isdisjoint(names)

    def reads_only(self, names: Iterable[str]) -> bool:
        """Whether the expression reads no other columns than these."""
        return set(self._audience.columns) <= set(names)

    def _evaluate(self, conn: Connection, rows: Sequence[Sequence[Cell]]) -> list[Audiences]:
        columns = self._columns
        cells = [self._key(row)[: len(columns)] for row in rows]
        values: list[tuple[Any, ...]] = list(zip(*cells, strict=True)) if columns else []
        sent = sent_as(columns, values, "c")
        shape = tuple(one.sender.array_type for one in sent)
        text = self._texts.get(shape)
        if text is None:
            arrays = "".join(f"unnest(${i}::{one.sender.array_type}), " for i, one in enumerate(sent, 1))
            aliases = "".join(f"{one.alias}, " for one in sent)
            selected = "".join(f"{one.typed} as {quote(one.column.name)}, " for one in sent)
            text = self._texts[shape] = (
                f"select {self._audience.as_list} from (select {selected}v.number as {quote(_NUMBER)} "
                f"from rows from ({arrays}generate_series(1, ${len(sent) + 1}::int8)) as v ({aliases}number)"
                f") as {quote(self._name)} "
                f"order by {quote(_NUMBER)}"
            ).encode()
        parameters = [one.sender.build(column) for one, column in zip(sent, values, strict=True)]
        found = run(conn, text, [*parameters, int8(len(rows))]).fetchall()
        return [tuple(audiences) for (audiences,) in found]


def audiences_of(conn: Connection, table: Table, audience: Audience, rows: Sequence[Sequence[Cell]]) -> list[Audiences]:
    """The audiences of each of the rows, in their order; no table is read. Raises psycopg.DataError where the
    expression fails for a row."""
    audiences = RowAudiences(table, audience)
    found: list[Audiences] = []
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        audiences.learn(conn, some)
        found += map(audiences.of, some)
    return found


def _key_of(table: Table, audience: Audience) -> Callable[[Sequence[Cell]], tuple[Any, ...]]:
    """The function that gives the values that an expression reads, and behind them, for those that may be equal and
    not the same, their text."""
    places = [table.index[name] for name in audience.columns]
    unequal = [place for place in places if table.columns[place].kind in _UNEQUAL]

    def key(row: Sequence[Cell]) -> tuple[Any, ...]:
        return tuple(whole([row[i] for i in places]) + [repr(row[i]) for i in unequal])

    return key
