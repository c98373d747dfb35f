"""The audiences of a restricted table's rows: Postgres evaluates the expression, one statement for many rows.

The expression is immutable, so that rows whose values it reads are equal have equal audiences: what was evaluated is
kept by those values, and most rows need no statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import filterfalse
from operator import itemgetter
from typing import Any, TypeAlias

from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.our_path import our_path
from anabranch.store.audiences.rules import is_audience
from anabranch.store.cells.binary_cells import quote
from anabranch.store.group.rows_statements import Sent, sent_as
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Kind, Table
from anabranch.values.pieces import whole
from anabranch.values.postgres_binary import int8

Audiences: TypeAlias = tuple[str, ...]
"""A row's audiences, in the order of their bytes; none for a row that is nobody's."""
Key: TypeAlias = tuple[Any, ...]
KEPT = 50_000
"""Rows' values whose audiences are kept for one table."""
AT_ONCE = 5_000
"""Rows that one statement evaluates."""
_NUMBER = "_DB_number"
_UNEQUAL = frozenset({Kind.DOUBLE, Kind.ARRAY})
"""Kinds whose cells may be equal in Python and different in Postgres (-0.0)."""


class RowAudiences:
    """The audience expression of one table. ``learn`` comes before ``of``: what it has evaluated is known until it is
    called again. A *key* is what the expression reads of a row."""

    __slots__ = (
        "_audience",
        "_columns",
        "_key_of_values",
        "_known",
        "_name",
        "_places",
        "_repeat",
        "_same",
        "_texts",
        "key",
        "reads",
    )

    def __init__(self, table: Table, audience: Audience) -> None:
        self._audience = audience
        self._columns = [table.by_sql_name[name] for name in audience.columns]
        names = [column.name for column in self._columns]
        self._places = [table.index[name] for name in names]
        # Cells that may be equal and not the same are told apart by their text, which stands behind the others.
        self._repeat = [i for i, column in enumerate(self._columns) if column.kind in _UNEQUAL]
        self._name = table.sql_name
        self._known: dict[Key, Audiences] = {}
        # Equal audiences are one object: there are far fewer of them than rows.
        self._same: dict[Audiences, Audiences] = {}
        self._texts: dict[tuple[str, ...], bytes] = {}
        self.key: Callable[[Sequence[Cell]], Key] = self._getter(self._places)
        """The key of a row."""
        self._key_of_values: Callable[[Mapping[str, Cell]], Key] = self._getter(names)
        self.reads = frozenset(names)
        """The identities of the columns that the expression reads."""

    def _getter(self, places: Sequence[Any]) -> Callable[[Any], Key]:
        if not places:
            return lambda cells: ()
        if self._repeat:
            return lambda cells: self._told_apart([cells[i] for i in places])
        # An itemgetter of one place gives the cell alone, which is no key.
        return itemgetter(*places) if len(places) > 1 else itemgetter(places[0], places[0])

    def keys_of(self, columns: Sequence[Sequence[Cell]]) -> list[Key]:
        """The keys of rows, of which the columns that the expression reads are given, in the table's order."""
        return list(map(self._getter(range(len(columns))), zip(*columns, strict=True)))

    def _told_apart(self, cells: list[Cell]) -> Key:
        return (*cells, *(repr(cells[i]) for i in self._repeat))

    def keys_of_new(self, rows: Iterable[Mapping[str, Cell]]) -> list[Key]:
        """The keys of rows as they will be with these values, which are of the same columns; none where they do not say
        it."""
        try:
            return list(map(self._key_of_values, rows))
        except KeyError:
            return []

    def key_with(self, there: Sequence[Cell], values: Mapping[str, Cell]) -> Key:
        """The key of a row as it will be with ``values``, and for the rest as it is ``there``."""
        before = {column.name: there[place] for column, place in zip(self._columns, self._places, strict=True)}
        return self._key_of_values({**before, **values})

    def learn(self, conn: Connection, rows: Iterable[Sequence[Cell]]) -> None:
        """Evaluate the expression for ``rows``, as far as it was not yet.

        Raises:
            psycopg.Error: Postgres refused it for one of them.
        """
        self.learn_keys(conn, list(map(self.key, rows)))

    def of_all(self, conn: Connection, rows: Iterable[Sequence[Cell]]) -> list[Audiences]:
        """The audiences of each of the rows, in their order: ``learn``, and ``of`` for each. No table is read. Raises
        as the first."""
        keys = list(map(self.key, rows))
        self.learn_keys(conn, keys)
        return list(map(self._known.__getitem__, keys))

    def learn_keys(self, conn: Connection, keys: Sequence[Key]) -> None:
        """``learn`` for keys. Raises as that."""
        unknown = list(set(filterfalse(self._known.__contains__, keys)))
        if len(self._known) + len(unknown) > KEPT:
            self._known = {key: self._known[key] for key in set(keys) if key in self._known}
            self._same.clear()
        for first in range(0, len(unknown), AT_ONCE):
            some = unknown[first : first + AT_ONCE]
            found = [self._same.setdefault(audiences, audiences) for audiences in self._evaluate(conn, some)]
            self._known.update(zip(some, found, strict=True))

    def of(self, row: Sequence[Cell]) -> Audiences:
        """The audiences of a row that was learned. KeyError for one that was not."""
        return self._known[self.key(row)]

    def known(self, row: Sequence[Cell]) -> Audiences | None:
        """The audiences of a row, None where they were not learned."""
        return self._known.get(self.key(row))

    def at(self, key: Key) -> Audiences | None:
        """The audiences of a row with this key, None where they were not learned."""
        return self._known.get(key)

    def expected(self, there: Sequence[Cell] | None, values: Mapping[str, Cell]) -> Audiences | None:
        """The audiences of a row as it will be with ``values``, and for the rest as it is ``there``; None where that
        does not say it, or they were not learned."""
        try:
            return self._known.get(self._key_of_values(values) if there is None else self.key_with(there, values))
        except KeyError:
            return None

    def _evaluate(self, conn: Connection, keys: Sequence[Key]) -> list[Audiences]:
        columns = self._columns
        cells = [whole(key[: len(columns)]) for key in keys]
        values: list[tuple[Any, ...]] = list(zip(*cells, strict=True)) if columns else []
        sent = sent_as(columns, values, "c")
        parameters = [one.sender.build(column) for one, column in zip(sent, values, strict=True)]
        with our_path(conn):
            found = run(conn, self._text(sent), [*parameters, int8(len(keys))]).fetchall()
        if self._audience.is_list:
            return [tuple(audiences) for (audiences,) in found]
        return [(audience,) if audience and is_audience(audience) else () for (audience,) in found]

    def _text(self, sent: Sequence[Sent]) -> bytes:
        shape = tuple(one.sender.array_type for one in sent)
        statement = self._texts.get(shape)
        if statement is None:
            arrays = "".join(f"unnest(${i}::{one.sender.array_type}), " for i, one in enumerate(sent, 1))
            aliases = "".join(f"{one.alias}, " for one in sent)
            selected = "".join(f"{one.typed} as {quote(one.column.sql_name)}, " for one in sent)
            of_row = self._audience.as_list if self._audience.is_list else f"({self._audience.expression})::text"
            statement = self._texts[shape] = (
                f"select {of_row} from (select {selected}v.number as {quote(_NUMBER)} "
                f"from rows from ({arrays}generate_series(1, ${len(sent) + 1}::int8)) as v ({aliases}number)"
                f") as {quote(self._name)} order by {quote(_NUMBER)}"
            ).encode()
        return statement
