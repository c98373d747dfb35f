"""V05: what a pull shows of itself where its table shrinks meanwhile, and that pulls are counted with their reason."""

from __future__ import annotations

import itertools
from pathlib import Path

import psycopg
import pytest

from anabranch.client import CallFailed, Progress, SyncedDb
from anabranch.client.events import State
from anabranch.store import migrate
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.exposition import shown
from anabranch.testkit.network import Network
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until

ROWS, CUT_AT, LEFT = 100_000, 50_000, 10_000
PATIENCE_S = 90.0


def prepare(url: str) -> None:
    migrate.upgrade(url)
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute("create table public.item (id int primary key, body text)")
        conn.execute("insert into public.item select n, repeat('x', 40) from generate_series(1, 100000) n")
        create_database(conn, "shop", "public")
        add_table(conn, "shop", "item")
        conn.execute("analyze public.item")


def failures(stack: Stack, reason: str) -> float:
    return shown(stack.metrics_addresses["snapshot"], "anabranch_failures_total", reason=reason)


def wait_for_drain(url: str, rows: int) -> None:
    """Until the log has all that was written by SQL."""
    with psycopg.connect(url, autocommit=True) as conn:
        until(lambda: conn.execute("select row_count from anabranch.table_sums").fetchone() == (rows,), PATIENCE_S)


def shares(told: list[Progress]) -> list[float]:
    assert told
    found = [one.share for one in told]
    assert all(0 <= share <= 1 for share in found), found
    assert all(before <= after for before, after in itertools.pairwise(found)), "it never goes back"
    assert [share == 1 for share in found] == [one.done for one in told]
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_pull_of_a_table_that_shrinks_stays_within_one(databases: TestDatabases, tmp_path: Path) -> None:
    url = databases.prepared("shrinking", prepare)
    network = Network()
    states: list[State] = []
    told: list[Progress] = []
    with Stack(url, folder=tmp_path) as stack:
        remote = remote_of(stack.addresses, stack.new_key("gate", database="shop"), [network])
        device = SyncedDb(tmp_path / "device.db", remote, "shop", "gate")
        device.on_state(states.append)
        try:
            network.cut_pull(CUT_AT)
            with pytest.raises(CallFailed):
                device.start(background=False, progress=told.append)
            first = shares(told)
            assert 0.3 < first[-1] < 1, "it was cut about half way"
            with psycopg.connect(url) as conn:
                conn.execute("delete from public.item where id > %s", (LEFT,))
            wait_for_drain(url, LEFT)
            told.clear()
            device.start(background=False, progress=told.append)
            assert told[-1].rows_done < ROWS, "it went on where it was cut, and what is gone did not come"
            assert shares(told)[-1] == 1
            device.read()
            assert device.execute("select count(*), sum(id) from item").fetchone() == (LEFT, LEFT * (LEFT + 1) // 2)
            assert device.status().disagreeing == ()
            assert device.status().pulls == 1, "a pull that was resumed is one"

            # Again a snapshot: the reason is told to the device, and counted where it was told.
            assert failures(stack, "BEHIND_FLOOR") == 0
            with psycopg.connect(url) as conn:
                conn.execute("update public.item set body = 'y' where id = 1")
                conn.commit()
                conn.execute("delete from public.item where id = 2")
            wait_for_drain(url, LEFT - 1)
            with psycopg.connect(url) as conn:
                head = "(select max(position) from anabranch.groups)"
                conn.execute(f"update anabranch.databases set floor_ms = {head}")
                conn.execute(f"delete from anabranch.log where position <= {head}")
            device.read()
            assert device.status().pulls == 2
            assert failures(stack, "BEHIND_FLOOR") >= 1
            assert [state.kind for state in states].count("pulled") == 2
            assert device.execute("select count(*) from item").fetchone() == (LEFT - 1,)
        finally:
            device.close()
    databases.release(url)


@pytest.mark.parametrize(
    ("rows_done", "estimated", "done", "share"),
    [(0, 0, False, 0.0), (0, 100, False, 0.0), (50, 100, False, 0.5), (100, 100, False, 0.99), (50, 10, False, 0.99),
     (50, 10, True, 1.0), (0, 0, True, 1.0), (50, 0, False, 0.0)],
)  # fmt: skip
def test_a_share(rows_done: int, estimated: int, done: bool, share: float) -> None:
    assert Progress("item", rows_done, estimated, done).share == share
