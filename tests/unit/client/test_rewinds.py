"""A device whose server was restored: what becomes of its confirmed and of its unsent work."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client import CallFailed, State, SyncedDb
from anabranch.client.reading.seen import last_common, positions, prune, saw
from anabranch.merge import MutationType
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.v1 import position_pb2, snapshot_pb2

HOUR_MS = 3_600_000


def titles(device: SyncedDb) -> dict[str, str]:
    return dict(device.execute("SELECT id, title FROM todo").fetchall())


def dead(device: SyncedDb) -> list[tuple[str, str]]:
    return [(letter.id, letter.reason) for letter in device.dead_letters()]


@pytest.fixture
def backup(remote: MemoryRemote) -> Callable[[], Callable[[], None]]:
    """Take a backup; what it gives restores it."""

    def take() -> Callable[[], None]:
        kept = copy.deepcopy(remote.server)

        def restore() -> None:
            kept.policy_of = lambda _: kept.policy
            remote.server = kept
            remote.epoch += "'"

        return restore

    return take


def test_confirmed_work_that_was_lost_becomes_dead_letters_and_other_work_does_not(
    device: SyncedDb, remote: MemoryRemote, backup: Callable[[], Callable[[], None]]
) -> None:
    told: list[State] = []
    device.on_state(told.append)
    device.table("todo").update({"id": "k0", "title": "kept"})
    assert device.sync()
    restore = backup()
    lost = device.table("todo").insert({"id": "new", "title": "lost"})
    assert device.sync()
    device.table("todo").update({"id": "k1", "title": "unsent"})
    restore()
    assert device.sync()
    assert dead(device) == [(lost, "REWOUND")]
    assert [(d.table, d.key, d.server_row_now) for d in device.dead_letters()] == [("todo", ("new",), None)]
    assert device.verdict(lost).reason == "REWOUND"  # type: ignore[union-attr]
    shown = titles(device)
    assert (shown["k0"], shown["k1"], "new" in shown) == ("kept", "unsent", False)
    assert remote.server.live()["todo", "k1"]["title"] == "unsent"
    assert (device.status().queued, device.status().disagreeing) == (0, ())
    assert [s.kind for s in told if s.kind in ("rewound", "dead_letter")] == ["dead_letter", "rewound"]
    # It is over: the next sync is an ordinary one.
    pulls = device.status().pulls
    assert device.sync()
    assert device.status().pulls == pulls
    device.replay(lost)
    assert device.sync()
    assert remote.server.live()["todo", "new"]["title"] == "lost"


def test_lost_work_is_sent_again_where_the_policy_says_so(
    tmp_path: Path, remote: MemoryRemote, backup: Callable[[], Callable[[], None]]
) -> None:
    remote.on_rewind = "resupply"
    device = SyncedDb(tmp_path / "d.db", remote, "d", "device")
    device.start(background=False)
    restore = backup()
    todo = device.table("todo")
    made = [todo.insert({"id": "new", "title": "first"})]
    assert device.sync()
    made.append(todo.update({"id": "new", "title": "second"}))
    made.append(todo.delete("k2"))
    assert device.sync()
    assert device.status().queued == 0
    made.append(todo.update({"id": "new", "n": 7}))
    restore()
    common = remote.server.head
    remote.cut_pull_after = 0
    with pytest.raises(CallFailed):
        device.sync()
    # Before the snapshot is there they are shown on top of what was there, and nothing is sent.
    assert titles(device)["new"] == "second"
    assert [i for (i,) in device.execute("SELECT id FROM _db_mutations_queue ORDER BY id")] == made
    assert {basis for (basis,) in device.execute("SELECT basis FROM _db_mutations_queue")} == {common}
    assert not remote.server.log
    assert device.sync()
    assert [entry.id for entry in remote.server.log] == made
    assert remote.server.live()["todo", "new"] == {"id": "new", "title": "second", "n": 7}
    assert ("todo", "k2") not in remote.server.live()
    assert titles(device)["new"] == "second"
    assert "k2" not in titles(device)
    assert (device.status().queued, device.status().dead, device.status().disagreeing) == (0, 0, ())
    device.close()


@pytest.mark.parametrize("first", ["flush", "read"])
def test_a_verdict_alone_is_enough_to_notice(
    device: SyncedDb, remote: MemoryRemote, backup: Callable[[], Callable[[], None]], first: str
) -> None:
    restore = backup()
    lost = device.table("todo").update({"id": "k0", "title": "lost"})
    assert device.flush()
    assert device.status().queued == 1
    restore()
    unsent = device.table("todo").update({"id": "k1", "title": "unsent"})
    if first == "read":
        device.read()
    assert device.sync()
    assert dead(device) == [(lost, "REWOUND")]
    assert titles(device)["k0"] == "title 0"
    assert [entry.id for entry in remote.server.log] == [unsent]
    assert device.status().queued == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_server_that_is_restored_while_a_pull_waits_for_its_turn_is_noticed_by_a_verdict_alone(
    device: SyncedDb,
    remote: MemoryRemote,
    backup: Callable[[], Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
    whole: bool,
) -> None:
    """The call was let in by the server that had decided the batch, and is served by one that knows nothing of it."""
    restore = backup()
    lost = device.table("todo").update({"id": "k0", "title": "lost"})
    assert device.flush()
    assert device.status().queued == 1
    wants_a_pull(device, whole)

    def restored() -> None:
        epoch = remote.epoch
        restore()
        # Nobody has told the restored server yet.
        remote.epoch = epoch
        remote.write([("todo", MutationType.UPDATE, "k2", {"title": "new history"})])

    serving = iter([restored])
    pull = remote.pull

    def admitted(request: snapshot_pb2.PullRequest) -> Any:
        found = pull(request)
        next(serving, lambda: None)()
        return found

    monkeypatch.setattr(remote, "pull", admitted)
    monkeypatch.setattr(remote, "_has", in_history(remote, {device_greatest(device)}))
    device.read()
    assert dead(device) == [(lost, "REWOUND")]
    assert titles(device)["k0"] == "title 0"
    assert titles(device)["k2"] == "new history"
    assert device.sync()
    assert (device.status().queued, device.status().disagreeing) == (0, ())


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_verdict_tells_during_a_pull_is_still_known_after_it(
    device: SyncedDb,
    remote: MemoryRemote,
    backup: Callable[[], Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
    whole: bool,
) -> None:
    """The pull shows an earlier moment than what was seen meanwhile, in one and the same history."""
    restore = backup()
    wants_a_pull(device, whole)
    made: list[str] = []
    pull = remote.pull

    def beside(request: snapshot_pb2.PullRequest) -> Any:
        responses = list(pull(request))
        if not made:
            made.append(device.table("todo").update({"id": "k0", "title": "decided meanwhile"}))
            assert device.flush()
        return _Responses(responses)

    monkeypatch.setattr(remote, "pull", beside)
    device._reader.prepare()
    assert device_greatest(device) == remote.server.head
    assert device.status().unsent == 0, "its verdict holds"
    restore()
    assert device.sync()
    assert dead(device) == [(made[0], "REWOUND")]
    assert titles(device)["k0"] == "title 0"


def test_work_that_was_confirmed_before_the_log_goes_back_to_is_asked_for_as_long_as_verdicts_are_kept(
    device: SyncedDb, remote: MemoryRemote, backup: Callable[[], Callable[[], None]]
) -> None:
    """A log of seven days, verdicts of thirty, and a backup that is ten days old."""
    restore = backup()
    lost = device.table("todo").update({"id": "k0", "title": "lost"})
    assert device.sync()
    with device._file.transaction() as tx:
        policy = snapshot_pb2.DatabasePolicy(retention_days=7, max_absence_days=30)
        tx.set(policy=policy.SerializeToString())
    later = remote.now_ms() + 10 * 24 * HOUR_MS
    remote.now_ms = lambda: later
    restore()
    assert device.sync()
    assert dead(device) == [(lost, "REWOUND")]


def test_a_second_restore_before_the_snapshot_of_the_first_is_noticed_as_well(
    device: SyncedDb,
    remote: MemoryRemote,
    backup: Callable[[], Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one lost the later batch, the second one the earlier one, too, which the first still knew."""
    older = backup()
    made, positions_of = [], []
    restores = []
    for title in ("first", "second"):
        restores.append(backup())
        made.append(device.table("todo").update({"id": "k0", "title": title}))
        assert device.sync()
        positions_of.append(device_greatest(device))
    unsent = device.table("todo").update({"id": "k1", "title": "unsent"})
    restores[1]()
    pull = remote.pull
    once_more = iter([older])

    def restored(request: snapshot_pb2.PullRequest) -> Any:
        restore = next(once_more, None)
        if restore is not None:
            restore()
            remote.write([("todo", MutationType.UPDATE, "k2", {"title": "new history"})])
            monkeypatch.setattr(remote, "_has", lambda seen: seen.server_timestamp_ms not in positions_of)
        return pull(request)

    monkeypatch.setattr(remote, "pull", restored)
    for _ in range(3):
        with contextlib.suppress(CallFailed):
            device.sync()
    assert device.sync()
    assert dead(device) == [(batch, "REWOUND") for batch in made]
    assert titles(device) == {**{f"k{n}": f"title {n}" for n in (0, 3, 4)}, "k1": "unsent", "k2": "new history"}
    assert unsent in remote.server.verdicts
    assert (device.status().queued, device.status().disagreeing) == (0, ())


