"""Values of a scenario in the forms of a column: the value that an app would pass, the cell that Postgres would store,
and the canonical encoding in which both sides are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from anabranch.scenario.naming import column_named
from anabranch.scenario.values import Json, Timestamp
from anabranch.store.cells.cells_of_texts import cells_of_texts
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import Session
from anabranch.values import Cell, Column, Kind, Table, key_text
from anabranch.values.canonical import value_encoder
from anabranch.values.postgres_text import element_printer
from anabranch.values.python import converter

_TEMPORAL = frozenset({Kind.DATE, Kind.TIME, Kind.TIMESTAMP})
_double_text, _bytes_text = element_printer(Kind.DOUBLE), element_printer(Kind.BYTES)
_WORDS = {"yes": True, "on": True, "no": False, "off": False}


def to_json(value: Any) -> str:
    """The JSON text of a value from YAML. Raises ValueError where it has none."""
    plain = value.value if isinstance(value, Json) else value
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, default=_json_number)


def _json_number(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.text
    raise ValueError(f"{type(value).__name__} has no JSON form")


def to_text(value: Any, kind: Kind | None = None) -> str | None:
    """The text that Postgres takes for a value; ``kind`` is that of the column, where it is known."""
    if value is None:
        return None
    if isinstance(value, Json) or kind is Kind.JSON:
        return value if isinstance(value, str) else to_json(value)
    if isinstance(value, Timestamp):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, bytes):
        return _bytes_text(value)
    if isinstance(value, list):
        return "{" + ",".join(_element(v) for v in value) + "}"
    return to_json(value) if isinstance(value, Mapping) else str(value)


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return str(to_text(value))
    text = str(to_text(value))
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def to_write(conn: Session, column: Column | None, value: Any) -> Any:
    """The value that an app would pass: numbers and texts as they are, moments and days as their exact numbers. A value
    that does not fit the column is passed as it is, for the node to refuse."""
    if isinstance(value, Json):
        return to_json(value)
    if column is None or value is None:
        return value.text if isinstance(value, Timestamp) else value
    if column.kind in _TEMPORAL and isinstance(value, str | Timestamp):
        return _moment(conn, column, value)
    if column.kind is Kind.LITERAL and not isinstance(value, str):
        return to_text(value)
    if column.kind is Kind.JSON and not isinstance(value, str):
        with suppress(ValueError):
            return to_json(value)
        return value
    if column.kind is Kind.DECIMAL and isinstance(value, float):
        return Decimal(str(to_text(value)))
    if column.kind is Kind.BOOL and isinstance(value, str):
        return _WORDS.get(value.lower(), value)
    if column.kind is Kind.ARRAY and isinstance(value, list):
        kind = column.element_kind or Kind.STRING
        element = Column(column.name, kind, column.postgres_type.removesuffix("[]"))
        return [to_write(conn, column if isinstance(v, list) else element, v) for v in value]
    return value.text if isinstance(value, Timestamp) else value


def _moment(conn: Session, column: Column, value: str | Timestamp) -> Any:
    text = value.text if isinstance(value, Timestamp) else value
    try:
        # Beyond the years that 64 bits of microseconds hold, the cell is Postgres's text, as an app has it.
        return cast(conn, [column], [text])[0]
    except Exception as error:
        if is_unavailable(error):
            raise
        return text


def cast(conn: Session, columns: Sequence[Column], values: Sequence[Any]) -> tuple[Cell, ...]:
    """The cells that Postgres would store for values, as their columns' types print them. Raises psycopg.Error."""
    return cells_of_texts(conn, columns, [to_text(v, c.kind) for c, v in zip(columns, values, strict=True)])


def encoded(column: Column, cell: Cell) -> bytes:
    """The canonical encoding of a column's cell."""
    return value_encoder(column.kind, column.element_kind)(cell)


def accepted(conn: Session, columns: Sequence[Column], values: Sequence[Any]) -> list[set[bytes]]:
    """For each value the encodings that a node may show: as Postgres stores it, and as the app wrote it, which a node
    shows until it has read the stored value from the log."""
    out = []
    for column, value, cell in zip(columns, values, cast(conn, columns, values), strict=True):
        forms = {encoded(column, cell)}
        if value is not None:
            # Where Postgres accepts a value and an app's write does not, only the stored form is possible.
            with suppress(ValueError):
                forms.add(encoded(column, converter(column)(to_write(conn, column, value))))
        out.append(forms)
    return out


def named_key(conn: Session, table: Table, key: Any) -> str:
    """The key text of a key as a scenario writes it: a value, or a mapping of the key's columns.

    Raises:
        ValueError: it does not name the key's columns.
    """
    columns = [table.by_name[name] for name in table.key_columns]
    names = [column.sql_name for column in columns]
    given = key if isinstance(key, Mapping) else {names[0]: key}
    if set(given) != set(names):
        raise ValueError(f"a key of {table.name} has exactly the columns {', '.join(names)}")
    return key_text(cast(conn, columns, [given[n] for n in names]))


def key_to_write(conn: Session, table: Table | None, key: Any) -> Any:
    """A key as an app would pass it."""
    if isinstance(key, Mapping):
        return {n: to_write(conn, column_named(table, n), v) for n, v in key.items()}
    return to_write(conn, None if table is None else table.by_name[table.key_columns[0]], key)
