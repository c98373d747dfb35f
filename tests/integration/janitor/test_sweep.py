"""Promise 8 in a sweep: the floor first and never past a bound; what is behind it goes, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.integration.janitor.conftest import DAY_MS, Ground, make_database
from ulid import ULID

from anabranch.store.log import partitions
from anabranch.store.retention import floor
from anabranch.store.retention.rows import VERDICTS, _delete, remove
from anabranch.store.retention.status import look, status
from anabranch.store.session.engine import connect
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch_retention_janitor.pace import SweepPace, SweepTurn, in_pieces


def test_nothing_young_goes(ground: Ground) -> None:
    positions = ground.write(3)
    swept = ground.swept(29)
    assert (swept.floor, ground.floor) == (0, 0)
    assert ground.positions() == positions


def test_what_is_behind_the_floor_goes_and_the_newest_group_stays(ground: Ground) -> None:
    positions = ground.write(3)
    swept = ground.swept(31)
    assert (swept.floor_before, swept.floor, ground.floor) == (0, positions[-1], positions[-1])
    assert ground.positions() == []
    assert ground.positions("groups") == positions[-1:]
    assert ground.number("select count(*) from app.todo") == 6
    assert not swept.unfinished
    later = ground.write(1)
    assert later[0] > positions[-1]
    assert ground.swept(31).floor == later[0]


def test_a_node_that_lags_holds_the_floor_until_it_is_away_too_long(ground: Ground) -> None:
    positions = ground.write(4)
    ground.node("A", positions[1], seen_days=20)
    ground.node("B", positions[3], seen_days=31)
    assert ground.swept(40).floor == positions[1]
    assert ground.positions() == positions[2:]
    assert ground.swept(50.5).floor == positions[3]
    assert ground.positions() == []


def test_the_floor_does_not_move_past_a_node_that_comes_back_meanwhile(ground: Ground) -> None:
    positions = ground.write(3)
    [kept] = floor.databases(ground.conn, "app")
    now_ms = ground.now_ms + 40 * DAY_MS
    ground.node("A", positions[0], seen_days=39)
    assert not floor.move_floor(ground.conn, kept, positions[2], now_ms)
    assert ground.floor == 0
    assert floor.move_floor(ground.conn, kept, positions[0], now_ms)
    assert not floor.move_floor(ground.conn, kept, positions[0], now_ms), "it saw another floor"


def test_promise_8_a_stretch_that_no_run_has_proven_stays(ground: Ground) -> None:
    """Compaction lags: whatever the window says, only published runs let the log go; and a run whose files are not to
    be found lets nothing go."""
    positions = ground.write(3)
    publish(ground, 0, positions[1])
    swept = ground.swept(60)
    assert swept.floor == 0
    assert [bound.hold.name for bound in swept.bounds][:2] == ["PROOF", "COMPACTION"]
    assert ground.positions() == positions


def publish(ground: Ground, after: int, upto: int) -> None:
    manifest = (
        '{"format": 1, "run": "r", "database": "app", "epoch": "e", "from_position": 0, "to_position": 1, '
        '"schema_version": 1, "previous": "", "tables": {}}'
    )
    ground.conn.execute(
        "insert into anabranch.compactions select id, 'r', epoch, %s, %s, 1, '/nowhere', %s::jsonb, 1 "
        "from anabranch.databases where id = %s",
        (after, upto, manifest, ground.id),
    )


def test_verdicts_and_tombstones_live_thirty_days_also_where_the_log_lives_seven(ground: Ground) -> None:
    positions = ground.write(2)
    ground.conn.execute("update anabranch.databases set policy = '{\"retention_days\": 7}'")
    table = ground.writer.table("todo").id
    old, late = (str(ULID.from_timestamp((ground.now_ms - days * DAY_MS) / 1000)) for days in (1, 0))
    server = str(ULID.from_bytes(bytes(6) + positions[0].to_bytes(6, "big") + bytes(4)))
    for batch, decided in ((old, 0), (late, 20), (server, 0)):
        ground.conn.execute(
            "insert into anabranch.batches values (%s, %s, 'n', 'p', '', 1, 0, %s, 0, '', %s)",
            (ground.id, batch, positions[0], ground.now_ms + decided * DAY_MS),
        )
    for key, tombstone, position in (("a", "T", positions[0]), ("b", None, positions[0]), ("c", "T", positions[1] + 1)):
        ground.conn.execute(
            "insert into anabranch.row_versions (table_id, key, last_position, last_node, last_batch, tombstone_batch) "
            "values (%s, %s, %s, 'n', 'b', %s)",
            (table, key, position, tombstone),
        )

    def left() -> tuple[set[str], set[str]]:
        batches = ground.conn.execute("select batch_id from anabranch.batches").fetchall()
        keys = ground.conn.execute("select key from anabranch.row_versions").fetchall()
        return {batch for (batch,) in batches}, {key for (key,) in keys}

    ground.swept(29)
    assert ground.floor == positions[1]
    assert left() == ({old, late, server}, {"a", "b", "c"})
    ground.swept(31)
    # Decided late, it may still be asked for; written after the floor, it may still be needed.
    assert left() == ({late}, {"b", "c"})
    ground.swept(51)
    assert left() == (set(), {"b", "c"})


def test_histories_of_rows_go_with_their_registration(ground: Ground) -> None:
    """A table that is dropped, or pulled anew as its key has changed, leaves the histories of its rows to a sweep."""
    ground.write(2)
    table = ground.writer.table("todo").id
    for number, tombstone in ((table, None), (table + 77, None), (table + 77, "T")):
        ground.conn.execute(
            "insert into anabranch.row_versions (table_id, key, last_position, last_node, last_batch, tombstone_batch) "
            "values (%s, %s, 9, 'n', 'b', %s)",
            (number, f"{number} {tombstone}", tombstone),
        )
    ground.swept(31)
    assert ground.conn.execute("select distinct table_id from anabranch.row_versions").fetchall() == [(table,)]


def test_conflicts_stay_where_no_file_has_them(ground: Ground) -> None:
    """A lost value can always be read: from its table until it is in proven files."""
    ground.writer.commit([Logged("todo", losers=[("k", "title", b"")])])
    ground.swept(60)
    assert ground.number("select count(*) from anabranch.conflicts") == 1


def test_leftovers_and_retired_nodes_go(ground: Ground) -> None:
    [position] = ground.write(1)
    batches = ["decided", "waits"]
    ground.conn.execute(
        "insert into anabranch.batches values (%s, 'decided', 'KEPT', 'p', '', 1, 0, %s, 0, '', %s)",
        (ground.id, position, ground.now_ms + 50 * DAY_MS),
    )
    for batch in batches:
        ground.conn.execute(
            "insert into anabranch.inbox (database_id, batch_id, node_id, principal, basis, payload, payload_sha256, "
            "arrived_ms) values (%s, %s, 'SENDS', 'p', 0, '', '', %s)",
            (ground.id, batch, ground.now_ms),
        )
    for node, seen in (("KEPT", 0), ("SENDS", 0), ("GONE", 0), ("SEEN", 40)):
        ground.node(node, position, seen_days=seen)
    ground.swept(60)
    assert [row[0] for row in ground.conn.execute("select batch_id from anabranch.inbox").fetchall()] == ["waits"]
    nodes = {row[0] for row in ground.conn.execute("select node_id from anabranch.nodes").fetchall()}
    assert nodes == {"KEPT", "SENDS", "SEEN"}


def test_a_node_that_may_be_away_for_long_is_not_forgotten_before(ground: Ground) -> None:
    """Else it would hold the floor no longer than other things are kept."""
    positions = ground.write(4)
    ground.conn.execute('update anabranch.databases set policy = \'{"retention_days": 7, "max_absence_days": 365}\'')
    ground.node("A", positions[1])
    for days in (100, 101, 364):
        assert ground.swept(days).floor == positions[1]
    assert ground.swept(366).floor == positions[3]
    ground.swept(367)
    assert ground.number("select count(*) from anabranch.nodes") == 0


def test_old_verdicts_cost_no_look_at_those_above_a_floor_that_lags(ground: Ground) -> None:
    positions = ground.write(2)
    ground.node("A", positions[0], seen_days=99)
    made = (positions[0] - DAY_MS, *range(positions[0] + 1, positions[0] + 2_001))
    ground.conn.cursor().executemany(
        "insert into anabranch.batches values (%s, %s, 'n', 'p', '', 1, 0, %s, 0, '', %s)",
        [(ground.id, str(ULID.from_timestamp(at / 1000)), max(at, positions[0]), at) for at in made],
    )
    [kept] = floor.databases(ground.conn, "app")
    limits = look(ground.conn, kept, ground.now_ms + 99 * DAY_MS).limits(positions[0])
    assert remove(ground.conn, "verdicts", limits, 100) == 1
    ground.conn.execute("analyze anabranch.batches")
    ground.conn.execute("set enable_seqscan = off")
    plan = ground.conn.execute(
        b"explain (analyze, format json) " + _delete("batches", VERDICTS), {**limits.values, "limit": 100}
    ).fetchone()
    assert plan is not None
    looked = [node["Rows Removed by Filter"] for node in nodes(plan[0][0]["Plan"]) if "Rows Removed by Filter" in node]
    assert sum(looked) < 100
    assert ground.number("select count(*) from anabranch.batches") == 2_000


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of a plan and all below it."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def test_one_janitor_sweeps_at_a_time(ground: Ground) -> None:
    positions = ground.write(2)
    with connect(ground.url, application_name="other") as other, floor.lead(other) as still:
        assert still is not None
        assert ground.sweep(60) is None
        assert ground.positions() == positions
    assert ground.sweep(60) is not None
    assert ground.positions() == []


def test_a_sweep_ends_when_its_lead_is_gone(ground: Ground) -> None:
    ground.write(2)
    with connect(ground.url, application_name="lost") as leader:
        with floor.lead(leader) as still:
            assert still is not None
            still()
            ground.conn.execute("select pg_terminate_backend(%s)", (leader.info.backend_pid,))
            with pytest.raises(psycopg.OperationalError):
                still()
        with connect(ground.url, application_name="next") as other, floor.lead(other) as still:
            assert still is not None


def test_partitions_are_made_ahead_and_dropped_behind(ground: Ground) -> None:
    ground.sweep()
    names = [leaf.name for leaf in partitions.leaves(ground.conn)]
    assert len(names) == 4
    positions = ground.write(2)
    assert ground.number("select count(*) from anabranch.log_default") == 0
    assert ground.number(f"select count(*) from anabranch.{names[0]}") == 4
    ground.sweep(40)
    assert ground.floor == positions[-1]
    after = [leaf.name for leaf in partitions.leaves(ground.conn)]
    assert not set(names) & set(after)
    assert len(after) == 4
    assert ground.positions() == []


def test_rows_of_the_default_partition_go_in_pieces(ground: Ground) -> None:
    ground.configure(sweep_max_rows=3)
    positions = ground.write(4, rows=5)
    ground.node("A", positions[2], seen_days=39)
    swept = ground.swept(40)
    assert swept.removed["log"] == 15
    assert ground.positions() == positions[3:]


def test_a_partition_that_another_database_needs_stays_and_gives_up_the_rows_of_ours(ground: Ground) -> None:
    make_database(ground.conn, "other", {"retention_days": 365})
    ground.sweep()
    positions = ground.write(2)
    other = LogWriter(ground.url, "other")
    try:
        theirs = other.insert("todo", [["a", "x"]])
    finally:
        other.close()
    ground.sweep(40)
    assert ground.floor == positions[-1]
    assert [row[0] for row in ground.conn.execute("select position from anabranch.log").fetchall()] == [theirs]


def test_a_partition_waits_for_whoever_reads_the_log(ground: Ground) -> None:
    """Nobody is kept waiting: a lock that can't be had at once is left for a later sweep."""
    ground.sweep()
    names = {leaf.name for leaf in partitions.leaves(ground.conn)}
    ground.write(2)
    with connect(ground.url, application_name="reader") as reader:
        reader.execute("select count(*) from anabranch.log")
        began = time.monotonic()
        ground.sweep(40)
        assert time.monotonic() - began < 10
        assert names <= {leaf.name for leaf in partitions.leaves(ground.conn)}
    ground.sweep(40)
    assert not names & {leaf.name for leaf in partitions.leaves(ground.conn)}


