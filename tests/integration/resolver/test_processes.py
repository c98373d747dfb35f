"""Resolvers as processes: several of them on several databases, killed and stopped while they work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.resolver.altering import alter, unwatched, versions

from anabranch.testkit.resolver_rig import ResolverRig, RigNode
from anabranch.testkit.waiting import until

TABLE = "create table todo (id text primary key, title text)"
IDLE_MS = 1_000
ACTIVITY = """
select pid, application_name, state, wait_event_type, wait_event, clock_timestamp() - state_change,
       array(select mode from pg_locks l where l.pid = a.pid and locktype = 'transactionid'), left(query, 60)
from pg_stat_activity a where application_name like 'anabranch%' and datname = current_database()
"""


@pytest.fixture
def start(migrated_url: str, tmp_path: Path) -> Iterator[Any]:
    """Starts resolver processes; all are killed in the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(**more: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "ANABRANCH_POSTGRES_URL": migrated_url,
            "ANABRANCH_CLAIM_IDLE_MS": str(IDLE_MS),
            "ANABRANCH_POLL_INTERVAL_MS": "100",
            **more,
        }
        log = (tmp_path / f"resolver-{len(processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "anabranch_conflict_resolver"], env=environment, stderr=log, stdout=log
        )
        log.close()
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        process.kill()
        process.wait(10)
    for log in sorted(tmp_path.glob("*.log")):
        print(f"--- {log.name}\n{log.read_text()[-3000:]}")


def until_empty(rigs: list[ResolverRig], timeout_s: float) -> float:
    """Wait until no batch waits; how long it took."""
    started = time.monotonic()
    while any(rig.waiting() for rig in rigs):
        took = time.monotonic() - started
        if took > timeout_s:
            for row in rigs[0].sql(ACTIVITY):
                print(*row)
        assert took < timeout_s, f"{[len(rig.waiting()) for rig in rigs]} batches wait after {took:.1f} s"
        time.sleep(0.02)
    return time.monotonic() - started


def check(rig: ResolverRig) -> None:
    """The order is whole: every group's batches stand in it once, and its chain has as many links."""
    rig.check()
    counts = rig.sql(
        "select g.position, g.batches, count(distinct l.batch_id) from anabranch.groups g"
        " left join anabranch.log l using (database_id, position) where database_id = %s group by 1, 2 order by 1",
        [rig.database.id],
    )
    assert all(batches == logged for _, batches, logged in counts)


def send_some(nodes: list[RigNode], count: int, tag: str) -> None:
    for i in range(count):
        nodes[i % len(nodes)].insert("todo", {"id": f"{tag}-{i:04}", "title": tag})


@pytest.mark.slow
def test_two_resolvers_share_three_databases_while_one_after_the_other_is_killed(make_rig: Any, start: Any) -> None:
    rigs = [make_rig(TABLE, database=f"db{i}") for i in range(3)]
    nodes = [[rig.node(f"{i}") for i in range(3)] for rig in rigs]
    running = [start(), start()]
    total = 0
    for round_ in range(6):
        for each in nodes:
            send_some(each, 60, f"r{round_}")
        total += 60
        victim = running.pop(0)
        victim.kill()
        victim.wait(10)
        running.append(start())
    until_empty(rigs, 30)
    for rig in rigs:
        check(rig)
        assert len(rig.rows("todo")) == total


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after_claim", "before_commit", "after_commit"])
def test_death_at_every_point_of_a_group_neither_loses_nor_doubles(
    make_rig: Any, start: Any, tmp_path: Path, point: str
) -> None:
    rig: ResolverRig = make_rig(TABLE)
    faults = tmp_path / "faults"
    faults.write_text(f"{point}\n")
    nodes = [rig.node("a")]
    send_some(nodes, 20, "before")
    process = start(ANABRANCH_FAULT_FILE=str(faults))
    assert process.wait(20) == -signal.SIGKILL
    assert len(rig.rows("todo")) == (20 if point == "after_commit" else 0)
    start()
    until_empty([rig], 20)
    check(rig)
    assert len(rig.rows("todo")) == len(rig.sql("select 1 from anabranch.log")) == 20


@pytest.mark.slow
def test_a_stopped_resolver_loses_its_claim_within_seconds(make_rig: Any, start: Any) -> None:
    rig: ResolverRig = make_rig(TABLE)
    nodes = [rig.node("a")]
    # The second one is up, and sleeps until it is needed.
    second = start(ANABRANCH_RESOLVER_WORKERS="1")
    send_some(nodes, 10, "warm")
    until_empty([rig], 20)
    os.kill(second.pid, signal.SIGSTOP)
    first = start(ANABRANCH_RESOLVER_WORKERS="1")
    send_some(nodes, 10, "warmer")
    until_empty([rig], 20)
    # Stop it where it holds the claim: behind a batch that is being decided.
    stopped = None
    for attempt in range(400):
        send_some(nodes, 20, f"s{attempt}")
        os.kill(first.pid, signal.SIGSTOP)
        holders = rig.sql(
            "select 1 from anabranch.claims c join pg_locks l on l.transactionid = c.xmax and l.granted"
            " where l.locktype = 'transactionid' and c.database_id = %s",
            [rig.database.id],
        )
        if holders:
            stopped = attempt
            break
        os.kill(first.pid, signal.SIGCONT)
    assert stopped is not None, "it was never stopped inside a group"
    os.kill(second.pid, signal.SIGCONT)
    took = until_empty([rig], 20)
    print(f"taken over after {took:.1f} s")
    assert took < IDLE_MS / 1000 + 3
    os.kill(first.pid, signal.SIGCONT)
    send_some(nodes, 20, "after")
    until_empty([rig], 20)
    check(rig)
    assert len(rig.rows("todo")) == 20 + 20 * (stopped + 1) + 20


@pytest.mark.slow
def test_a_resolver_drains_and_ends_when_told(make_rig: Any, start: Any) -> None:
    rig: ResolverRig = make_rig(TABLE)
    process = start()
    send_some([rig.node("a")], 20, "x")
    until_empty([rig], 20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.slow
def test_an_idle_database_that_nobody_watches_is_looked_at(make_rig: Any, start: Any) -> None:
    rig: ResolverRig = unwatched(make_rig(TABLE))
    start()
    rig.node("a").insert("todo", {"id": "1", "title": "one"})
    until_empty([rig], 30)
    alter(rig, "alter table todo add column note text")
    until(lambda: bool(versions(rig)), 30)
    check(rig)
