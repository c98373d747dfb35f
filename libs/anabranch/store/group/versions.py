"""The histories of rows: read for a group, and written with it by one set statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from anabranch.merge.model import RowVersion, Stamp
from anabranch.store.cells.index_keys import index_keys
from anabranch.store.group import records_statements as statements
from anabranch.store.group.records import audiences_of, columns_of
from anabranch.store.session.at_once import execute
from anabranch.store.session.binary import Connection, run
from anabranch.values.postgres_binary import Parameter, int8_array, text_array


@dataclass(slots=True)
class VersionRow:
    """The history of one row, as it is to be stored. ``audience``: of a tombstone in a restricted table, whom its row
    was for."""

    table_id: int
    key: str
    version: RowVersion
    audience: tuple[str, ...] | None = None


_version_fields = attrgetter(
    "last_position",
    "last_node",
    "last_batch",
    "other_position",
    "insert_position",
    "insert_place",
    "insert_node",
    "insert_batch",
    "tombstone_batch",
    "stamps",
    "overtaken",
)
_json_name = lru_cache(maxsize=4096)(json.dumps)


def read_versions(conn: Connection, rows: Iterable[tuple[int, str]]) -> Callable[[], dict[tuple[int, str], RowVersion]]:
    """Ask for the history of each ``(table id, key text)`` that has one; the returned function reads the answer."""
    wanted = sorted(set(rows))
    if not wanted:
        return dict
    tables, keys = zip(*wanted, strict=True)
    stored = index_keys(keys)
    cursor = run(conn, statements.READ_VERSIONS, [int8_array(tables), text_array(stored, "key")])
    if stored is keys:
        return lambda: {(row[0], row[1]): _version(row) for row in cursor.fetchall()}
    key_of = dict(zip(stored, keys, strict=True))
    return lambda: {(row[0], key_of[row[1]]): _version(row) for row in cursor.fetchall()}


def insert_versions(conn: Connection, rows: Sequence[VersionRow]) -> None:
    """Store the history of rows that had none."""
    if rows:
        execute(conn, statements.INSERT_VERSIONS, _version_parameters(rows))


def update_versions(conn: Connection, rows: Sequence[VersionRow]) -> None:
    """Replace the history of rows that had one.

    Raises:
        RuntimeError: one had none, or is named twice.
    """
    if rows:
        execute(conn, statements.UPDATE_VERSIONS, _version_parameters(rows), named=len(rows))


def _version_parameters(rows: Sequence[VersionRow]) -> list[Parameter]:
    rows = sorted(rows, key=attrgetter("table_id", "key"))
    position, node, batch, other, at, place, by, into, tombstone, stamps, overtaken = columns_of(
        _version_fields, [row.version for row in rows]
    )
    return [
        int8_array([row.table_id for row in rows]),
        text_array(index_keys([row.key for row in rows]), "key"),
        int8_array(position),
        text_array(node, "last_node"),
        text_array(batch, "last_batch"),
        int8_array(other),
        int8_array(at),
        int8_array(place),
        text_array(by, "insert_node"),
        text_array(into, "insert_batch"),
        text_array(tombstone, "tombstone_batch"),
        text_array(list(map(_stamps_text, stamps)), "stamps"),
        text_array(["{}" if not nodes else json.dumps(nodes) for nodes in overtaken], "overtaken"),
        audiences_of([row.audience for row in rows]),
    ]


def _stamps_text(stamps: dict[str, Stamp]) -> str:
    if not stamps:
        return "{}"
    return (
        "{"
        + ",".join(
            [
                f"{_json_name(column)}:[{s.place},{_json_name(s.batch)},{_json_name(s.node)},{s.position}]"
                for column, s in stamps.items()
            ]
        )
        + "}"
    )


def _version(row: Sequence[Any]) -> RowVersion:
    version = RowVersion(*row[2:11])
    stamps, overtaken, audience = row[11:]
    if stamps != "{}":
        version.stamps = {column: Stamp(*stamp) for column, stamp in json.loads(stamps).items()}
    if overtaken != "{}":
        version.overtaken = json.loads(overtaken)
    if audience is not None:
        version.audience = tuple(audience)
    return version