@pytest.mark.parametrize("done", [False, True])
def test_a_first_pull_that_was_cut_does_not_go_on_in_another_history(
    tmp_path: Path, remote: MemoryRemote, backup: Callable[[], Callable[[], None]], done: bool
) -> None:
    """The file has seen nothing yet but what the parts of its pull have shown; what is left of the pull may be another
    table's, of which nothing has come."""
    note = dataclasses.replace(remote.tables["todo"], name="note")
    remote.tables["note"] = note
    remote.server.tables = dict.fromkeys(("todo", "note"), remote.server.tables["todo"])
    remote.server.preset("note", "n0", {"id": "n0", "title": "kept", "n": 0})
    restore = backup()
    first = remote.server
    remote.write([("todo", MutationType.UPDATE, "k0", {"title": "lost"})])
    lost = remote.server.head
    remote.cut_pull_after = 3 if done else 1
    device = SyncedDb(tmp_path / "another.db", remote, "d", "another")
    try:
        with pytest.raises(CallFailed):
            device.start(background=False)
        assert ("todo", int(done)) in device.execute("SELECT name, pull_done FROM _db_tables").fetchall()
        epoch = remote.epoch
        restore()
        remote.epoch = epoch
        remote.write([("todo", MutationType.UPDATE, "k1", {"title": "new history"})])
        assert remote.server is not first
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remote, "_has", lambda seen: seen.server_timestamp_ms != lost)
            device.read()
        assert titles(device)["k0"] == "title 0"
        assert titles(device)["k1"] == "new history"
        assert device.execute("SELECT title FROM note").fetchall() == [("kept",)]
        assert device.status().disagreeing == ()
    finally:
        device.close()


