"""The verdicts on the tablets' batches, read from the server's own records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.demo.changes import named
from anabranch.store.catalog.databases import Database
from anabranch.store.session.engine import Session
from anabranch.v1 import errors_pb2, value_pb2, verdict_pb2
from anabranch.values import key_cells
from anabranch.values.messages import column_reader
from anabranch.wire.enum_names import enum_name


class Lost(NamedTuple):
    """A value that lost a conflict, with the losing and the winning node."""

    row: str
    column: str
    value: object
    losing_node: str
    winning_node: str


@dataclass
class Verdicts:
    """``outcomes`` counts mutations of applied batches by node and outcome, ``reasons`` rejected batches by node and
    reason (with the constraint's name)."""

    batches: Counter[tuple[str, str]] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: list[Lost] = field(default_factory=list)
    captured: tuple[int, int] = (0, 0)
    """Batches in the log that no device made, and their changes."""


_BATCHES = """
select n.name, b.verdict from anabranch.batches b join anabranch.nodes n using (database_id, node_id)
where b.database_id = %s
"""
_CONFLICTS = """
select t.name, c.key, c.column_name, c.losing_value, coalesce(l.name, c.losing_node), coalesce(w.name, c.winning_node)
from anabranch.conflicts c
join anabranch.synced_tables t on t.id = c.table_id
left join anabranch.nodes l on l.database_id = c.database_id and l.node_id = c.losing_node
left join anabranch.nodes w on w.database_id = c.database_id and w.node_id = c.winning_node
where c.database_id = %s
order by c.position, c.batch_id, c.ordinal
"""
_CAPTURED = """
select count(distinct (position, batch_id)), count(*) from anabranch.log where database_id = %s and node_id = 'server'
"""


def read(conn: Session, database: Database) -> Verdicts:
    """All verdicts and all values that lost."""
    found = Verdicts()
    for node, raw in conn.execute(_BATCHES, (database.id,)):
        verdict = verdict_pb2.Verdict.FromString(raw)
        if verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED:
            found.batches[node, "APPLIED"] += 1
            for mutation in verdict.mutations:
                name = enum_name(verdict_pb2.Outcome, mutation.outcome)
                found.outcomes[node, name] += 1
        else:
            found.batches[node, "REJECTED"] += 1
            reason = enum_name(errors_pb2.Reason, verdict.reason)
            found.reasons[node, f"{reason} {verdict.constraint}".strip()] += 1
    for table, key, column, raw, loser, winner in conn.execute(_CONFLICTS, (database.id,)):
        key_columns = database.tables[table].key_columns
        row = named(table, dict(zip(key_columns, key_cells(database.tables[table], key), strict=True)))
        found.lost.append(Lost(row, column, _shown(database, table, column, raw), loser, winner))
    for batches, changes in conn.execute(_CAPTURED, (database.id,)):
        found.captured = (batches, changes)
    return found


def _shown(database: Database, table: str, column: str, raw: bytes) -> object:
    value = value_pb2.Value.FromString(raw)
    return column_reader(database.tables[table].by_name[column])(value) if column else str(value).strip()
