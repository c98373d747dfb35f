"""DDL costs those who run it little, however many tables are synced."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.store.ddl.notice import notice

from .conftest import World

TABLE = """
create table app.t{number} (id text primary key, a text default 'x', b text, c integer, d boolean, e numeric(10,2),
                            f timestamptz not null default '2020-01-01')
"""
TIMES = 40


def cpu_of(world: World) -> Callable[[], float]:
    """The milliseconds that the session's server process has worked: others who are busy don't count."""
    [(pid,)] = world.rows("select pg_backend_pid()")
    path = Path(f"/proc/{pid}/schedstat")
    if not path.exists():
        return lambda: time.perf_counter() * 1e3
    return lambda: int(path.read_text().split()[0]) / 1e6


def costs(world: World, statement: str, undo: str) -> float:
    """The median of some runs, in milliseconds."""
    worked, found = cpu_of(world), []
    for _ in range(TIMES):
        before = worked()
        world.sql(statement)
        found.append(worked() - before)
        world.sql(undo)
        world.sql("delete from anabranch.captured")
    return statistics.median(found)


@pytest.mark.slow
@pytest.mark.parametrize("tables", [20, 100])
def test_a_column_is_added_within_a_millisecond_more(world: World, tables: int) -> None:
    for number in range(tables):
        world.sql(TABLE.format(number=number))
    world.add(*(f"t{number}" for number in range(tables)))
    add = "alter table app.t3 add column x int"
    drop = "alter table app.t3 drop column x"
    watched = costs(world, add, drop)
    unsynced = costs(world, "create table app.u (id int)", "drop table app.u")
    for name in ("ddl", "drop", "rewrite"):
        world.sql(f"alter event trigger anabranch_{name} disable")
    bare = costs(world, add, drop)
    bare_unsynced = costs(world, "create table app.u (id int)", "drop table app.u")
    assert watched - bare < 1.0, (watched, bare)
    assert unsynced - bare_unsynced < 1.0, (unsynced, bare_unsynced)


def test_a_group_looks_in_a_millisecond(world: World) -> None:
    for number in range(20):
        world.sql(TABLE.format(number=number))
    world.add(*(f"t{number}" for number in range(20)))
    database = world.database
    worked, found = cpu_of(world), []
    for _ in range(TIMES):
        before = worked()
        notice(world.conn, database)
        found.append(worked() - before)
    assert statistics.median(found) < 3.0