class _Responses:
    """A stream that was read already."""

    def __init__(self, responses: Sequence[snapshot_pb2.PullResponse]) -> None:
        self._responses = iter(responses)

    def __iter__(self) -> Iterator[snapshot_pb2.PullResponse]:
        return self._responses

    def cancel(self) -> None:
        """Nothing is under way."""


def wants_a_pull(device: SyncedDb, whole: bool) -> None:
    """A new snapshot is due, or that of a table."""
    with device._file.transaction() as tx:
        if whole:
            tx.set(snapshot_due=1)
        else:
            tx.conn.execute("UPDATE _db_tables SET stage = 'aside'")


def device_greatest(device: SyncedDb) -> int:
    """The greatest position that it has seen."""
    (found,) = device.execute("SELECT greatest_ms FROM _db_state").fetchone()
    return int(found)


def in_history(remote: MemoryRemote, lost: set[int]) -> Callable[[position_pb2.Position], bool]:
    """Whether the server has a position, as its chain would tell: one that was ``lost`` in a restore it has not, even
    where its new history has come past it."""
    first = remote.server

    def has(seen: position_pb2.Position) -> bool:
        if remote.server is not first and seen.server_timestamp_ms in lost:
            return False
        return seen.server_timestamp_ms <= remote.server.head

    return has


