"""Adoption: accept the present rows of a table whose rows were changed without the triggers.

Each row that differs from the log is added to the captured changes, as a change from the log's row to the table's row,
so that the resolver logs it as it logs every direct write, and devices get it. The table's sum is set so that it is
right once these are drained: that of the rows as they are now, less those changes. Rows that the log never had are in
the sum alone: devices see that they disagree, and ask for the rows that differ.

All of it is one transaction that holds the database's claim, so that no group commits, and the table in SHARE mode, so
that no session writes to it; claim first, as the resolver does it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.registration import tell
from anabranch.store.catalog.sums import scan_sums, sum_to_bytes
from anabranch.store.cells.binary_cells import CellSender, Row, literal_sender, quote, sender
from anabranch.store.session.binary import Connection, run
from anabranch.store.session.channels import INBOX_CHANNEL
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.values import Column, Kind, Table
from anabranch.values.canonical import RowEncoder
from anabranch.values.cells import Literal
from anabranch.values.postgres_binary import bool_array, bytea, int8

_LIMITS = """
select set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true)
"""
_WAITING = "select exists (select from anabranch.captured where database_id = %s and table_id = %s)"
_SET_SUM = b"""
update anabranch.table_sums set row_count = $2::int8, row_hash = $3::bytea where table_id = $1::int8
"""
# An audience without rows keeps its sum, of none.
_SET_AUDIENCE_SUMS = """
insert into anabranch.audience_sums (table_id, audience, position, row_count, row_hash)
select s.table_id, n.audience, s.position, coalesce(q.row_count, 0), coalesce(q.row_hash, %(none)s)
from anabranch.table_sums s
cross join (select audience from anabranch.audience_sums where table_id = %(number)s
            union select unnest(%(audiences)s::text[])) n (audience)
left join unnest(%(audiences)s::text[], %(counts)s::int8[], %(sums)s::bytea[]) q (audience, row_count, row_hash)
    on q.audience = n.audience
where s.table_id = %(number)s
on conflict (table_id, audience) do update set row_count = excluded.row_count, row_hash = excluded.row_hash
"""
_WAKE = "select pg_notify(%s, %s)"
_CAPTURE = """
insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
select {database}, {table}, pg_current_xact_id(),
       case when not v.logged then 1 when {there} then 2 else 3 end, 1,
       case when v.logged then record_send(row({old})) end,
       case when {there} then record_send(t.*) end,
       session_user, current_setting('application_name')
from unnest($1::bool[], {arrays}) as v (logged, {names})
left join {relation} t on {match}
"""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A row as the log has it and as the table has it; None where there is none. At least one of them is given."""

    key: str
    logged: Row | None
    stored: Row | None


@contextmanager
def held(
    conn: Connection, database: Database, table: Table, lock_timeout_ms: int, statement_timeout_ms: int
) -> Iterator[bool]:
    """Keep a table unchanged for the block, in a transaction. Yields False where changes of it wait to be drained: the
    caller has to try again. Raises psycopg.Error."""
    with conn.transaction():
        conn.execute(_LIMITS, {"lock": str(lock_timeout_ms), "statement": str(statement_timeout_ms)})
        wait_for_claim(conn, database.id)
        conn.execute(f"lock table {quote(database.schema_name)}.{quote(table.sql_name)} in share mode".encode())
        row = conn.execute(_WAITING, (database.id, table.id)).fetchone()
        yield row is not None and not row[0]


def adopt(conn: Connection, database: Database, table: Table, found: Sequence[Contradiction]) -> None:
    """Accept a held table as it is; ``found`` are its contradictions to the log. Raises psycopg.Error."""
    audience = database.restricted.get(table.name)
    sums = scan_sums(conn, database.schema_name, table, audience)
    row_hash = RowEncoder(table).hash
    of_table = None if audience is None else RowAudiences(table, audience)
    for sign, rows in (
        (1, [one.logged for one in found if one.logged is not None]),
        (-1, [one.stored for one in found if one.stored is not None]),
    ):
        of_rows: Iterable[Iterable[str]] = itertools.repeat(())
        if of_table is not None:
            of_rows = of_table.of_all(conn, rows)
        for row, audiences in zip(rows, of_rows, strict=False):
            sums.add(row_hash(row), audiences, sign)
    if found:
        _capture(conn, database, table, found)
    run(conn, _SET_SUM, [int8(table.id), int8(sums.count), bytea(sum_to_bytes(sums.total))])
    if audience is not None:
        counts = [count for count, _ in sums.audiences.values()]
        totals = [sum_to_bytes(total) for _, total in sums.audiences.values()]
        of_audiences = {"audiences": list(sums.audiences), "counts": counts, "sums": totals}
        conn.execute(_SET_AUDIENCE_SUMS, {"number": table.id, "none": bytes(16), **of_audiences})
    # Whoever keeps this database's sums reads them anew.
    tell(conn, database.id)
    conn.execute(_WAKE, (INBOX_CHANNEL, str(database.id)))


def _capture(conn: Connection, database: Database, table: Table, found: Sequence[Contradiction]) -> None:
    rows = [one.logged if one.logged is not None else one.stored or [] for one in found]
    columns = list(zip(*rows, strict=True))
    senders = [_sender(column, cells) for column, cells in zip(table.columns, columns, strict=True)]
    keys = [f"t.{quote(name)}" for name in table.in_sql(table.key_columns)]
    values = [
        f"(v.c{i}{s.cast})::{c.postgres_type}" for i, (c, s) in enumerate(zip(table.columns, senders, strict=True))
    ]
    match = [f"{key} = {values[i]}" for key, i in zip(keys, table.key_index, strict=True)]
    statement = _CAPTURE.format(
        database=database.id,
        table=table.id,
        there=f"{keys[0]} is not null",
        old=", ".join(values),
        arrays=", ".join(f"${i}::{s.array_type}" for i, s in enumerate(senders, 2)),
        names=", ".join(f"c{i}" for i in range(len(senders))),
        relation=f"{quote(database.schema_name)}.{quote(table.sql_name)}",
        match=" and ".join(match),
    )
    logged = bool_array([one.logged is not None for one in found])
    run(conn, statement.encode(), [logged, *(s.build(cells) for s, cells in zip(senders, columns, strict=True))])


def _sender(column: Column, cells: Sequence[object]) -> CellSender:
    return literal_sender(column) if column.kind is Kind.TIMESTAMP and Literal in map(type, cells) else sender(column)
