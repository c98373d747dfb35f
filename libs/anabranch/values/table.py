"""Columns and tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.values.kinds import Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a synced table. ``postgres_type`` is what ``format_type`` prints; ``policy`` names the column's
    conflict policy ("lww" by default). ``base_type`` is the type below a domain, without a modifier, as the server's
    catalog has it today; "" where the type is no domain, and where the catalog was not read."""

    name: str
    kind: Kind
    postgres_type: str
    element_kind: Kind | None = None
    not_null: bool = False
    generated: bool = False
    has_default: bool = False
    policy: str = "lww"
    base_type: str = field(default="", compare=False)


@dataclass(frozen=True)
class Table:
    """A synced table. ``id`` is the server's number for it (0 on a device); ``key_columns`` are in the key's order."""

    name: str
    columns: tuple[Column, ...]
    key_columns: tuple[str, ...]
    id: int = 0
    by_name: dict[str, Column] = field(init=False, repr=False, compare=False)
    index: dict[str, int] = field(init=False, repr=False, compare=False)
    key_index: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {c.name: c for c in self.columns})
        object.__setattr__(self, "index", {c.name: i for i, c in enumerate(self.columns)})
        object.__setattr__(self, "key_index", tuple(self.index[k] for k in self.key_columns))

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)


def has_zone(column: Column) -> bool:
    """Whether a TIMESTAMP column counts in UTC; a domain's column does, since the domain's text does not say it. Under
    TimeZone UTC the two convert into each other unchanged, so that a domain over either may take either."""
    return not column.postgres_type.endswith("without time zone")
