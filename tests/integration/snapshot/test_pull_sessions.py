"""A pull holds locks, sessions and the log in Postgres for no longer than it needs; and some wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.pulled import Pulled, rows

from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import until

STALL_MS = 3_000
OPEN = """select count(*) from pg_stat_activity
          where application_name = 'anabranch-snapshot-pull' and datname = current_database()
            and xact_start is not null"""


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_PULL_STALL_MS": str(STALL_MS),
        "ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024),
        "ANABRANCH_PULL_LOCK_TIMEOUT_MS": "5000",
    }


@pytest.fixture(scope="module")
def narrow(module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnapshotRig]:
    """A process with little patience and room for one pull."""
    environment = {
        "ANABRANCH_PULL_SESSIONS": "1",
        "ANABRANCH_PULL_WAITING": "1",
        "ANABRANCH_PULL_LOCK_TIMEOUT_MS": "100",
    }
    with SnapshotRig(module_url, tmp_path_factory.mktemp("narrow"), environment=environment) as one:
        yield one


@pytest.mark.slow
def test_a_lock_that_is_not_to_be_had_is_told_as_unavailable(
    narrow: SnapshotRig, place: Any, writer: LogWriter
) -> None:
    reader = narrow.reader(place.name)
    with connect(place.rig.url, application_name="test") as other:
        other.execute(f"lock table {place.schema}.item in access exclusive mode".encode())
        with pytest.raises(grpc.RpcError) as caught:
            next(reader.pull())
        assert failed(caught.value).reason == "UNAVAILABLE"
    assert Pulled().all(reader.pull()).done["item"].rows_done == 0
    reader.close()


@pytest.mark.slow
def test_l06_a_stalled_client_does_not_hold_its_transaction_and_can_go_on(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    made = sorted(rows(400, 50_000))
    writer.insert("item", made)
    pulled = Pulled()
    stream = reader.pull(timeout_s=None)
    pulled.take(next(stream))
    assert place.conn.execute(OPEN).fetchone() == (1,)
    started = time.monotonic()
    until(lambda: place.conn.execute(OPEN).fetchone() == (0,), 10)
    assert time.monotonic() - started < STALL_MS / 1000 + 3
    with pytest.raises(grpc.RpcError) as caught:
        pulled.all(stream)
    assert failed(caught.value).reason == "UNAVAILABLE"
    assert 0 < len(pulled.rows["item"]) < 400
    pulled.all(reader.pull([("item", pulled.responses[-1].resume)]))
    assert [row[:3] for row in pulled.rows["item"]] == [row[:3] for row in made]


@pytest.mark.slow
def test_sessions_that_postgres_ends_cost_a_resumption_and_nothing_else(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    made = sorted(rows(400, 50_000))
    writer.insert("item", made)
    pulled = Pulled()
    stream = reader.pull()
    pulled.take(next(stream))
    # The one that is kept for later pulls as well.
    (ended,) = place.conn.execute(
        """select count(pg_terminate_backend(pid)) from pg_stat_activity
           where application_name = 'anabranch-snapshot-pull' and datname = current_database()"""
    ).fetchone()
    assert ended >= 2
    with pytest.raises(grpc.RpcError) as caught:
        pulled.all(stream)
    assert failed(caught.value).reason == "UNAVAILABLE"
    pulled.all(reader.pull([("item", pulled.responses[-1].resume)]))
    assert [row[:3] for row in pulled.rows["item"]] == [row[:3] for row in made]


@pytest.mark.slow
def test_a_pull_whose_client_went_away_ends_at_once(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(400, 50_000))
    stream = reader.pull()
    next(stream)
    stream.cancel()
    until(lambda: place.conn.execute(OPEN).fetchone() == (0,), STALL_MS / 1000 * 0.8)


@pytest.mark.slow
def test_while_a_pull_runs_the_log_is_kept_from_its_moment_on(place: Any, writer: LogWriter, reader: Reader) -> None:
    head = writer.insert("item", rows(500, 20_000))
    stream = reader.pull()
    next(stream)
    query = "select acknowledged from anabranch.nodes where node_id = %s"
    until(lambda: place.conn.execute(query, (reader.node.id,)).fetchone() == (head,), 10)
    stream.cancel()


@pytest.mark.slow
def test_only_so_many_read_at_once_and_only_so_many_wait(narrow: SnapshotRig, place: Any, writer: LogWriter) -> None:
    writer.insert("item", rows(400, 50_000))
    reader = narrow.reader(place.name)
    first = reader.pull()
    next(first)
    second = reader.pull()
    until(lambda: narrow.metric("anabranch_pulls", state="waiting") == 1, 10)
    assert narrow.metric("anabranch_pulls", state="reading") == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(reader.pull())
    assert failed(caught.value).reason == "OVERLOADED"
    first.cancel()
    assert Pulled().all(second).done["item"].rows_done == 400
    reader.close()
