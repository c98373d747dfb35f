"""Resume tokens: how far a pull of one table has come, sealed. One of rows from Postgres says after which key to go on,
one of rows from Parquet after which place of which run's base."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from anabranch.columnar.base_reader import Place
from anabranch.runtime.errors import Failure
from anabranch.schema import Table
from anabranch.store.catalog import Database
from anabranch.store.seal import open_content, seal_content
from anabranch.v1 import errors_pb2


@dataclass(frozen=True, slots=True)
class BasePlace:
    """A place in the base that the run ``run_id`` published."""

    run_id: str
    place: Place


@dataclass(frozen=True, slots=True)
class Progress:
    """``key`` of the last row that was sent, as ``pull_reader`` takes it (None: none was); ``rows_done`` over all
    parts; ``earliest``: the position that the first part showed, from which the node will follow the log. ``base``:
    where the rows are read from Parquet, the place of the last one; there is no key then."""

    key: tuple[str, ...] | None
    rows_done: int
    earliest: int
    base: BasePlace | None = None


# A release that knows nothing of places in a base can't open a token of one, and says so as of any other.
_BY_KEY, _BY_PLACE = ("resume", 4), ("resume-base", 7)


def _purpose(kind: str, database: Database) -> str:
    return f"{kind}\0{database.epoch}"


def to_token(database: Database, table: Table, progress: Progress) -> bytes:
    """The token of a table's progress. It holds for this table in this epoch."""
    base = progress.base
    place = [] if base is None else [base.run_id, base.place.bucket, base.place.rows]
    content = json.dumps([table.id, progress.key, progress.rows_done, progress.earliest, *place], separators=(",", ":"))
    kind, _ = _BY_PLACE if place else _BY_KEY
    return seal_content(database.seal_key, _purpose(kind, database), content.encode())


def from_token(database: Database, table: Table, token: bytes) -> Progress:
    """The progress that a token tells of.

    Raises:
        Failure: INVALID_TOKEN.
    """
    parsed: list[Any] = []
    for kind, parts in (_BY_KEY, _BY_PLACE):
        content = open_content(database.seal_key, _purpose(kind, database), token)
        found = None if content is None else json.loads(content)
        if isinstance(found, list) and len(found) == parts:
            parsed = found
    if not parsed or parsed[0] != table.id:
        raise Failure(
            errors_pb2.REASON_INVALID_TOKEN,
            f"resume is not one that was given for table {table.name!r}: pull that table from its start",
        )
    _, key, rows_done, earliest, *place = parsed
    base = BasePlace(place[0], Place(place[1], place[2])) if place else None
    return Progress(None if key is None else tuple(key), rows_done, earliest, base)
