"""A kind that is new says by name which forms it has none in yet; no form takes it for text."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import cast

import pytest

from anabranch.store.cells.binary_cells import read_expression, row_loader, sender
from anabranch.values import (
    Column,
    Kind,
    Table,
    arrow,
    arrow_to_sqlite,
    canonical,
    key_cells,
    message_bytes,
    messages,
    parquet,
    postgres_text,
    python,
    sqlite,
)
from anabranch.values.kinds import NoFormError


class Newer(IntEnum):
    """A kind that no form has heard of."""

    INTERVAL = 99


NEW = Column("v", cast(Kind, Newer.INTERVAL), "interval")
MANY = Column("v", Kind.ARRAY, "interval[]", element_kind=cast(Kind, Newer.INTERVAL))
LACKING: dict[str, Callable[[Column], object]] = {
    "values.messages": messages.column_writer,
    "values.message_bytes": message_bytes.value_bytes,
    "values.canonical": lambda column: canonical.value_encoder(column.kind, column.element_kind),
    "values.postgres_text": lambda column: postgres_text.array_parser(column.element_kind or column.kind),
    "values.arrow": arrow.arrow_type,
    "values.arrow_to_sqlite": arrow_to_sqlite.sqlite_column,
    "values.parquet": parquet.file_type,
    "values.sqlite": sqlite.storer,
    "values.python": python.converter,
    "values.keys": lambda column: key_cells(Table("t", (column,), ("v",)), "1"),
    "store.cells.binary_cells": sender,
}


def element_of(column: Column) -> Kind:
    return column.element_kind or Kind.STRING


@pytest.mark.parametrize("module", LACKING)
def test_a_form_says_which_kind_it_lacks(module: str) -> None:
    with pytest.raises(NoFormError, match=f"the kind INTERVAL has no form in anabranch.{module}: give it one there"):
        LACKING[module](NEW)


@pytest.mark.parametrize(
    "lacking",
    [
        messages.column_reader,
        messages.column_writer,
        message_bytes.value_bytes,
        python.converter,
        LACKING["values.canonical"],
        lambda column: postgres_text.array_printer(element_of(column)),
        lambda column: postgres_text.array_parser(element_of(column)),
        parquet.FileCodec,
        arrow_to_sqlite.sqlite_column,
        sender,
        lambda column: row_loader([column]),
    ],
)
def test_an_array_of_a_kind_that_a_form_lacks_is_no_array_of_texts(lacking: Callable[[Column], object]) -> None:
    with pytest.raises(NoFormError, match="the kind INTERVAL has no form in"):
        lacking(MANY)


@pytest.mark.parametrize(
    "lacking",
    [
        messages.column_reader,
        sqlite.loader,
        lambda column: sqlite.declared_type(column.kind),
        parquet.FileCodec,
        lambda column: read_expression(column, "q"),
        lambda column: postgres_text.element_printer(column.kind),
        lambda column: postgres_text.element_parser(column.kind),
    ],
)
def test_no_way_of_a_form_takes_a_new_kind_for_text(lacking: Callable[[Column], object]) -> None:
    with pytest.raises(NoFormError, match="the kind INTERVAL has no form in"):
        lacking(NEW)
