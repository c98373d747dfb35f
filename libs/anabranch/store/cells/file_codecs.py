"""Codecs of file columns, with array elements as Postgres prints them."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.columnar.file_cells import FileCodec
from anabranch.schema import Column, Kind
from anabranch.store.cells.binary_text import element_parser, element_printer


def file_codecs(columns: Iterable[Column]) -> list[FileCodec]:
    """One codec a column."""
    found = []
    for column in columns:
        element = column.element_kind or Kind.STRING
        found.append(FileCodec(column, element_printer(element), element_parser(element)))
    return found
