"""Where things are not as they should be: clocks, databases that were deleted by hand, proofs that take long."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.janitor.conftest import DAY_MS, Ground, make_database

from anabranch.clock import Clock
from anabranch.runtime.config import load_settings
from anabranch.runtime.errors import CallError
from anabranch.store.log import partitions
from anabranch.store.retention.status import Look, look
from anabranch.testkit.log_writer import LogWriter
from anabranch.v1 import errors_pb2, retention_pb2
from anabranch_retention_janitor import sweep
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.janitor import Janitor
from anabranch_retention_janitor.servicer import JanitorServicer
from anabranch_retention_janitor.sweep import ClockError

HOUR_MS = 3_600_000


def test_a_clock_far_ahead_of_postgres_removes_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    positions = ground.write(2)

    def ahead(hours: float) -> None:
        monkeypatch.setattr(sweep, "machine_ms", lambda: time.time_ns() // 1_000_000 + round(hours * HOUR_MS))

    ahead(24 * 365)
    with pytest.raises(ClockError, match=r"8760\.0 h ahead"):
        ground.sweep(365)
    settings = load_settings(JanitorSettings, postgres_url=ground.url)
    janitor = Janitor(settings, Clock(365 * DAY_MS))
    asyncio.run(janitor._sweep_all())
    assert "8760.0 h ahead" in capsys.readouterr().out
    assert (ground.floor, ground.positions()) == (0, positions)
    assert not partitions.leaves(ground.conn)
    # A leap second, a slow NTP server, another time zone's neighbour: whatever is less than an hour.
    ahead(0.9)
    assert ground.swept(365).floor == positions[-1]
    ahead(-24)
    assert ground.sweep(365) is not None


def test_who_asks_for_a_sweep_is_told_of_the_clock(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = ground.write(1)
    monkeypatch.setattr(sweep, "machine_ms", lambda: time.time_ns() // 1_000_000 + 2 * HOUR_MS)
    janitor = Janitor(load_settings(JanitorSettings, postgres_url=ground.url), Clock(40 * DAY_MS))
    servicer = JanitorServicer(janitor, None)  # type: ignore[arg-type]

    async def state(_name: str) -> Any:
        return None

    monkeypatch.setattr(servicer, "_state", state)
    with pytest.raises(CallError) as caught:
        asyncio.run(servicer.RunSweep(retention_pb2.RunSweepRequest(db_name="app"), None))  # type: ignore[arg-type]
    assert caught.value.reason == errors_pb2.REASON_UNAVAILABLE
    assert "2.0 h ahead of Postgres's" in str(caught.value)
    assert ground.positions() == positions


def test_what_a_deleted_database_leaves_goes_in_pieces(ground: Ground) -> None:
    """By plain SQL: its own rows go with it, and those that have only its number, or a table's, later."""
    ours = ground.write(2)
    make_database(ground.conn, "other")
    writer = LogWriter(ground.url, "other")
    try:
        writer.insert("todo", [[f"{n}", "x"] for n in range(7)])
        theirs = writer.table("todo").id
    finally:
        writer.close()
    for table in (theirs, ground.writer.table("todo").id):
        ground.conn.execute(
            "insert into anabranch.row_versions (table_id, key, last_position, last_node, last_batch) "
            "select %s, n::text, 1, 'n', 'b' from generate_series(1, 5) n",
            (table,),
        )
    ground.configure(sweep_max_rows=3)
    ground.sweep()
    assert ground.number("select count(*) from anabranch.log") == 11, "nothing of a database that is there"
    ground.conn.execute("delete from anabranch.databases where name = 'other'")
    ground.sweep()
    assert ground.number("select count(*) from anabranch.log") == 4
    assert ground.positions() == ours
    assert ground.conn.execute("select distinct table_id from anabranch.row_versions").fetchall() == [
        (ground.writer.table("todo").id,)
    ]
    assert ground.number("select count(*) from anabranch.row_versions") == 5


@pytest.mark.slow
def test_the_lead_is_kept_while_a_proof_takes_long(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than Postgres lets a session be still."""
    positions = ground.write(2)
    monkeypatch.setattr(sweep, "_IDLE_MS", 400)
    asked = 0

    class Slow:
        def require(self, *_: object) -> None:
            nonlocal asked
            asked += 1
            time.sleep(1.5)

    def looked(*arguments: Any) -> Look:
        return replace(look(*arguments), proof=Slow())  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "look", looked)
    swept = ground.swept(40)
    assert asked == 1
    assert swept.floor == positions[-1]
    assert not swept.unfinished
    assert ground.positions() == []
