"""Resume tokens: how far a pull of one table has come, sealed. One of rows from Postgres says after which key to go on,
and of which moment the last rows were; one of rows from Parquet after which place of which run's base. One of a
restricted table also says, by a digest, of which audiences: a pull that went on with others would lack rows before the
key. None holds for a table that was altered since: its rows are others by now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from anabranch.columnar.base_reader import RowPlace
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.seal import open_content, seal_content
from anabranch.v1 import errors_pb2
from anabranch.values import Table


@dataclass(frozen=True, slots=True)
class BasePlace:
    """A place in the base that the run ``run_id`` published."""

    run_id: str
    place: RowPlace


@dataclass(frozen=True, slots=True)
class PullProgress:
    """``key`` of the last row that was sent, as ``pull_reader`` takes it (None: none was); ``rows_done`` over all
    parts; ``earliest``: the position that the first part showed, from which the node will follow the log. ``last``:
    what the last part was read from. Of rows from Postgres that is the moment, which the next part's history must have;
    of rows from Parquet the place of the last one, where there is no key, and the run stands for its history. ``seen``:
    the digest of the audiences whose rows are sent; empty for those of an open table."""

    key: tuple[str, ...] | None
    rows_done: int
    earliest: int
    last: SeenGroup | BasePlace
    seen: bytes = b""

    @property
    def base(self) -> BasePlace | None:
        """The place in Parquet."""
        return self.last if isinstance(self.last, BasePlace) else None

    @property
    def shown(self) -> SeenGroup | None:
        """The moment in Postgres."""
        return None if isinstance(self.last, BasePlace) else self.last


# A release that knows nothing of places in a base can't open a token of one, and says so as of any other.
_BY_KEY, _BY_PLACE, _SEEN, _SEEN_BY_PLACE = (
    ("resume-key", 6),
    ("resume-base", 7),
    ("resume-seen", 7),
    ("resume-base-seen", 8),
)


def _purpose(kind: str, database: Database, table: Table) -> str:
    changed = database.changed_positions.get(table.name, 0)
    return f"{kind}\0{database.epoch}" + (f"\0{changed}" if changed else "")


def to_token(database: Database, table: Table, progress: PullProgress) -> bytes:
    """The token of a table's progress. It holds for this table as it is, in this epoch."""
    last = progress.last
    if isinstance(last, BasePlace):
        (kind, _), read = _BY_PLACE, [last.run_id, last.place.bucket, last.place.rows]
        if progress.seen:
            (kind, _), read = _SEEN_BY_PLACE, [*read, progress.seen.hex()]
    elif progress.seen:
        (kind, _), read = _SEEN, [last.position, last.chain.hex(), progress.seen.hex()]
    else:
        (kind, _), read = _BY_KEY, [last.position, last.chain.hex()]
    content = json.dumps([table.id, progress.key, progress.rows_done, progress.earliest, *read], separators=(",", ":"))
    return seal_content(database.seal_key, _purpose(kind, database, table), content.encode())


def from_token(database: Database, table: Table, token: bytes) -> PullProgress:
    """The progress that a token holds.

    Raises:
        CallError: INVALID_TOKEN.
    """
    parsed: list[Any] = []
    of = _BY_KEY
    for kind in (_BY_KEY, _BY_PLACE, _SEEN, _SEEN_BY_PLACE):
        content = open_content(database.seal_key, _purpose(kind[0], database, table), token)
        found = None if content is None else json.loads(content)
        if isinstance(found, list) and len(found) == kind[1]:
            parsed, of = found, kind
    if not parsed or parsed[0] != table.id:
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN,
            f"resume is not one that was given for table {table.sql_name!r}: pull that table from its start",
        )
    _, key, rows_done, earliest, *read = parsed
    seen = bytes.fromhex(read.pop()) if of in (_SEEN, _SEEN_BY_PLACE) else b""
    if of in (_BY_PLACE, _SEEN_BY_PLACE):
        return PullProgress(None, rows_done, earliest, BasePlace(read[0], RowPlace(read[1], read[2])), seen)
    after = None if key is None else tuple(key)
    return PullProgress(after, rows_done, earliest, SeenGroup(read[0], bytes.fromhex(read[1])), seen)
