"""The shape of a table: its columns at one moment, as far as rows, their images and their values depend on them.

``anabranch.shape_of`` (migration 0024) makes a shape as JSON; it is kept with a registration, in markers, and of older
images in ``anabranch.captured_shapes``. Of the type of each column it has, beside its name, all that can change while
the type keeps its number: the labels of an enumeration, the attributes of a composite type, a domain's base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from anabranch.values import Column, Table

_TEXT = 25


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """A column. ``number`` is its attnum; ``type`` is what ``format_type`` prints, ``type_oid`` and ``modifier`` say
    the same in numbers. ``generated`` and ``identity`` are pg_attribute's letters. ``default`` is a hash of the text of
    its default, or of the expression that generates it; "" without one. ``missing``: the text of the constant that rows
    have which were there before it, None where that is NULL, or is not known. ``textual``: its type has no binary form,
    so that images hold it as text. ``deep``: what its type is made of, None for a type that can't change."""

    number: int
    name: str
    type: str
    type_oid: int
    modifier: int = -1
    not_null: bool = False
    generated: str = ""
    identity: str = ""
    default: str = ""
    missing: str | None = None
    textual: bool = False
    deep: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Shape:
    """The columns of a table in the order of their numbers, and the numbers of its key's columns in the key's order.
    ``behind``: the table had more columns already when this was written down, whose values nobody has sent."""

    columns: tuple[ShapeColumn, ...]
    key: tuple[int, ...]
    behind: bool = False

    @cached_property
    def by_number(self) -> Mapping[int, ShapeColumn]:
        """The columns by their numbers."""
        return {column.number: column for column in self.columns}

    @cached_property
    def by_name(self) -> Mapping[str, ShapeColumn]:
        """The columns by their names in SQL."""
        return {column.name: column for column in self.columns}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Shape:
        """A shape as ``anabranch.shape_of`` makes it."""
        missing: Mapping[str, str] = kept.get("missing") or {}
        return cls(tuple(_columns(kept["columns"], missing)), tuple(kept["key"]), bool(kept.get("behind")))

    def to_json(self) -> dict[str, Any]:
        """The shape as ``anabranch.shape_of`` makes it."""
        missing = {str(c.number): c.missing for c in self.columns if c.missing is not None}
        return {
            "columns": [_kept(c) for c in self.columns],
            "key": list(self.key),
            **({"missing": missing} if missing else {}),
            **({"behind": True} if self.behind else {}),
        }


def is_like(one: Shape, other: Shape) -> bool:
    """Whether two shapes are the same but for the constants of older rows, which Postgres forgets."""
    plain = (tuple(replace(c, missing=None) for c in shape.columns) for shape in (one, other))
    return one.key == other.key and next(plain) == next(plain)


def _kept(c: ShapeColumn) -> dict[str, Any]:
    """As JSON, without what most columns lack."""
    further: dict[str, Any] = {
        "nn": c.not_null, "gen": c.generated, "id": c.identity, "def": c.default, "textual": c.textual, "deep": c.deep
    }  # fmt: skip
    kept = {"n": c.number, "name": c.name, "type": c.type, "oid": c.type_oid}
    if c.modifier != -1:
        kept["mod"] = c.modifier
    return kept | {name: value for name, value in further.items() if value}


def _columns(kept: list[Mapping[str, Any]], missing: Mapping[str, str]) -> Iterator[ShapeColumn]:
    for c in kept:
        yield ShapeColumn(
            number=c["n"],
            name=c["name"],
            type=c["type"],
            type_oid=c["oid"],
            modifier=c.get("mod", -1),
            not_null=c.get("nn", False),
            generated=c.get("gen", ""),
            identity=c.get("id", ""),
            default=c.get("def", ""),
            missing=missing.get(str(c["n"])),
            textual=c.get("textual", False),
            deep=c.get("deep"),
        )


def shape_of_columns(table: Table, like: Shape | None) -> Shape:
    """The shape of a table of which none was kept, as far as its columns tell. ``like``: a later one, whose columns of
    the same type they may be."""
    columns = [_column_of(column, like) for column in table.columns]
    by_name = {column.name: column.number for column in columns}
    key = tuple(by_name[table.by_name[name].sql_name] for name in table.key_columns)
    return Shape(tuple(columns), key, behind=True)


def _column_of(column: Column, like: Shape | None) -> ShapeColumn:
    found = None if like is None else like.by_number.get(column.number) or like.by_name.get(column.sql_name)
    if found is not None and found.type == column.postgres_type:
        return replace(found, name=column.sql_name, missing=None)
    number = column.number or (0 if found is None else found.number)
    return ShapeColumn(number, column.sql_name, column.postgres_type, 0, not_null=column.not_null)


@dataclass(frozen=True, slots=True)
class ImageColumn:
    """A column of row images. ``oid`` stands before its values there: that of its type, or of text where the type has
    no binary form. ``read_as``: a type, as SQL names it, that reads those bytes whatever became of the column's own
    type since; "" where no other type can: its values have to be brought to what the type is made of today (``deep``).
    ``textual``: as of the shape's column."""

    number: int
    name: str
    type: str
    oid: int
    read_as: str
    deep: Mapping[str, Any] | None
    textual: bool = False


def columns_of(shape: Shape) -> tuple[ImageColumn, ...]:
    """The columns of the images of rows of that shape, as ``record_send`` makes them: the live ones in the order of
    their numbers."""
    return tuple(
        ImageColumn(c.number, c.name, c.type, _TEXT if c.textual else c.type_oid, _read_as(c), c.deep, c.textual)
        for c in shape.columns
    )


def _read_as(column: ShapeColumn) -> str:
    if column.textual or column.deep is None:
        return "text" if column.textual else column.type
    deep = column.deep
    while "domain" in deep and "of" in deep:
        deep = deep["of"]
    if "enum" in deep:
        # An enumeration is sent as its label.
        return "text"
    # A domain over a type that can't change.
    return str(deep.get("domain", ""))