def test_writers_and_readers_go_on_while_it_sweeps(ground: Ground) -> None:
    """The log of a day long gone is swept piece by piece while groups commit; none is lost, none fails, and a group
    waits no longer than the janitor's locks may."""
    ground.write(40, rows=50)
    ground.conn.execute("update anabranch.log set position = position - %s", (40 * DAY_MS,))
    ground.conn.execute("update anabranch.groups set position = position - %s", (40 * DAY_MS,))
    ground.configure(sweep_max_rows=20, floor_max_changes=100)
    written: list[int] = []
    slowest = 0.0
    over = threading.Event()

    def write() -> None:
        nonlocal slowest
        writer = LogWriter(ground.url, "app")
        try:
            while not over.is_set():
                began = time.monotonic()
                written.append(writer.insert("todo", [[f"w{len(written):06}", "x"]]))
                slowest = max(slowest, time.monotonic() - began)
        finally:
            writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        swept = ground.swept()
    finally:
        over.set()
        thread.join()
    print(f"{len(written)} groups beside the sweep, the slowest took {slowest * 1000:.0f} ms")
    assert swept.removed["log"] == 2_000
    assert ground.positions() == written
    assert slowest < 5


@pytest.mark.slow
def test_pieces_shrink_when_they_take_too_long(ground: Ground) -> None:
    with connect(ground.url, application_name="slow", autocommit=True) as conn:
        conn.execute("set statement_timeout = 100")
        left = 40
        asked: list[int] = []

        def piece(most: int) -> int:
            nonlocal left
            asked.append(most)
            conn.execute("select pg_sleep(%s)", (most * 0.008,))
            gone = min(most, left)
            left -= gone
            return gone

        turn = SweepTurn(lambda: None, threading.Event(), time.monotonic() + 60, 0.1, 15)
        removed, done = in_pieces(turn, SweepPace(64), piece)
    assert (removed, done, left) == (40, True, 0)
    assert asked[:2] == [64, 32]
    assert min(asked) <= 8


