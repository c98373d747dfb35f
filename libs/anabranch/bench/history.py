"""A long history, written by Postgres itself in a minute or two: the state that the resolver would have left.

The first half of the changes inserts rows, the second updates two columns of the same rows, in the same order; batches
of ten, groups of fifty batches, spread evenly over the days before now. Effects and verdicts are messages made by the
project's own code for one row, in which Postgres puts each row's key and each batch's id; the hashes of effects are
random, so that no proof would hold over them. The log's partitions are made by the janitor's code.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from anabranch.bench.workload import SCHEMA, TABLE
from anabranch.store.capture.triggers import MARK_RESOLVER
from anabranch.store.catalog.databases import Database
from anabranch.store.log import partitions
from anabranch.store.session.engine import connect
from anabranch.v1 import position_pb2, value_pb2, verdict_pb2
from anabranch.values import Cell, Table
from anabranch.wire.effects import EffectBuilder

DAY_MS = 86_400_000
GROUP_CHANGES = 500
"""Batches of ten changes, fifty a group."""
_WRITERS = 2
_SLICES = 20
_NODES = 8
_LOCK_MS, _STATEMENT_MS = 5_000, 60_000
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_KEY, _BATCH = "01HFKEYKEYKEYKEYKEYKEYKEYK", "01HGBATCHBATCHBATCHBATCHBA"
"""Placeholders in the messages for a row's key and a batch's id."""


def _time(position: str) -> str:
    """SQL for the ten letters with which a ULID of the time ``position`` begins."""
    letters = (f"(({position} >> {shift}) & 31)::int + 1" for shift in range(45, -1, -5))
    return " || ".join(f"substr('{_ALPHABET}', {letter}, 1)" for letter in letters)


def _node(batch: str) -> str:
    """SQL for the node of a batch by its number."""
    return f"'01HZZZZZZZZZZZZZZZZZZZZZZ' || mod({batch}, {_NODES})"


def _with(message: bytes, **places: str) -> str:
    """SQL for a message in which each placeholder of ``places`` is replaced by its value."""
    parts: list[bytes | str] = [message]
    for place, expression in places.items():
        mark = {"key": _KEY, "batch": _BATCH}[place].encode()
        split: list[bytes | str] = []
        for part in parts:
            if isinstance(part, str):
                split.append(part)
                continue
            for number, piece in enumerate(part.split(mark)):
                split += [expression, piece] if number else [piece]
        parts = split
    return " || ".join(
        f"convert_to({part}, 'UTF8')" if isinstance(part, str) else f"'\\x{part.hex()}'::bytea" for part in parts
    )


# One row for each group in [first, until): ``own`` is the group that inserted its rows.
_GROUPS = f"""
with g as materialized (
    select number, own, number < %(half)s as inserts, position, {_time("position")} as time,
           {_time("own_position")} as own_time, own_position
    from (
        select number, mod(number, %(half)s) as own, %(start)s::int8 + number * %(step)s::int8 as position,
               %(start)s::int8 + mod(number, %(half)s) * %(step)s::int8 as own_position
        from generate_series(%(first)s::int8, %(until)s::int8 - 1) as number
    ) as groups
)
"""
_BATCH_ID = "g.time || lpad(upper(to_hex(g.number * 50 + {0})), 16, '0')"
_OWN_BATCH_ID = "g.own_time || lpad(upper(to_hex(g.own * 50 + {0})), 16, '0')"
_ROW_KEY = "g.own_time || 'F' || lpad(upper(to_hex(g.own * 500 + c)), 15, '0')"


def _log(insert: bytes, update: bytes) -> str:
    return f"""{_GROUPS}
insert into anabranch.log (database_id, position, batch_id, ordinal, node_id, table_id, key, type, effect, changed,
                           effect_hash)
select %(db)s, position, batch, mod(c, 10), node, %(table)s, key, case when inserts then 1 else 2 end,
       case when inserts then {_with(insert, key="key")} else {_with(update, key="key")} end,
       case when inserts then '{{}}'::text[] else '{{title,done}}'::text[] end,
       substr(sha256(convert_to(batch || c, 'UTF8')), 1, 16)
from (
    select g.position, g.inserts, c, {_ROW_KEY} as key, {_BATCH_ID.format("c / 10")} as batch,
           {_node("g.number * 50 + c / 10")} as node
    from g cross join generate_series(0, 499) as c offset 0
) as changes
"""


def _verdicts(verdict: bytes) -> str:
    return f"""{_GROUPS}
insert into anabranch.batches (database_id, batch_id, node_id, principal, payload_sha256, status, reason, position,
                               place, verdict, decided_ms)
select %(db)s, batch, node, 'bench', sha256(convert_to(batch, 'UTF8')), 1, 0, position, position,
       {_with(verdict, batch="batch", key="key")}, position
from (
    select g.position, {_BATCH_ID.format("c / 10")} as batch, {_ROW_KEY} as key,
           {_node("g.number * 50 + c / 10")} as node
    from g cross join generate_series(0, 490, 10) as c offset 0
) as batches
"""


_RECORDED = f"""{_GROUPS}
insert into anabranch.groups (database_id, position, batches, changes, chain, sums, claimed)
select %(db)s, position, 50, 500, substr(sha256(convert_to(time, 'UTF8')), 1, 16), array[%(sum)s::bytea], true from g
"""
# For the groups that update alone: with them, their rows have their whole history.
_VERSIONS = f"""{_GROUPS}
insert into anabranch.row_versions (table_id, key, last_position, last_node, last_batch, insert_position, insert_place,
                                    insert_node, insert_batch, stamps)
