"""A device tells of verdicts and of its clock, and shows rows while a pull saw more than its log."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.unit.client.older import before_audiences

from anabranch.client import ConflictEvent, State, SyncedDb
from anabranch.client.file import layout as layout_module
from anabranch.merge import Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.v1 import change_pb2, errors_pb2, value_pb2, verdict_pb2
from anabranch.values import Column, Kind, Table

YEAR_MS = 365 * 24 * 3600 * 1000


def test_a_loser_too_large_for_the_log_is_told_without_its_value_and_stops_nothing(device: SyncedDb) -> None:
    """Promise 7. The log leaves such a value out; the conflict itself it has."""
    told: list[ConflictEvent] = []
    device.on_conflict(told.append)
    mine = device.table("todo").update({"id": "k0", "title": "mine"})
    loser = change_pb2.Loser(
        table="todo", key=[value_pb2.Value(string_value="k0")], column="title", batch_id="theirs", winner_batch_id=mine
    )
    group = change_pb2.LoggedGroup(position=2_000, batches=[change_pb2.LoggedBatch(id=mine, losers=[loser])])
    reached = device._remote.position(2_000)  # type: ignore[attr-defined]
    device._reader._paging.page(change_pb2.Page(groups=[group], reached=reached))
    [event] = told
    assert (event.outcome, event.column, event.losing_value, event.value_known) == ("overwrote", "title", None, False)
    with pytest.raises(ValueError, match="did not come along"):
        device.restore(event)


@pytest.mark.parametrize("reason", [r for r in errors_pb2.Reason.values() if 0 < r < 40])
def test_every_reason_of_a_rejection_reaches_hook_dead_queue_and_tables(device: SyncedDb, reason: int) -> None:
    told: list[ConflictEvent] = []
    device.on_conflict(told.append)
    batch = device.table("todo").update({"id": "k0", "title": "mine"})
    row = value_pb2.NamedRow(
        columns=["id", "title", "n"],
        values=[
            value_pb2.Value(string_value="k0"),
            value_pb2.Value(string_value="theirs"),
            value_pb2.Value(int64_value=7),
        ],
    )
    mutation = verdict_pb2.MutationVerdict(
        table="todo", key=[value_pb2.Value(string_value="k0")], columns=["title"], server_row=row
    )
    verdict = verdict_pb2.Verdict(
        batch_id=batch,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        position=2_000,
        reason=errors_pb2.Reason.ValueType(reason),
        message="why",
        mutations=[mutation],
    )
    with device._file.transaction() as tx:
        device._sender._note(tx, [verdict], device._remote.state())  # type: ignore[attr-defined]
    device._listeners.deliver()
    name = errors_pb2.Reason.Name(errors_pb2.Reason.ValueType(reason)).removeprefix("REASON_")
    theirs = {"id": "k0", "title": "theirs", "n": 7}
    [event] = told
    assert (event.outcome, event.reason, event.server_row, event.losing_batch_id) == ("rejected", name, theirs, batch)
    assert (event.table, event.key, event.column) == ("todo", ("k0",), "title")
    [letter] = device.dead_letters()
    assert (letter.reason, letter.message, letter.server_row, letter.key) == (name, "why", theirs, ("k0",))
    assert letter.server_row_now == {"id": "k0", "title": "title 0", "n": 0}
    found = device.verdict(batch)
    assert found is not None
    assert (found.status, found.reason, found.mutations[0].server_row) == ("REJECTED", name, theirs)
    assert device.execute("SELECT title FROM todo WHERE id = 'k0'").fetchone() == ("title 0",)


def test_every_reason_is_one_that_a_letter_can_have() -> None:
    assert {"ROW_EXISTS", "CONSTRAINT", "EXPIRED", "REWOUND", "UNKNOWN_TABLE"} <= {
        errors_pb2.Reason.Name(r).removeprefix("REASON_") for r in errors_pb2.Reason.values() if 0 < r < 40
    }


def test_the_row_of_a_letter_is_shown_as_it_is_now(device: SyncedDb, remote: MemoryRemote, tmp_path: Path) -> None:
    other = SyncedDb(tmp_path / "other.db", remote, "d")
    other.start(background=False)
    device.table("todo").delete("k0")
    device.table("todo").insert({"id": "k0", "title": "anew"})
    other.table("todo").update({"id": "k0", "title": "theirs"})
    assert other.sync()
    assert device.sync()
    [letter, *_] = device.dead_letters()
    assert letter.reason == "CONCURRENT_UPDATE"
    other.table("todo").update({"id": "k0", "title": "later"})
    assert other.sync()
    device.table("todo").update({"id": "k1", "title": "pending"})
    device.read()
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_mutations_queue_dead SET verdict = ?", (_about("k1"),))
    [letter, *_] = device.dead_letters()
    assert letter.server_row_now == {"id": "k1", "title": "title 1", "n": 1}, "the server's row, not what is shown"
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_mutations_queue_dead SET verdict = ?", (_about("k0"),))
    [letter, *_] = device.dead_letters()
    assert letter.server_row_now == {"id": "k0", "title": "later", "n": 0}
    other.close()


def _about(key: str) -> bytes:
    mutation = verdict_pb2.MutationVerdict(table="todo", key=[value_pb2.Value(string_value=key)])
    return verdict_pb2.Verdict(reason=errors_pb2.REASON_ROW_DELETED, mutations=[mutation]).SerializeToString()


def test_a_clock_years_ahead_is_told_once_and_so_is_its_being_right_again(tmp_path: Path, remote: MemoryRemote) -> None:
    offset = [12 * YEAR_MS]
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=lambda: remote.now_ms() + offset[0])
    told: list[State] = []
    device.on_state(told.append)
    device.start(background=False)
    assert device.status().clock_skew_ms is None

    def skews() -> list[str]:
        return [s.detail for s in told if s.kind == "clock_skew"]

    device.table("todo").update({"id": "k0", "title": "from 2038"})
    assert device.sync()
    assert device.sync()
    [first] = skews()
    assert "ahead of the server's" in first
    skew = device.status().clock_skew_ms
    assert skew is not None
    assert abs(skew - 12 * YEAR_MS) < 60_000
    offset[0] = 0
    device.table("todo").update({"id": "k1", "title": "from today"})
    assert device.sync()
    assert len(skews()) == 2
    offset[0] = -YEAR_MS
    device.read()
    assert "behind the server's" in skews()[2]
    device.close()


def test_a_clock_that_jumps_to_2038_for_a_minute_expires_nothing(tmp_path: Path, remote: MemoryRemote) -> None:
    offset = [0]
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=lambda: remote.now_ms() + offset[0])
    device.start(background=False)
    todo = device.table("todo")
    made = [todo.update({"id": "k0", "title": "before"})]
    offset[0] = 12 * YEAR_MS
    made.append(todo.update({"id": "k1", "title": "meanwhile"}))
    remote.server.rows.pop(("todo", "k4"))
    made_dead = todo.delete("k4")
    device._clock.forget()
    remote.lose_answers = 1
    with pytest.raises(Exception, match="lost"):
        device.flush()
    device._clock.forget()
    assert device.sync()
    assert [d.id for d in device.dead_letters()] == [made_dead]
    offset[0] = 0
    made.append(todo.update({"id": "k2", "title": "after"}))
    assert made == sorted(made)
    device._clock.forget()
    assert device.sync()
    assert [d.id for d in device.dead_letters()] == [made_dead], "shown years ago by a clock that was wrong"
    assert [entry.id for entry in remote.server.log] == made
    device.close()


COUNTED = Table(
    "counted",
    (
        Column("id", Kind.STRING, "text"),
        Column("n", Kind.INT64, "bigint", policy="counter"),
        Column("t", Kind.STRING, "text"),
    ),
    ("id",),
)
PLAIN = Table("plain", (Column("id", Kind.STRING, "text"),), ("id",))


@pytest.fixture
def counting(tmp_path: Path) -> tuple[SyncedDb, MemoryRemote]:
    server = MemoryServer(
        {"counted": MemoryTable({"id": None, "n": 0, "t": None}), "plain": MemoryTable({"id": None})},
        Policy(columns={"n": "counter"}),
        park_ms=1000,
    )
    server.policy_of = lambda table: Policy(columns={"n": "counter"}) if table == "counted" else Policy()
    server.head = 1_000
    server.preset("counted", "x", {"id": "x", "n": 10, "t": "old"})
    clock = [2_000]

    def now_ms() -> int:
        clock[0] += 1
        return clock[0]

    remote = MemoryRemote(server, [COUNTED, PLAIN], now_ms)
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=now_ms)
    device.start(background=False)
    return device, remote


@pytest.mark.parametrize("verdict_first", [True, False], ids=["verdict, then pull", "pull, then verdict"])
def test_a_pull_of_one_table_does_not_count_an_accepted_write_twice(
    counting: tuple[SyncedDb, MemoryRemote], verdict_first: bool
) -> None:
    device, remote = counting
    device.read()
    device.table("counted").update({"id": "x", "n": 11, "t": "mine"})

    def pull_again() -> None:
        with device._file.transaction() as tx:
            tx.conn.execute("UPDATE _db_tables SET stage = 'aside' WHERE name = 'counted'")
        device._reader.prepare()

    if verdict_first:
        assert device.flush()
        pull_again()
    else:
        remote.lose_answers = 1
        with pytest.raises(Exception, match="lost"):
            device.flush()
        pull_again()
        assert device.flush()
    assert device.status().queued == 1, "the log has yet to show it"
    row = "SELECT n, t FROM counted WHERE id = 'x'"
    assert device.execute(row).fetchone() == (11, "mine")
    device.table("counted").update({"id": "x", "n": 13})
    assert device.execute(row).fetchone() == (13, "mine")
    device.read()
    assert device.execute(row).fetchone() == (13, "mine")
    assert device.sync()
    assert device.execute(row).fetchone() == (13, "mine")
    assert remote.server.live()["counted", "x"]["n"] == 13
    assert (device.status().queued, device.status().disagreeing) == (0, ())
    device.close()


def test_a_file_of_the_format_before_opens_and_keeps_what_it_has(tmp_path: Path, remote: MemoryRemote) -> None:
    device = SyncedDb(tmp_path / "d.db", remote, "d")
    device.start(background=False)
    sent = device.table("todo").update({"id": "k0", "title": "sent"})
    assert device.sync()
    queued = device.table("todo").update({"id": "k1", "title": "queued"})
    device.close()
    with sqlite3.connect(tmp_path / "d.db") as conn:
        conn.execute("ALTER TABLE _db_confirmed DROP COLUMN verdict")
        conn.execute("DROP TABLE _db_seen")
        for (trigger,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            conn.execute(f'DROP TRIGGER "{trigger}"')
        conn.execute("DROP TABLE _db_writer")
        for column in ("credential", "chosen", "describe_due"):
            conn.execute(f"ALTER TABLE _db_state DROP COLUMN {column}")
        before_audiences(conn)
        conn.execute("PRAGMA user_version = 1")
    device = SyncedDb(tmp_path / "d.db", remote, "d")
    assert device.execute("PRAGMA user_version").fetchone() == (layout_module.FORMAT,)
    greatest = device.execute("SELECT greatest_ms FROM _db_state").fetchall()
    assert device.execute("SELECT position FROM _db_seen").fetchall() == greatest
    device.start(background=False)
    assert device.status().unsent == 1
    assert device.sync()
    for batch in (sent, queued):
        found = device.verdict(batch)
        assert found is not None
        assert found.status == "APPLIED"
    device.close()
