"""Columns and tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from anabranch.values.cells import Cell
from anabranch.values.kinds import Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a synced table. ``name`` is its identity: the name that it was registered by, which outlives renames
    and has one kind for ever; log, batches, sums and files know it by this one. ``renamed`` is its name in SQL where
    that is another one by now (``sql_name``). ``postgres_type`` is what ``format_type`` prints; ``policy`` names the
    column's conflict policy ("lww" by default). ``base_type`` is the type below a domain, without a modifier, as the
    server's catalog has it today; "" where the type is no domain, and where the catalog was not read.

    ``initial`` belongs to a column that was added to a table: one cell, which the rows have that were there before it.
    That cell is left out of a row's canonical encoding. Empty for a column that was there at registration.
    ``added_position``: the position of the schema change that added it, else 0. ``number``: Postgres's attribute
    number, 0 on a device.
    """

    name: str
    kind: Kind
    postgres_type: str
    element_kind: Kind | None = None
    not_null: bool = False
    generated: bool = False
    has_default: bool = False
    policy: str = "lww"
    base_type: str = field(default="", compare=False)
    renamed: str = ""
    initial: tuple[Cell, ...] = ()
    added_position: int = 0
    number: int = field(default=0, compare=False)

    @property
    def sql_name(self) -> str:
        """The column's name in SQL today."""
        return self.renamed or self.name


@dataclass(frozen=True, slots=True)
class FormerColumn:
    """A column that a table had: dropped, or retyped into another kind by the change at ``dropped_position``.
    ``column`` is as it was last. ``successor``: the identity of the column that it was retyped into, else ""."""

    column: Column
    dropped_position: int
    successor: str = ""


@dataclass(frozen=True)
class Table:
    """A synced table. ``name`` is its identity, which outlives renames; ``renamed`` its name in SQL where that is
    another one by now (``sql_name``). ``id`` is the server's number for it (0 on a device); ``key_columns`` are in the
    key's order. ``former``: the columns that it had, in the order in which they went."""

    name: str
    columns: tuple[Column, ...]
    key_columns: tuple[str, ...]
    id: int = 0
    renamed: str = ""
    former: tuple[FormerColumn, ...] = field(default=(), compare=False)
    by_name: dict[str, Column] = field(init=False, repr=False, compare=False)
    by_sql_name: dict[str, Column] = field(init=False, repr=False, compare=False)
    index: dict[str, int] = field(init=False, repr=False, compare=False)
    key_index: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {c.name: c for c in self.columns})
        object.__setattr__(self, "by_sql_name", {c.sql_name: c for c in self.columns})
        object.__setattr__(self, "index", {c.name: i for i, c in enumerate(self.columns)})
        object.__setattr__(self, "key_index", tuple(self.index[k] for k in self.key_columns))

    @property
    def sql_name(self) -> str:
        """The table's name in SQL today."""
        return self.renamed or self.name

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    def find(self, name: str) -> Column | None:
        """The column that people mean by ``name``: the one that is called so today, else the one of that identity."""
        return self.by_sql_name.get(name) or self.by_name.get(name)

    def in_sql(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names in SQL of the columns with these identities."""
        return tuple([self.by_name[name].sql_name for name in names])


def has_zone(column: Column) -> bool:
    """Whether a TIMESTAMP column counts in UTC; a domain's column does, since the domain's text does not say it. Under
    TimeZone UTC the two convert into each other unchanged, so that a domain over either may take either."""
    return not column.postgres_type.endswith("without time zone")