select %(table)s, key, position, node, batch, own_position, own_position, own_node, own_batch,
       jsonb_build_object('title', stamp, 'done', stamp)
from (
    select *, jsonb_build_array(position, batch, node, position) as stamp
    from (
        select g.position, g.own_position, {_ROW_KEY} as key, {_BATCH_ID.format("c / 10")} as batch,
               {_node("g.number * 50 + c / 10")} as node, {_OWN_BATCH_ID.format("c / 10")} as own_batch,
               {_node("g.own * 50 + c / 10")} as own_node
        from g cross join generate_series(0, 499) as c offset 0
    ) as written
) as rows
"""
_ROWS = f"""{_GROUPS}
insert into {SCHEMA}.{TABLE} (id, title, done, position, score, changed)
select {_ROW_KEY}, 'title ' || g.own || ' of the day (done)', true, g.own * 100 + c, c / 7.0, '2024-01-01'
from g cross join generate_series(0, 499) as c
"""
_NODES_THERE = f"""
insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged)
select %(db)s, {_node("n")}, 'bench', 'bench', %(epoch)s, sha256(convert_to(n::text, 'UTF8')), %(last)s, %(last)s
from generate_series(0, {_NODES - 1}) as n
"""
_SUMS = "update anabranch.table_sums set position = %(last)s, row_count = %(rows)s where table_id = %(table)s"
_SETTLE = (
    f"vacuum (analyze) anabranch.log, anabranch.batches, anabranch.groups, anabranch.row_versions, {SCHEMA}.{TABLE}",
    "checkpoint",
)


def _statements(table: Table) -> tuple[list[str], list[str]]:
    """The statements to run for all groups, and those to run for groups that update alone."""
    builder = EffectBuilder(table)
    before: list[Cell] = [_KEY, "title 1234 of the day", False, 123_400, 3 / 7, 1_700_000_000_000_000]
    after: list[Cell] = [_KEY, "title 1234 of the day (done)", True, *before[3:]]
    insert, update = builder.insert(before).data, builder.update(before, after).data
    verdict = verdict_pb2.Verdict(
        batch_id=_BATCH,
        status=verdict_pb2.VERDICT_STATUS_APPLIED,
        position=1_700_000_000_000,
        mutations=[
            verdict_pb2.MutationVerdict(
                outcome=verdict_pb2.OUTCOME_APPLIED, table=TABLE, key=[value_pb2.Value(string_value=_KEY)]
            )
        ],
    )
    return [_log(insert, update), _verdicts(verdict.SerializeToString()), _RECORDED], [_VERSIONS, _ROWS]


def write_history(url: str, database: Database, changes: int, until_ms: int, days: int) -> None:
    """Write ``changes`` changes (at least 1,000, and whole groups of them) over the ``days`` before ``until_ms``, into
    a database that has none, and leave it as a server at rest would: vacuumed, its pages written."""
    groups = max(2, changes // GROUP_CHANGES // 2 * 2)
    table = database.tables[TABLE]
    start, step = until_ms - days * DAY_MS, days * DAY_MS // groups
    last, rows = start + (groups - 1) * step, groups * GROUP_CHANGES // 2
    total = position_pb2.TableSum(table=TABLE, count=rows, hash=bytes(range(16)))
    values: dict[str, Any] = {
        "db": database.id,
        "epoch": database.epoch,
        "table": table.id,
        "half": groups // 2,
        "start": start,
        "step": step,
        "last": last,
        "rows": rows,
        "sum": total.SerializeToString(),
    }
    with connect(url, application_name="anabranch-bench-history", autocommit=True) as conn:
        for leaf in partitions.wanted(start, 0, DAY_MS, days + 3, partitions.leaves(conn)):
            partitions.make(conn, leaf, lock_timeout_ms=_LOCK_MS, statement_timeout_ms=_STATEMENT_MS)
        of_all, of_updates = _statements(table)
        parts = [(statement, part) for statement in of_all for part in _slices(0, groups)]
        parts += [(statement, part) for statement in of_updates for part in _slices(groups // 2, groups)]
        with ThreadPoolExecutor(_WRITERS) as writers:
            written = [writers.submit(_write, url, statement, {**values, **part}) for statement, part in parts]
            for part_written in written:
                part_written.result()
        conn.execute(_NODES_THERE.encode(), values)
        conn.execute(_SUMS.encode(), values)
        for statement in _SETTLE:
            conn.execute(statement.encode())


def _slices(first: int, until: int) -> list[dict[str, int]]:
    edges = [first + (until - first) * i // _SLICES for i in range(_SLICES + 1)]
    return [{"first": low, "until": high} for low, high in pairwise(edges) if low < high]


def _write(url: str, statement: str, values: dict[str, Any]) -> None:
    with connect(url, application_name="anabranch-bench-history") as conn:
        conn.execute(MARK_RESOLVER)
        conn.execute(statement.encode(), values)
        conn.commit()
