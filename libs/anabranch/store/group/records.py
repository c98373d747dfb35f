"""The records that a group commit writes beside the rows themselves: one set statement for each kind of record; a small
group takes one statement for all kinds (``store.session.at_once``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from anabranch.store.group import records_statements as statements
from anabranch.store.inbox.claim import longer, renew
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session.at_once import execute
from anabranch.store.session.binary import Connection, run
from anabranch.store.session.channels import GROUPS_CHANNEL
from anabranch.values import Kind
from anabranch.values.pieces import Pieces
from anabranch.values.postgres_binary import Parameter, bytea, bytea_array, int8, int8_array, text, text_array
from anabranch.values.postgres_text import array_printer


@dataclass(slots=True)
class LogRow:
    """One changed row. ``ordinal`` counts within the batch; ``type`` is an ``anabranch.v1.EffectType``;
    ``effect`` the serialized Effect, in pieces where it is to be cut; ``changed`` the changed columns of an update;
    ``effect_hash`` 16 bytes. ``audience_before``, ``audience_after``: of a restricted table, whom the row was for, and
    whom it is for; None for an open one."""

    batch_id: str
    ordinal: int
    node_id: str
    table_id: int
    key: str
    type: int
    effect: bytes | Pieces
    changed: tuple[str, ...]
    effect_hash: bytes
    audience_before: tuple[str, ...] | None = None
    audience_after: tuple[str, ...] | None = None


@dataclass(slots=True)
class BatchRow:
    """One verdict. ``status``: 1 applied, 2 rejected; ``reason`` an ``anabranch.v1.Reason``; ``verdict`` the
    serialized Verdict. The position is the group's."""

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
    """One value that lost. ``batch_id`` and ``ordinal`` number it within the group; ``losing_value`` is a
    serialized ``anabranch.v1.Value``; ``column_name`` is "" where a whole row lost. Audiences as in ``LogRow``;
    ``cause`` is an ``anabranch.v1.LossCause``."""

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
    audience_before: tuple[str, ...] | None = None
    audience_after: tuple[str, ...] | None = None
    cause: int = 0


@dataclass(slots=True)
class SumRow:
    """A table's sum after the group: number of rows, and the sum of the row hashes modulo 2**128 as 16
    bytes."""

    table_id: int
    row_count: int
    row_hash: bytes


@dataclass(slots=True)
class GroupRow:
    """One group commit. ``chain`` 16 bytes; ``sums`` the serialized TableSums of the tables that it
    changed."""

    batches: int
    changes: int
    chain: bytes
    sums: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Head:
    """The last group of a database; position 0 and an empty chain where there is none."""

    position: int
    chain: bytes


T = TypeVar("T")
NOTIFY_BYTES = 7_500
"""The most that one notification carries; Postgres takes less than 8,000."""
_TRACEPARENT_BYTES = 64
PART_BYTES = 16 * 2**20
"""The most bytes of one effect that a statement carries."""
FIRST_BYTES = 4 * 2**20
"""The first bytes of a larger effect, carried by the statement that writes its row: it copies them more often."""
APPEND_MS = 600_000
"""How long a statement may take that writes an effect of some hundreds of megabytes."""

_log_fields = attrgetter(
    "batch_id",
    "ordinal",
    "node_id",
    "table_id",
    "key",
    "type",
    "effect",
    "changed",
    "effect_hash",
    "audience_before",
    "audience_after",
)
_batch_fields = attrgetter("batch_id", "node_id", "principal", "payload_sha256", "status", "reason", "place", "verdict")
_conflict_fields = attrgetter(
    "batch_id",
    "ordinal",
    "table_id",
    "key",
    "column_name",
    "losing_value",
    "losing_batch",
    "losing_node",
    "winning_batch",
    "winning_node",
    "audience_before",
    "audience_after",
    "cause",
)
_sum_fields = attrgetter("table_id", "row_count", "row_hash")
_print_names = array_printer(Kind.STRING)
_names_text = lru_cache(maxsize=4096)(_print_names)
_audiences_text = lru_cache(maxsize=16384)(_print_names)


def read_head(conn: Connection, database_id: int) -> Head:
    """The last committed group that this transaction sees."""
    row = run(conn, statements.READ_HEAD, [int8(database_id)]).fetchone()
    return Head(0, EMPTY_CHAIN) if row is None else Head(row[0], row[1])


def write_log(conn: Connection, database_id: int, position: int, rows: Sequence[LogRow]) -> None:
    """Append to the log."""
    if not rows:
        return
    columns = columns_of(_log_fields, rows)
    batches, ordinals, nodes, tables, keys, types, effects, changed, hashes, before, after = columns
    parameters = [
        int8(database_id),
        int8(position),
        text_array(batches, "batch_id"),
        int8_array(ordinals),
        text_array(nodes, "node_id"),
        int8_array(tables),
        text_array(keys, "key"),
        int8_array(types),
        bytea_array(effects),
        text_array(list(map(_names_text, changed)), "changed"),
        bytea_array(hashes),
        audiences_of(before),
        audiences_of(after),
    ]
    execute(conn, statements.WRITE_LOG, parameters)


