"""Kinds: how the values of each Postgres type are carried."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

from anabranch.errors import AnabranchError

_T = TypeVar("_T")


class Kind(IntEnum):
    """How a column's values are carried. The numbers are those of ``anabranch.v1.ColumnKind``."""

    BOOL = 1
    INT64 = 2
    DOUBLE = 3
    STRING = 4
    BYTES = 5
    DECIMAL = 6
    TIMESTAMP = 7
    DATE = 8
    TIME = 9
    JSON = 10
    UUID = 11
    ARRAY = 12
    LITERAL = 13


TEXT_KINDS = frozenset({Kind.STRING, Kind.DECIMAL, Kind.JSON, Kind.UUID, Kind.LITERAL})
"""The kinds whose cells are text. A kind that is listed here has its text form in ``postgres_text``, ``sqlite``,
``keys`` and ``binary_cells`` without more."""


class NoFormError(AnabranchError, LookupError):
    """A kind lacks a form where one is needed: an error in this package, never one of a value."""

    def __init__(self, kind: Kind, form: str) -> None:
        super().__init__(f"the kind {kind.name} has no form in {form}: give it one there")


class ByKind(dict[Kind, _T]):
    """The entries of a form, named by its module, for each kind. There is no default: a kind without an entry raises
    NoFormError."""

    def __init__(self, form: str, entries: Mapping[Kind, _T]) -> None:
        super().__init__(entries)
        self._form = form

    def __missing__(self, kind: Kind) -> _T:
        raise NoFormError(kind, self._form)
