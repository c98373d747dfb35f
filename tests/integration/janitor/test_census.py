"""The janitor's look at everything, for the metrics: counted in Postgres, shown as declared."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.janitor.conftest import DAY_MS, Ground, make_database
from tests.integration.janitor.test_process import Rig

from anabranch.clock import Clock
from anabranch.ports import free_port
from anabranch.runtime import metrics
from anabranch.runtime.config import load_settings
from anabranch.store.capture.backlog import CapturedBacklog, Moments
from anabranch.store.catalog.census import SEEN, WaitingBatches
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.unsynced import WhyUnsynced
from anabranch.store.ddl.backlog import MarkerMoments, SchemaBacklog
from anabranch.testkit.exposition import page
from anabranch_retention_janitor.census import Census, Counted, count, tell
from anabranch_retention_janitor.config import JanitorSettings

MOST_NODES = 10_000


def counted(ground: Ground, days: float = 0) -> Counted:
    settings = load_settings(JanitorSettings, postgres_url=ground.url)
    return count(settings, ground.now_ms + round(days * DAY_MS))


def test_nodes_are_counted_by_their_last_call(ground: Ground) -> None:
    make_database(ground.conn, "quiet")
    for number, days in enumerate([0, 0, -0.5, -3, -20, -29.9, -31, -400]):
        ground.node(f"N{number}", 0, seen_days=days)
    found = counted(ground)
    assert {seen: found.nodes["app", seen] for seen in SEEN} == {
        "hour": 2,
        "day": 1,
        "week": 1,
        "month": 2,
        "longer": 2,
    }
    assert {seen: found.nodes["quiet", seen] for seen in SEEN} == dict.fromkeys(SEEN, 0)
    later = counted(ground, days=2)
    assert later.nodes["app", "hour"] == 0
    assert sum(later.nodes["app", seen] for seen in SEEN) == 8


def test_the_number_of_series_does_not_grow_with_nodes(ground: Ground) -> None:
    ground.conn.execute(
        "insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged) "
        "select %s, 'N' || n, 'gate', 'p', 'e', '', %s - n * 60000, 0 from generate_series(1, %s) n",
        (ground.id, ground.now_ms, MOST_NODES),
    )
    found = counted(ground)
    assert sum(found.nodes.values()) == MOST_NODES
    assert len(found.nodes) == len(SEEN)
    assert found.nodes["app", "hour"] == 60
    assert found.nodes["app", "day"] == 24 * 60 - 60


def test_what_holds_the_floor_is_the_oldest_bound(ground: Ground) -> None:
    positions = ground.write(3)
    ground.node("A", positions[0])
    found = counted(ground, days=10)
    now_ms = ground.now_ms + 10 * DAY_MS
    assert found.bounds == {
        ("app", "window"): 30 * DAY_MS,
        ("app", "head"): now_ms - positions[2],
        ("app", "node"): now_ms - positions[0],
    }
    assert found.behind == {}, "nothing is compacted"
    ground.node("A", positions[0], seen_days=34)
    late = counted(ground, days=35).bounds
    assert max(late, key=late.__getitem__) == ("app", "node")
    ground.conn.execute(
        "insert into anabranch.compactions select id, 'r', epoch, 0, %s, 1, '/nowhere', '{}'::jsonb, 1 "
        "from anabranch.databases where name = 'app'",
        (positions[1],),
    )
    behind = counted(ground, days=10)
    assert behind.behind == {"app": positions[2] - positions[1]}
    assert behind.bounds["app", "compaction"] == now_ms - positions[1]


def test_a_database_without_groups_has_no_bounds(ground: Ground) -> None:
    assert counted(ground).bounds == {}


def test_ended_epochs_are_counted(ground: Ground) -> None:
    assert counted(ground).epochs == {"app": 0}
    ground.conn.execute(
        "insert into anabranch.epochs values (%s, 'e1', 1, 1), (%s, 'e2', 2, 2)", (ground.id, ground.id)
    )
    assert counted(ground).epochs == {"app": 2}


def test_what_waits_is_told_when_no_resolver_runs(ground: Ground) -> None:
    """Batches and changes by SQL, and for how long: by the janitor, who sees them without deciding anything."""
    for number, (arrived, deadline) in enumerate([(5_000, None), (9_000, None), (1_000, 99_000)]):
        ground.conn.execute(
            "insert into anabranch.inbox (database_id, batch_id, payload, payload_sha256, basis, node_id, principal, "
            "arrived_ms, park_deadline_ms) values (%s, %s, '', '', 0, 'N', 'p', %s, %s)",
            (ground.id, f"{number:026}", ground.now_ms - arrived, deadline),
        )
    found = counted(ground)
    assert found.waiting["app"] == WaitingBatches(2, 1, ground.now_ms - 9_000)
    tell(found)
    try:
        assert metrics._levels["anabranch_inbox_age"]["app",] == 9.0
        assert metrics._levels["anabranch_inbox_backlog"]["app",] == 2
        assert metrics._levels["anabranch_inbox_parked"]["app",] == 1
    finally:
        tell(Counted({}, {}, {}, [], {}, {}, 0, {}, {}))


@pytest.mark.slow
def test_what_was_captured_is_told_with_the_time_since_it_was_first_seen(ground: Ground) -> None:
    settings = load_settings(JanitorSettings, postgres_url=ground.url)
    moments: Moments = {}
    ground.conn.execute("insert into app.todo (id, title) values ('by sql', 'x')")
    [first] = count(settings, ground.now_ms, moments).captured
    [later] = count(settings, ground.now_ms, moments).captured
    assert (first.name, first.changes, first.age_s) == ("app", 1, 0.0)
    assert (later.changes, later.age_s > 0) == (1, True)


def test_schema_changes_that_wait_are_told_with_the_time_since_they_were_first_seen(ground: Ground) -> None:
    settings = load_settings(JanitorSettings, postgres_url=ground.url)
    moments: MarkerMoments = {}

    def look() -> SchemaBacklog:
        [found] = count(settings, ground.now_ms, marker_moments=moments).schema
        return found

    assert look() == SchemaBacklog("app", 1, 0, 0.0)
    mark = "insert into anabranch.captured (database_id, table_id, xid, type, depth) values (%s, 0, '1', 4, 0)"
    ground.conn.execute(mark, (ground.id,))
    assert look() == SchemaBacklog("app", 1, 1, 0.0)
    ground.conn.execute(mark, (ground.id,))
    later = look()
    assert (later.markers, later.age_s > 0) == (2, True)
    # The first one was taken: the other has waited since it was seen as the oldest.
    ground.conn.execute("delete from anabranch.captured where id = (select min(id) from anabranch.captured)")
    ground.conn.execute("update anabranch.databases set ddl_version = 2")
    assert look() == SchemaBacklog("app", 2, 1, 0.0)
    tell(Counted({}, {}, {}, [], {}, {}, 0, {}, {}, [later]))
    try:
        assert metrics._levels["anabranch_schema_changes_waiting"]["app",] == 2
        assert metrics._levels["anabranch_schema_change_age"]["app",] == later.age_s
    finally:
        tell(Counted({}, {}, {}, [], {}, {}, 0, {}, {}))


def test_tables_that_are_not_synced_are_counted_by_why(ground: Ground) -> None:
    none = {("app", why.value): 0 for why in WhyUnsynced}
    assert counted(ground).unsynced == none
    capture_off(ground.conn, "app", "todo")
    assert counted(ground).unsynced == {**none, ("app", "capture_off"): 1}
    ground.conn.execute("alter table app.todo drop column title cascade")
    assert counted(ground).unsynced == {**none, ("app", "capture_off"): 1}, "it waits, and is told as that"
    ground.conn.execute("delete from anabranch.captured where type = 4")
    assert counted(ground).unsynced == {**none, ("app", "changed"): 1}
    ground.conn.execute("update anabranch.synced_tables set torn_ms = 1")
    assert counted(ground).unsynced == {**none, ("app", "torn"): 1}


def test_what_is_gone_is_shown_no_more() -> None:
    nothing = Counted({}, {}, {}, [], {}, {}, 0, {}, {})
    tell(
        replace(
            nothing,
            nodes={("a", "hour"): 1, ("b", "hour"): 2},
            epochs={"a": 0, "b": 0},
            bounds={("a", "node"): 5},
            behind={"a": 7},
            waiting={"a": WaitingBatches(1, 2, 3)},
            captured=[CapturedBacklog("a", 1, 2.0)],
            unsynced={("a", "torn"): 1},
        )
    )
    tell(replace(nothing, nodes={("b", "hour"): 3}, epochs={"b": 0}))
    try:
        assert metrics._levels["anabranch_nodes"] == {("b", "hour"): 3}
        assert metrics._levels["anabranch_floor_bound_age"] == {}
        assert metrics._levels["anabranch_compaction_lag"] == {}
        assert metrics._levels["anabranch_inbox_age"] == {}
        assert metrics._levels["anabranch_captured_backlog"] == {}
        assert metrics._levels["anabranch_tables_not_synced"] == {}
    finally:
        tell(nothing)


@pytest.mark.slow
def test_the_process_shows_them(ground: Ground, tmp_path: Path) -> None:
    """As declared in the table, which dashboards are checked against."""
    ground.write(1)
    ground.node("A", 0)
    address = f"127.0.0.1:{free_port()}"
    rig = Rig(ground, tmp_path, 0, {"ANABRANCH_METRICS_ADDRESS": address, "ANABRANCH_CENSUS_INTERVAL_MS": "100"})
    rig.child.start()
    try:
        rig.wait_ready()
        wanted = [
            'anabranch_nodes{database="app",seen="hour"} 1.0',
            'anabranch_nodes{database="app",seen="longer"} 0.0',
            'anabranch_floor_bound_age_seconds{database="app",hold="node"}',
            'anabranch_epochs_ended{database="app"} 0.0',
            'anabranch_inbox_age_seconds{database="app"} 0.0',
            'anabranch_captured_age_seconds{database="app"}',
            'anabranch_schema_version{database="app"} 1.0',
            'anabranch_schema_changes_waiting{database="app"} 0.0',
            'anabranch_schema_change_age_seconds{database="app"} 0.0',
            'anabranch_tables_not_synced{database="app",why="changed"} 0.0',
            "anabranch_pool_open ",
            "anabranch_pool_refused_total 0.0",
        ]
        for _ in range(100):
            said = page(address)
            if all(line in said for line in wanted):
                break
            time.sleep(0.1)
        assert [line for line in wanted if line not in said] == []
    finally:
        rig.child.stop(15)


def test_a_census_without_its_database_is_made_again(ground: Ground) -> None:
    settings = load_settings(JanitorSettings, postgres_url="postgresql://127.0.0.1:1/no", census_interval_ms=100)

    async def some() -> None:
        task = asyncio.create_task(Census(settings, Clock()).run())
        done, _ = await asyncio.wait({task}, timeout=1.0)
        assert not done, "it ends where Postgres is not to be had"
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(some())