def test_a_new_epoch_in_which_nothing_was_lost_is_taken_without_a_snapshot(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    device.table("todo").update({"id": "k0", "title": "kept"})
    assert device.sync()
    pulls = remote.calls["pull"]
    device.table("todo").update({"id": "k1", "title": "unsent"})
    remote.epoch = "epoch-2"
    assert device.sync()
    remote.epoch = "epoch-3"
    device.read()
    assert remote.calls["pull"] == pulls
    assert device.execute("SELECT greatest_epoch FROM _db_state").fetchone() == ("epoch-3",)
    assert (device.status().queued, device.status().dead) == (0, 0)


def test_a_kill_before_the_snapshot_leaves_it_to_be_taken_and_new_work_sees_no_more_than_what_is_common(
    device: SyncedDb, remote: MemoryRemote, backup: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    restore = backup()
    lost = device.table("todo").update({"id": "k0", "title": "lost"})
    assert device.sync()
    restore()
    common = remote.server.head
    remote.cut_pull_after = 0
    with pytest.raises(CallFailed):
        device.read()
    assert dead(device) == [(lost, "REWOUND")]
    device.close()
    again = SyncedDb(tmp_path / "device.db", remote, "d", "device")
    again.start(background=False)
    written = again.table("todo").update({"id": "k1", "title": "between"})
    assert again.execute("SELECT basis FROM _db_mutations_queue").fetchall() == [(common,)]
    sends = remote.calls["send"]
    remote.cut_pull_after = 0
    with pytest.raises(CallFailed):
        again.flush()
    assert remote.calls["send"] == sends
    assert again.sync()
    assert [entry.id for entry in remote.server.log] == [written]
    assert dead(again) == [(lost, "REWOUND")]
    assert (again.status().queued, again.status().disagreeing) == (0, ())
    again.close()


def test_a_pull_of_one_table_does_not_hide_that_history_was_rewound(
    device: SyncedDb, remote: MemoryRemote, backup: Callable[[], Callable[[], None]]
) -> None:
    restore = backup()
    lost = device.table("todo").update({"id": "k0", "title": "lost"})
    assert device.sync()
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_tables SET stage = 'aside'")
    restore()
    device.read()
    assert dead(device) == [(lost, "REWOUND")]
    assert titles(device)["k0"] == "title 0"


def at(position: int) -> position_pb2.Position:
    return position_pb2.Position(epoch="e", server_timestamp_ms=position, token=b"t")


@given(st.sets(st.integers(1, 10_000), max_size=3_000), st.integers(0, 10_001))
def test_the_last_common_position_is_found_in_a_few_calls(known: set[int], end: int) -> None:
    calls = 0

    def ask(some: Sequence[position_pb2.Position]) -> position_pb2.Position:
        nonlocal calls
        calls += 1
        assert 0 < len(some) <= 500
        return at(max((p.server_timestamp_ms for p in some if p.server_timestamp_ms <= end), default=0))

    found = last_common([at(p) for p in sorted(known)], ask)
    assert found == max((p for p in known if p <= end), default=0)
    assert calls <= 2


def test_positions_are_kept_ever_sparser(device: SyncedDb) -> None:
    conn = device._file.reader()
    with device._file.transaction() as tx:
        start = tx.state.greatest_ms
        for number in range(1, 401):
            saw(tx, at(start + 250 * number))
    kept = [p.server_timestamp_ms for p in positions(conn)]
    assert kept[0] == start
    assert all(1_000 <= b - a <= 1_250 for a, b in itertools.pairwise(kept))
    assert len(kept) == 101
    with device._file.transaction() as tx:
        prune(tx, kept[-1] + 2 * HOUR_MS, 30 * 24 * HOUR_MS)
    minutes = [p.server_timestamp_ms // 60_000 for p in positions(conn)]
    assert len(minutes) == len(set(minutes)) >= 2
    with device._file.transaction() as tx:
        prune(tx, kept[-1] + 31 * 24 * HOUR_MS, 30 * 24 * HOUR_MS)
    # In a database that rests the last one is as old as it may be.
    (last,) = positions(conn)
    assert last.server_timestamp_ms // 60_000 == minutes[-1]
