"""The difference that DDL has made to a table, from its registration to now, by the markers that wait. No I/O.

Columns are matched by their numbers, which Postgres gives once for as long as a table is there; by their names where
the table's oid is another one, as after a dump was restored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.store.ddl.markers import Marker
from anabranch.store.ddl.shapes import Shape
from anabranch.values import Column, Table
from anabranch.values.postgres_types import Types
from anabranch.values.table import FormerColumn


@dataclass(frozen=True)
class Registered:
    """A table as it is registered: its columns by identity, the shape that they were read from, and the table's oid
    then (0: not known)."""

    table: Table
    shape: Shape
    relation: int


@dataclass(frozen=True)
class TableChange:
    """One table's part of a schema change. ``before``: None for a table that is new. ``after``: None for one that is
    gone. Columns go by their identities. ``after.id`` is the number of the registration, that of ``before`` unless it
    is ``pulled``.

    ``added`` are the columns that are new, those that a retyped one became included; ``dropped`` those that are gone,
    with their successors. ``renamed``: by identity, the names in SQL before and after; "" stands for the table.
    ``rewritten``: the columns whose values, in rows that are there, are to be read from the table and sent.
    ``recount``: the table's sum has to be computed anew, since a column went.

    ``pulled``: why the table can't go on and has to be pulled anew; ``refused``: why it can't be synced as it is now,
    and is set aside as it was registered. Both "" where it goes on. ``texts`` say it for people, change by change.

    ``shape`` and ``relation`` are those of the last of ``markers``."""

    before: Table | None
    after: Table | None
    added: tuple[Column, ...] = ()
    dropped: tuple[FormerColumn, ...] = ()
    renamed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rewritten: frozenset[str] = frozenset()
    recount: bool = False
    pulled: str = ""
    refused: str = ""
    texts: tuple[str, ...] = ()
    shape: Shape | None = None
    relation: int = 0
    markers: tuple[Marker, ...] = ()

    @property
    def number(self) -> int:
        """The number of the registration that the markers name."""
        return self.before.id if self.before is not None else self.after.id if self.after is not None else 0


def difference(
    registered: Registered, markers: Sequence[Marker], types: Types, *, position: int, synced: Collection[str] = ()
) -> TableChange:
    """The meaning of the markers of one table, in their order, at least one. ``types``: those of the columns of the
    last marker's shape, and all that they are made of. ``position``: that of the schema change. ``synced``: the names
    in SQL of the database's other tables."""
    raise NotImplementedError
