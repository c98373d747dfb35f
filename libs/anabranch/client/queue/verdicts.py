"""Verdicts on batches, as the file knows them or as the server predicts them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from anabranch.client.file.believed import believed
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.device_table import DeviceTable, DeviceTables
from anabranch.client.queue import statements
from anabranch.client.queue.settle import reason_name, shown_key, shown_values
from anabranch.client.remote import RemoteDb
from anabranch.v1 import batch_pb2, change_pb2, resolver_pb2, verdict_pb2
from anabranch.wire.enum_names import enum_name
from anabranch.wire.plain import plain_value

VerdictStatus: TypeAlias = Literal["APPLIED", "REJECTED", "PENDING"]


@dataclass(frozen=True, slots=True)
class MutationVerdict:
    """``outcome`` is APPLIED, MERGED, OVERWROTE or SUPERSEDED, "" in a rejected batch. ``key`` and ``columns`` name the
    row and the columns that decided it; ``server_row`` is the server's row where the verdict brought it."""

    index: int
    outcome: str
    table: str
    key: tuple[Any, ...]
    columns: tuple[str, ...]
    server_row: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """``status``: PENDING while there is no verdict; ``reason`` AWAITS_ROW then where the server has the batch and
    waits for an earlier one of this device, which may bring the row. ``position`` is in milliseconds, 0 where it is not
    known. ``mutations``: of an applied batch all, of a rejected one the refused one; empty where only the log showed
    the batch."""

    batch_id: str
    status: VerdictStatus
    position: int = 0
    reason: str = ""
    message: str = ""
    constraint: str = ""
    sqlstate: str = ""
    mutations: tuple[MutationVerdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The server's prediction for a batch that arrives now: its verdict, the batch or row that it would wait for where
    that is PENDING, the rows that it would change as (type, table, columns), and the values that would lose as (table,
    key, column, value)."""

    verdict: BatchVerdict
    waits_for: str
    changes: tuple[tuple[str, str, Mapping[str, Any]], ...]
    losers: tuple[tuple[str, tuple[Any, ...], str, Any], ...]


def _from_message(verdict: verdict_pb2.Verdict, tables: DeviceTables) -> BatchVerdict:
    status: dict[int, VerdictStatus] = {
        verdict_pb2.VERDICT_STATUS_APPLIED: "APPLIED",
        verdict_pb2.VERDICT_STATUS_REJECTED: "REJECTED",
    }
    return BatchVerdict(
        batch_id=verdict.batch_id,
        status=status.get(verdict.status, "PENDING"),
        position=verdict.position,
        reason=reason_name(verdict) if verdict.reason else "",
        message=verdict.message,
        constraint=verdict.constraint,
        sqlstate=verdict.sqlstate,
        mutations=tuple(_mutation(m, tables) for m in verdict.mutations),
    )


def _mutation(message: verdict_pb2.MutationVerdict, tables: DeviceTables) -> MutationVerdict:
    table = tables.get(message.table)
    outcome = enum_name(verdict_pb2.Outcome, message.outcome)
    row = message.server_row
    return MutationVerdict(
        index=message.index,
        outcome="" if outcome == "UNSPECIFIED" else outcome,
        table=tables.told(message.table),
        key=_key(table, message.key),
        columns=tuple(name if table is None else table.told(name) for name in message.columns),
        server_row=shown_values(table, row.columns, row.values) if message.HasField("server_row") else None,
    )


def _key(table: DeviceTable | None, values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(plain_value(v) for v in values) if table is None else shown_key(table, values)


def of_batch(
    conn: sqlite3.Connection, tables: DeviceTables, batch_id: str, awaiting: Mapping[str, str]
) -> BatchVerdict | None:
    """The verdict on a batch of the file: in its queue, confirmed, or dead; None for a batch that it does not know, or
    has forgotten. ``awaiting``: the server's messages on batches that wait there for a row of an earlier one."""
    row = conn.execute(
        """SELECT verdict, coalesce(server_timestamp_ms, 0), 0 FROM _db_mutations_queue WHERE id = :id
           UNION ALL SELECT verdict, position, 1 FROM _db_confirmed WHERE id = :id
           UNION ALL SELECT verdict, 0, 0 FROM _db_mutations_queue_dead WHERE id = :id""",
        {"id": batch_id},
    ).fetchone()
    if row is None:
        return None
    data, position, in_log = row
    if data is not None:
        with believed(f"the verdict on the batch {batch_id}"):
            return _from_message(verdict_pb2.Verdict.FromString(data), tables)
    if not in_log and batch_id in awaiting:
        return BatchVerdict(batch_id, "PENDING", reason="AWAITS_ROW", message=awaiting[batch_id])
    return BatchVerdict(batch_id, "APPLIED" if in_log else "PENDING", position)


def explain(file: DeviceFile, remote: RemoteDb, batch_id: str) -> Explanation:
    """Ask the server about a queued batch. Raises ValueError where no such batch is in the queue, and CallFailed."""
    found = statements.envelope(file.reader(), batch_id)
    if found is None:
        raise ValueError(f"there is no queued batch {batch_id}")
    current = file.current()
    request = resolver_pb2.ExplainRequest(
        db_name=current.db_name,
        node_state=current.node_state,
        envelope=batch_pb2.Envelope(payload=found.value, basis=found.basis, prev=found.prev),
    )
    return _explanation(remote.explain(request), file.tables())


def _explanation(response: resolver_pb2.ExplainResponse, tables: DeviceTables) -> Explanation:
    changes = []
    for effect in response.effects:
        kind, table = enum_name(change_pb2.EffectType, effect.type).lower(), tables.get(effect.table)
        changes.append((kind, tables.told(effect.table), shown_values(table, effect.columns, effect.values)))
    losers = []
    for loser in response.losers:
        table = tables.get(loser.table)
        column = loser.column if table is None else table.told(loser.column)
        value = shown_values(table, [loser.column], [loser.value]).get(column)
        losers.append((tables.told(loser.table), _key(table, loser.key), column, value))
    return Explanation(_from_message(response.verdict, tables), response.waits_for, tuple(changes), tuple(losers))
