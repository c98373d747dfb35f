"""Failing batches, one in ten refused by a constraint: their cost for the others.

Eight clients send batches of ten rows into a table with a foreign key, a unique column, a check and columns that are
not null; the first half inserts rows, the second updates some of their columns. In one row of each bad batch one value
is wrong. Each constraint has a run of its own, in which it is the only one that is broken; the clean runs before and
after send the same batches with nothing wrong in them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

from anabranch.bench import ingest, workload
from anabranch.bench.cpu import Spent, spent
from anabranch.bench.report import Result
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import SCHEMA, TABLE, Client, Made, Row

TARGET = 0.4
CLIENTS = 8
BATCH_ROWS = 10
ONE_IN = 10
LISTS = 100
Constraint = Literal["foreign key", "unique", "check", "not null"]
CONSTRAINTS: tuple[Constraint, ...] = ("foreign key", "unique", "check", "not null")

DEFINITION = f"""
create schema {SCHEMA};
create table {SCHEMA}.list (id text collate "C" primary key, title text not null);
create table {SCHEMA}.{TABLE} (
    id text collate "C" primary key, title text not null,
    list text collate "C" not null constraint todo_list references {SCHEMA}.list (id),
    code text collate "C" not null constraint todo_code unique,
    position bigint not null constraint todo_position check (position >= 0),
    done boolean not null, changed timestamptz not null
);
insert into {SCHEMA}.list select 'list-' || i, 'a list' from generate_series(0, {LISTS - 1}) i;
insert into {SCHEMA}.{TABLE} values ('first', 'the first', 'list-0', 'taken', 0, false, '2024-01-01');
"""
TABLES = ("list", TABLE)
COLUMNS = ("id", "title", "list", "code", "position", "done", "changed")
UPDATED = COLUMNS[:5]
_CHANGED_US = 1_700_000_000_000_000
_BAD_ROW = 5


def client(number: int, batches: int, now_ms: int, broken: Constraint | None) -> Client:
    """A node with ``batches`` batches, of which every tenth breaks a constraint."""
    node, ids = workload.new_node(now_ms), workload.ids_from(now_ms - 60_000, number)
    made: list[Made] = []
    refused: list[str] = []
    there: list[list[Row]] = []
    previous = "taken"
    for i in range(batches):
        insert = i < batches // 2
        bad = broken if i % ONE_IN == ONE_IN - 1 else None
        # A bad batch that updates has rows of its own, so that it breaks the constraint and nothing else.
        rows = _new(ids, i) if insert else _updated(there[(i - batches // 2) % len(there)], i)
        if insert and bad is None:
            there.append(rows)
        if bad is not None:
            rows = _spoilt(rows, bad, "taken" if i // ONE_IN % 2 else previous)
        previous = str(rows[0][3])
        batch_id = next(ids)
        if bad is not None:
            refused.append(batch_id)
        made.append(workload.batch_of(batch_id, node, COLUMNS if insert else UPDATED, rows, insert=insert))
    return Client(node, tuple(made), frozenset(refused))


def _new(ids: Iterator[str], at: int) -> list[Row]:
    rows: list[Row] = []
    for i in range(BATCH_ROWS):
        row_id = next(ids)
        where = f"list-{(at + i) % LISTS}"
        rows.append((row_id, f"title {at} of the day", where, f"code {row_id}", at, False, _CHANGED_US + at))
    return rows


def _updated(rows: list[Row], at: int) -> list[Row]:
    return [
        (row[0], f"{row[1]} (done)", f"list-{(at + i) % LISTS}", f"{row[3]} {at}", at) for i, row in enumerate(rows)
    ]


def _spoilt(rows: list[Row], broken: Constraint, taken: str) -> list[Row]:
    """The rows with one value wrong. ``taken``: a code that another row has."""
    wrong: dict[Constraint, tuple[int, object]] = {
        "foreign key": (2, "no list"),
        "unique": (3, taken),
        "check": (4, -1),
        "not null": (1, None),
    }
    place, value = wrong[broken]
    row = rows[_BAD_ROW]
    return [*rows[:_BAD_ROW], (*row[:place], value, *row[place + 1 :]), *rows[_BAD_ROW + 1 :]]


def _run(on: Stage, changes: int, broken: Constraint | None) -> tuple[Spent, float]:
    """The time that a run took, and how many batches a group had on average."""
    now_ms = time.time_ns() // 1_000_000
    clients = [client(i, changes // BATCH_ROWS // CLIENTS, now_ms, broken) for i in range(CLIENTS)]
    with spent() as took:
        run = ingest.measure(on, clients, ingest.COALESCED)
    return Spent(run.seconds, took.cpu_s, took.by_process), run.group_size


def poison(changes: int = 40_000) -> Result:
    """Runs of ``changes`` row changes, for each constraint, between two clean ones. The figure is that of the
    constraint that costs most."""
    runs: dict[Constraint, Spent] = {}
    sizes: dict[Constraint, float] = {}
    clean = Spent()
    with stage(DEFINITION, TABLES) as on:
        _run(on, changes // 4, None)
        clean.add(_run(on, changes, None)[0])
        for broken in CONSTRAINTS:
            runs[broken], sizes[broken] = _run(on, changes, broken)
        clean.add(_run(on, changes, None)[0])
    rate = 2 * changes / clean.wall_s
    rates = {broken: changes / took.wall_s for broken, took in runs.items()}
    return Result(
        bench="poison",
        value=min(rates.values()),
        baseline=rate,
        unit="changes/s",
        target=TARGET,
        direction="at least",
        details={
            "changes": changes,
            "bad_batches": f"1 in {ONE_IN}",
            "clean_cpu_us_a_change": clean.cpu_us(2 * changes),
            **{
                broken.replace(" ", "_"): {
                    "per_s": round(rates[broken]),
                    "ratio": round(rates[broken] / rate, 3),
                    **took.details(changes),
                    "batches_per_group": round(sizes[broken], 1),
                }
                for broken, took in runs.items()
            },
        },
    )
