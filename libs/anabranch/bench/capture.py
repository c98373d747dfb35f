"""The cost of capture for the application's own writes: the same statements on a table with triggers and one without.

Statements of one row, of 100 and of 10,000 rows, each a transaction of its own that is durable when it returns, over a
connection of the application's, by libpq alone: a driver's own time on both sides would make capture look cheaper. The
two tables take turns, round by round, so that other load on the machine affects both; the best round of each counts.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from anabranch.bench.report import Result
from anabranch.bench.stage import fresh_database, server
from anabranch.store.catalog.registration import add_table
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.libpq import LibpqSession, libpq_session
from anabranch.values.postgres_binary import Parameter

TARGETS = {1: 1.5, 100: 2.0, 10_000: 3.5}
"""Rows of a statement to the greatest ratio of its time with capture to its time without."""
STATEMENTS = {1: 300, 100: 40, 10_000: 2}
"""Rows of a statement to the number of such statements in a round."""
ROUNDS = 3

_TABLES = """
create table {schema}.plain (id text collate "C" primary key, title text, seats int, at timestamptz, price numeric);
create table {schema}.captured (id text collate "C" primary key, title text, seats int, at timestamptz, price numeric)
"""
_INSERT = """
insert into {table} select 'key' || lpad(i::text, 20, '0'), 'a title of ' || i, i, '2024-01-01', i * 1.5
from generate_series($1::int, $2::int) i
"""
_UPDATE = """
update {table} set title = title || '!', seats = seats + 1
where id between 'key' || lpad(($1::int)::text, 20, '0') and 'key' || lpad(($2::int)::text, 20, '0')
"""
_DELETE = """
delete from {table}
where id between 'key' || lpad(($1::int)::text, 20, '0') and 'key' || lpad(($2::int)::text, 20, '0')
"""
_KINDS = {"insert": _INSERT, "update": _UPDATE, "delete": _DELETE}


def _number(value: int) -> Parameter:
    return Parameter(0, str(value).encode(), binary=False)


def _round(conn: Session, writer: LibpqSession, table: str, size: int) -> dict[str, float]:
    """Seconds of one round's statements, by kind. The table is empty before it and after it."""
    took = {}
    for kind, statement in _KINDS.items():
        text = statement.format(table=table).encode()
        started = time.perf_counter()
        for number in range(STATEMENTS[size]):
            writer.run(text, [_number(number * size + 1), _number((number + 1) * size)])
        took[kind] = time.perf_counter() - started
        # The planner needs current statistics of the rows that the next kind finds by their keys.
        conn.execute(f"vacuum analyze {table}".encode())
    conn.execute(b"truncate anabranch.captured")
    return took


def capture_writer() -> Result:
    """Time of the application's statements with capture against without. The figures are those of the pair that is
    nearest to its target, or furthest beyond it; every other pair is a condition."""
    best: dict[tuple[int, str, str], float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder,
        server(Path(folder)) as url,
        fresh_database(url) as (database_url, database),
        connect(database_url, application_name="bench", autocommit=True) as conn,
        libpq_session(database_url, application_name="bench") as writer,
    ):
        conn.execute(_TABLES.format(schema=database.schema_name).encode())
        add_table(conn, database.name, "captured")
        for size in TARGETS:
            for _ in range(ROUNDS):
                for table in ("plain", "captured"):
                    for kind, took in _round(conn, writer, f"{database.schema_name}.{table}", size).items():
                        best[size, kind, table] = min(took, best.get((size, kind, table), took))
    pairs = {(size, kind): (best[size, kind, "captured"], best[size, kind, "plain"]) for size, kind, _ in best}
    ratios = {pair: captured / plain for pair, (captured, plain) in pairs.items()}
    size, kind = max(ratios, key=lambda pair: ratios[pair] / TARGETS[pair[0]])
    rows = size * STATEMENTS[size]
    captured, plain = pairs[size, kind]
    return Result(
        bench="capture_writer",
        value=captured / rows * 1e6,
        baseline=plain / rows * 1e6,
        unit=f"µs a row, {kind}, {size:,} a statement",
        target=TARGETS[size],
        direction="at most",
        conditions={
            f"{kind} of {size:,} rows ≤ {TARGETS[size]:g} × (is {ratio:.2f})": ratio <= TARGETS[size]
            for (size, kind), ratio in ratios.items()
        },
        details={f"{kind}_{size}": round(ratio, 3) for (size, kind), ratio in ratios.items()},
    )