def append_effect(conn: Connection, database_id: int, position: int, row: LogRow) -> None:
    """Append the rest of an effect whose first ``FIRST_BYTES`` are in the log. The parts are few, because each of them
    rewrites all bytes before it."""
    size = max(PART_BYTES, len(row.effect) // 4)
    with longer(conn, APPEND_MS):
        for at in range(FIRST_BYTES, len(row.effect), size):
            part = bytea(row.effect[at : at + size])
            place = [int8(database_id), int8(position), text(row.batch_id), int8(row.ordinal)]
            run(conn, statements.APPEND_EFFECT, [*place, part])
            renew(conn)


def write_batches(conn: Connection, database_id: int, position: int, decided_ms: int, rows: Sequence[BatchRow]) -> None:
    """Store verdicts."""
    if not rows:
        return
    batches, nodes, principals, hashes, status, reasons, places, verdicts = columns_of(_batch_fields, rows)
    parameters = [
        int8(database_id),
        int8(position),
        int8(decided_ms),
        text_array(batches, "batch_id"),
        text_array(nodes, "node_id"),
        text_array(principals, "principal"),
        bytea_array(hashes),
        int8_array(status),
        int8_array(reasons),
        int8_array(places),
        bytea_array(verdicts),
    ]
    execute(conn, statements.WRITE_BATCHES, parameters)


def write_conflicts(conn: Connection, database_id: int, position: int, rows: Sequence[ConflictRow]) -> None:
    """Store values that lost."""
    if not rows:
        return
    batches, ordinals, tables, keys, columns, values, *who, before, after, causes = columns_of(_conflict_fields, rows)
    parameters = [
        int8(database_id),
        int8(position),
        text_array(batches, "batch_id"),
        int8_array(ordinals),
        int8_array(tables),
        text_array(keys, "key"),
        text_array(columns, "column_name"),
        bytea_array(values),
        *(text_array(cells, "losing and winning") for cells in who),
        audiences_of(before),
        audiences_of(after),
        int8_array(causes),
    ]
    execute(conn, statements.WRITE_CONFLICTS, parameters)


def write_sums(conn: Connection, position: int, rows: Sequence[SumRow]) -> None:
    """Store the sums of the tables that the group changed."""
    if not rows:
        return
    tables, counts, hashes = columns_of(_sum_fields, rows)
    parameters = [int8(position), int8_array(tables), int8_array(counts), bytea_array(hashes)]
    execute(conn, statements.WRITE_SUMS, parameters)


def write_group(conn: Connection, database_id: int, position: int, row: GroupRow) -> None:
    """Store the group's own row: the new head."""
    parameters = [
        int8(database_id),
        int8(position),
        int8(row.batches),
        int8(row.changes),
        bytea(row.chain),
        bytea_array(row.sums),
    ]
    execute(conn, statements.WRITE_GROUP, parameters)


def delete_inbox(conn: Connection, database_id: int, batch_ids: Sequence[str]) -> None:
    """Remove decided batches from the inbox.

    Raises:
        RuntimeError: one is not there, or is named twice.
    """
    if batch_ids:
        ids = text_array(sorted(batch_ids), "batch_id")
        execute(conn, statements.DELETE_INBOX, [int8(database_id), ids], named=len(batch_ids))


def accept(conn: Connection, database_id: int, greatest: Sequence[tuple[str, str]]) -> None:
    """Keep for each ``(node id, batch id)`` the greatest accepted id of the node."""
    if greatest:
        nodes, ids = zip(*greatest, strict=True)
        parameters = [int8(database_id), text_array(nodes, "node_id"), text_array(ids, "batch_id")]
        execute(conn, statements.ACCEPT, parameters)


def notify_group(
    conn: Connection,
    database_id: int,
    position: int,
    batch_ids: Sequence[str],
    traceparent: str = "",
    verdicts_of: Callable[[int], str | None] = lambda _: None,
) -> None:
    """Notify the listeners of GROUPS_CHANNEL at commit, with as many payloads as the ids need, at least one.
    ``traceparent`` is that of the group's span: readers that follow the log continue the trace. ``verdicts_of`` takes a
    number of characters and returns the group's verdicts (``store.inbox.notified``), or None where they do not fit."""
    payloads = list(_payloads(f"{database_id}:{position}:", batch_ids))
    verdicts = verdicts_of(NOTIFY_BYTES - len(payloads[0]) - _TRACEPARENT_BYTES) if len(payloads) == 1 else None
    if traceparent or verdicts:
        payloads[-1] += f";{traceparent}"
    if verdicts:
        payloads[-1] += f";{verdicts}"
    execute(conn, statements.NOTIFY, [text(GROUPS_CHANNEL), text_array(payloads, "payload")])


def _payloads(head: str, ids: Sequence[str]) -> Iterable[str]:
    """Ids joined by commas after ``head``, in pieces of at most NOTIFY_BYTES."""
    start, room = 0, NOTIFY_BYTES - len(head)
    left = room
    for i, batch_id in enumerate(ids):
        left -= len(batch_id) + 1
        if left < 0 and i > start:
            yield head + ",".join(ids[start:i])
            start, left = i, room - len(batch_id) - 1
    yield head + ",".join(ids[start:])


def columns_of(fields: Any, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows as the columns that ``fields`` takes of each."""
    return list(zip(*map(fields, rows), strict=True))


def audiences_of(lists: Sequence[tuple[str, ...] | None]) -> Parameter:
    """Rows' audiences as a parameter."""
    return text_array([None if one is None else _audiences_text(one) for one in lists], "audience")
