"""The baseline of the write path: the same rows written by a bare loop of set statements.

For each group: one INSERT or UPDATE of the table's rows, one of ``row_versions``, one INSERT of the log and one of the
verdicts, then COMMIT. The statements are those of the resolver, with the same binary parameters. The table is a copy
that no trigger captures; all parameters are built before the clock starts; the statements of a group are sent together
by libpq, so that the loop does nothing but have Postgres work.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from anabranch.bench.workload import COLUMNS, SCHEMA, UPDATED, Made
from anabranch.store.group import records_statements as statements
from anabranch.store.group.rows_statements import Statements
from anabranch.store.session import engine
from anabranch.testkit.libpq import libpq_session
from anabranch.values import Table, postgres_binary
from anabranch.values.postgres_binary import Parameter

Prepared = tuple[bytes, list[Parameter]]
PLAIN = "plain"
"""The copy of the table, without capture."""
_NAME = "anabranch-bench-floor"
_NODE = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
_VERDICT_BYTES = 60
_EFFECT_OVERHEAD_BYTES = 75


def groups_of(batches: Sequence[Made], size: int) -> Iterator[Sequence[Made]]:
    """Groups of ``size`` batches of one kind."""
    for kind in (True, False):
        alike = [batch for batch in batches if batch.insert is kind]
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


def _prepare(table: Table, sql: Statements, database_id: int, position: int, group: Sequence[Made]) -> list[Prepared]:
    insert = group[0].insert
    flat = [(batch.id, ordinal, row) for batch in group for ordinal, row in enumerate(batch.rows)]
    flat.sort(key=lambda item: str(item[2][0]))
    columns: list[Any] = list(zip(*(row for _, _, row in flat), strict=True))
    keys, ids = list(columns[0]), [batch_id for batch_id, _, _ in flat]
    names = COLUMNS if insert else UPDATED
    rows = sql.insert(names, columns) if insert else sql.update(names[1:], [columns[0]], columns[1:])
    count = len(flat)
    effects = [os.urandom(_EFFECT_OVERHEAD_BYTES + sum(len(str(c)) for c in row)) for _, _, row in flat]
    stamps = (
        "{}"
        if insert
        else '{"title":[%(p)d,"%(b)s","%(n)s",%(p)d],"done":[%(p)d,"%(b)s","%(n)s",%(p)d]}'  # noqa: UP031 - braces
        % {"p": position, "b": ids[0], "n": _NODE}
    )
    versions = [
        postgres_binary.int8_array([table.id] * count),
        postgres_binary.text_array(keys, "key"),
        postgres_binary.int8_array([position] * count),
        postgres_binary.text_array([_NODE] * count, "last_node"),
        postgres_binary.text_array(ids, "last_batch"),
        postgres_binary.int8_array([0] * count),
        postgres_binary.int8_array([position] * count),
        postgres_binary.int8_array([position] * count),
        postgres_binary.text_array([_NODE] * count, "insert_node"),
        postgres_binary.text_array(ids, "insert_batch"),
        postgres_binary.text_array([None] * count, "tombstone_batch"),
        postgres_binary.text_array([stamps] * count, "stamps"),
        postgres_binary.text_array(["{}"] * count, "overtaken"),
        postgres_binary.text_array([None] * count, "audience"),
    ]
    log = [
        postgres_binary.int8(database_id),
        postgres_binary.int8(position),
        postgres_binary.text_array(ids, "batch_id"),
        postgres_binary.int8_array([ordinal for _, ordinal, _ in flat]),
        postgres_binary.text_array([_NODE] * count, "node_id"),
        postgres_binary.int8_array([table.id] * count),
        postgres_binary.text_array(keys, "key"),
        postgres_binary.int8_array([1 if insert else 2] * count),
        postgres_binary.bytea_array(effects),
        postgres_binary.text_array(["{}" if insert else "{title,done}"] * count, "changed"),
        postgres_binary.bytea_array([os.urandom(16) for _ in flat]),
        postgres_binary.text_array([None] * count, "audience"),
        postgres_binary.text_array([None] * count, "audience"),
    ]
    verdicts = [
        postgres_binary.int8(database_id),
        postgres_binary.int8(position),
        postgres_binary.int8(position),
        postgres_binary.text_array([batch.id for batch in group], "batch_id"),
        postgres_binary.text_array([_NODE] * len(group), "node_id"),
        postgres_binary.text_array(["bench"] * len(group), "principal"),
        postgres_binary.bytea_array([hashlib.sha256(batch.payload).digest() for batch in group]),
        postgres_binary.int8_array([1] * len(group)),
        postgres_binary.int8_array([0] * len(group)),
        postgres_binary.int8_array([position] * len(group)),
        postgres_binary.bytea_array([os.urandom(_VERDICT_BYTES) for _ in group]),
    ]
    return [
        rows,
        (statements.INSERT_VERSIONS if insert else statements.UPDATE_VERSIONS, versions),
        (statements.WRITE_LOG, log),
        (statements.WRITE_BATCHES, verdicts),
    ]


def write(url: str, table: Table, database_id: int, batches: Sequence[Made], group_size: int) -> float:
    """Write all that ``batches`` change, ``group_size`` batches a commit, into an empty copy of the table.

    Returns row changes a second.

    Raises:
        RuntimeError: a statement changed another number of rows than it names.
        LibpqError: Postgres refused a statement.
    """
    plain = replace(table, name=PLAIN)
    sql = Statements(SCHEMA, plain)
    groups = [
        _prepare(plain, sql, database_id, 1_000 + i, group) for i, group in enumerate(groups_of(batches, group_size))
    ]
    changes = sum(len(batch.rows) for batch in batches)
    with engine.connect(url, application_name=_NAME, autocommit=True) as conn:
        conn.execute(f"create table {SCHEMA}.{PLAIN} (like {SCHEMA}.{table.name} including all)".encode())
    options = engine.SessionOptions(settings={"enable_seqscan": "off", "plan_cache_mode": "force_custom_plan"})
    with libpq_session(url, application_name=_NAME, options=options) as session:
        started = time.perf_counter()
        written = sum(session.run_together(group)[0] for group in groups)
        took = time.perf_counter() - started
    if written != changes:
        raise RuntimeError(f"{changes} changes named, {written} written")
    return changes / took


def commit_pair_s(url: str, times: int) -> list[float]:
    """How long two bare commits of one small row each take, one after the other, in seconds; ``times`` measurements."""
    took: list[float] = []
    with libpq_session(url, application_name=_NAME) as session:
        session.run(b"create table if not exists bench.pair (id bigint generated always as identity, body text)")
        for _ in range(times):
            started = time.perf_counter()
            for _ in range(2):
                session.run(b"insert into bench.pair (body) values ('one small row')")
            took.append(time.perf_counter() - started)
    return took
