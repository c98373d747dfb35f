"""What a group commit records beside the rows themselves: one set statement for each kind of record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from anabranch.merge.model import RowVersion

Connection = psycopg.Connection[Any]


@dataclass(slots=True)
class LogRow:
    """One changed row. ``ordinal`` counts within the batch; ``type`` is an ``anabranch.v1.EffectType``; ``effect`` the
    serialized Effect; ``changed`` the changed columns of an update; ``effect_hash`` 16 bytes."""

    batch_id: str
    ordinal: int
    node_id: str
    table_id: int
    key: str
    type: int
    effect: bytes
    changed: tuple[str, ...]
    effect_hash: bytes


@dataclass(slots=True)
class VersionRow:
    """The history of one row, as it is to be stored."""

    table_id: int
    key: str
    version: RowVersion


@dataclass(slots=True)
class BatchRow:
    """One verdict. ``status``: 1 applied, 2 rejected; ``reason`` an ``anabranch.v1.Reason``; ``verdict`` the serialized
    Verdict. The position is the group's."""

    batch_id: str
    node_id: str
    principal: str
    payload_sha256: bytes
    status: int
    reason: int
    place: int
    verdict: bytes


@dataclass(slots=True)
class ConflictRow:
    """One value that lost. ``batch_id`` and ``ordinal`` number it within the group; ``losing_value`` is a serialized
    ``anabranch.v1.Value``; ``column_name`` is "" where a whole row lost."""

    batch_id: str
    ordinal: int
    table_id: int
    key: str
    column_name: str
    losing_value: bytes
    losing_batch: str
    losing_node: str
    winning_batch: str
    winning_node: str


@dataclass(slots=True)
class SumRow:
    """A table's sum after the group: number of rows, and the sum of the row hashes modulo 2**128 as 16 bytes."""

    table_id: int
    row_count: int
    row_hash: bytes


@dataclass(slots=True)
class GroupRow:
    """One group commit. ``chain`` 16 bytes; ``sums`` the serialized TableSums of the tables that it changed."""

    batches: int
    changes: int
    chain: bytes
    sums: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Head:
    """The last group of a database; position 0 and an empty chain where there is none."""

    position: int
    chain: bytes


def read_head(conn: Connection, database_id: int) -> Head:
    """The last committed group that this transaction sees."""
    raise NotImplementedError


def read_versions(conn: Connection, rows: Sequence[tuple[int, str]]) -> dict[tuple[int, str], RowVersion]:
    """The history of each ``(table id, key text)`` that has one."""
    raise NotImplementedError


def write_log(conn: Connection, database_id: int, position: int, rows: Sequence[LogRow]) -> None:
    """Append to the log."""
    raise NotImplementedError


def insert_versions(conn: Connection, rows: Sequence[VersionRow]) -> None:
    """Store the history of rows that had none."""
    raise NotImplementedError


def update_versions(conn: Connection, rows: Sequence[VersionRow]) -> None:
    """Replace the history of rows that had one. A row that has none is a RuntimeError."""
    raise NotImplementedError


def write_batches(
    conn: Connection, database_id: int, position: int, decided_ms: int, rows: Sequence[BatchRow]
) -> None:
    """Store verdicts."""
    raise NotImplementedError


def write_conflicts(conn: Connection, database_id: int, position: int, rows: Sequence[ConflictRow]) -> None:
    """Store values that lost."""
    raise NotImplementedError


def write_sums(conn: Connection, position: int, rows: Sequence[SumRow]) -> None:
    """Store the sums of the tables that the group changed."""
    raise NotImplementedError


def write_group(conn: Connection, database_id: int, position: int, row: GroupRow) -> None:
    """Store the group's own row: the new head."""
    raise NotImplementedError


def delete_inbox(conn: Connection, database_id: int, batch_ids: Sequence[str]) -> None:
    """Remove decided batches from the inbox. A batch that is not there is a RuntimeError."""
    raise NotImplementedError


def notify_group(conn: Connection, database_id: int, position: int, batch_ids: Sequence[str]) -> None:
    """Tell who listens on GROUPS_CHANNEL, at commit; as many payloads as the ids need."""
    raise NotImplementedError