def test_a_status_says_what_a_sweep_then_does(ground: Ground) -> None:
    positions = ground.write(3)
    ground.node("A", positions[1], seen_days=39)
    now_ms = ground.now_ms + 40 * DAY_MS
    [kept] = floor.databases(ground.conn, "app")
    found = status(ground.conn, kept, now_ms)
    assert found.look.target == positions[1]
    assert found.look.bounds[0].hold.name == "NODE"
    swept = ground.swept(40)
    assert swept.floor == positions[1]
    removed: dict[str, Any] = {what: rows for what, rows in swept.removed.items() if rows}
    assert removed == dict(found.removes) == {"log": 4, "groups": 1}


def test_changes_of_audiences_go_with_the_floor_and_principals_that_nobody_misses(ground: Ground) -> None:
    positions = ground.write(3)
    day = ground.now_ms
    for position in positions:
        ground.conn.execute(
            "insert into anabranch.audience_changes values (%s, %s, 'p', '{a}', '{}')", (ground.id, position)
        )
    for principal, seen_ms in [("p", day), ("old", day), ("young", day + 20 * DAY_MS)]:
        ground.conn.execute(
            "insert into anabranch.principals values (%s, %s, '{a}', null, %s)", (ground.id, principal, seen_ms)
        )
    ground.node("A", positions[1], seen_days=39)
    assert ground.swept(29).removed["principals"] == 0
    swept = ground.swept(40)
    assert (swept.floor, swept.removed["audience_changes"], swept.removed["principals"]) == (positions[1], 2, 1)
    assert ground.positions("audience_changes") == positions[2:]
    kept = ground.conn.execute("select principal from anabranch.principals order by 1").fetchall()
    assert kept == [("p",), ("young",)], "one has a node"
