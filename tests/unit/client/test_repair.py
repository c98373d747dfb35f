"""Tables that are not the server's: noticed, told of, and mended row by row."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import BatchState, CallFailed, Change, Repaired, State, SyncedDb
from anabranch.client.reading import repair as repairs
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.unseen import write_unseen

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def file(tmp_path: Path, device: SyncedDb) -> Iterator[sqlite3.Connection]:
    """Another program that writes to the device's file."""
    with closing(sqlite3.connect(tmp_path / "device.db", isolation_level=None)) as conn:
        yield conn


def read(device: SyncedDb) -> None:
    """Read, and wait until the rows that were due are read as well."""
    device.read()
    for _ in range(4_000):
        if not device._reader.verify_is_due():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the rows are never read")


def states_of(device: SyncedDb) -> list[State]:
    told: list[State] = []
    device.on_state(told.append)
    return told


def rows(device: SyncedDb) -> list[Any]:
    return device.execute("SELECT id, title, n FROM todo ORDER BY id").fetchall()


def write(remote: MemoryRemote, tmp_path: Path, row: dict[str, Any]) -> None:
    """Another device's update."""
    other = SyncedDb(tmp_path / "other.db", remote, "d")
    other.start(background=False)
    other.sync()
    other.table("todo").update(row)
    assert other.sync()
    other.close()


def test_what_another_program_changed_in_the_file_is_found_by_reading_it_and_mended_alone(
    device: SyncedDb, file: sqlite3.Connection, remote: MemoryRemote
) -> None:
    read(device)
    before, told, changes = rows(device), states_of(device), list[Change]()
    device.on_change(changes.append)
    assert device.verify() == ()
    write_unseen(file, "UPDATE todo SET n = 99 WHERE id = 'k1'")
    read(device)
    assert device.status().disagreeing == ()
    assert device.verify("todo") == device.status().disagreeing == ("todo",)
    assert [(s.kind, s.table, s.position) for s in told] == [("sums_disagree", "todo", remote.server.head)]
    assert device.verify() == ("todo",)
    assert device.repair("todo") == Repaired(rows=1, pulled=False, agrees=True)
    assert remote.rows_compared == 1
    assert rows(device) == before
    assert [(c.type, c.key, c.columns, c.origin) for c in changes] == [("update", ("k1",), ("n",), "snapshot")]
    assert [s.kind for s in told] == ["sums_disagree", "sums_agree"]
    assert device.verify() == ()
    assert device.table_sums() == {s.table: (s.count, s.hash) for s in remote.sums()}


def test_rows_that_are_gone_or_one_too_many_are_mended_and_pending_writes_stay_on_top(
    device: SyncedDb, file: sqlite3.Connection, remote: MemoryRemote
) -> None:
    device.table("todo").update({"id": "k0", "n": 50})
    device.table("todo").update({"id": "k3", "title": "mine"})
    device.table("todo").insert({"id": "new", "title": "mine", "n": 1})
    write_unseen(file, "DELETE FROM todo WHERE id = 'k1'")
    write_unseen(file, "INSERT INTO todo VALUES ('extra', 'nobody wrote it', 7)")
    write_unseen(file, "UPDATE todo SET title = 'flipped' WHERE id = 'k2'")
    # The base of a row that pending writes touch is damaged as well.
    (image,) = file.execute("SELECT row FROM _db_base WHERE key = 'k3'").fetchone()
    file.execute("UPDATE _db_base SET row = ? WHERE key = 'k3'", (image.replace(b"title 3", b"title 8"),))
    assert device.verify() == ("todo",)
    assert device.repair("todo") == Repaired(rows=4, pulled=False, agrees=True)
    shown = [(f"k{i}", f"title {i}", i) for i in range(5)]
    shown[0], shown[3] = ("k0", "title 0", 50), ("k3", "mine", 3)
    assert rows(device) == [*shown, ("new", "mine", 1)]
    assert device.verify() == ()
    assert device.status().unsent == 3
    assert device.sync()
    assert device.verify() == ()
    assert rows(device) == sorted((r[0], r[1], r[2]) for r in remote.rows(remote.tables["todo"]))


def test_writes_at_the_server_meanwhile_are_no_faults_and_are_not_lost(
    device: SyncedDb, file: sqlite3.Connection, remote: MemoryRemote, tmp_path: Path
) -> None:
    write(remote, tmp_path, {"id": "k0", "title": "before the moment"})
    remote.during_compare = lambda: write(remote, tmp_path, {"id": "k2", "title": "after the moment"})
    write_unseen(file, "UPDATE todo SET title = 'flipped' WHERE id IN ('k1', 'k2')")
    assert device.repair("todo") == Repaired(rows=2, pulled=False, agrees=True)
    # Exactly the moment's rows, though the log went on.
    assert [title for _, title, _ in rows(device)] == ["before the moment", *(f"title {i}" for i in (1, 2, 3, 4))]
    read(device)
    assert rows(device)[2] == ("k2", "after the moment", 2)
    assert device.verify() == ()


def test_what_the_wire_changed_is_noticed_by_the_next_comparison(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = states_of(device)
    write(remote, tmp_path, {"id": "k2", "title": "sent so"})
    whole = MemoryRemote._effect
    monkeypatch.setattr(remote, "_effect", lambda effect: whole(remote, effect).replace(b"sent so", b"sent no"))
    read(device)
    assert [(s.kind, s.position) for s in told] == [("sums_disagree", remote.server.head)]
    assert device.status().disagreeing == ("todo",)
    monkeypatch.undo()
    assert device.repair("todo") == Repaired(rows=1, pulled=False, agrees=True)
    assert rows(device)[2] == ("k2", "sent so", 2)


@pytest.mark.parametrize("cut_after", [None, 1])
def test_a_pull_is_compared_by_a_device_that_only_syncs_when_told(
    tmp_path: Path, remote: MemoryRemote, cut_after: int | None
) -> None:
    """Also one of two moments, whose sum nobody knows beforehand."""
    device = SyncedDb(tmp_path / "d.db", remote, "d")
    told = states_of(device)
    chunks = remote._chunks

    def damaged(request: Any) -> Iterator[Any]:
        for response in chunks(request):
            response.arrow_ipc = response.arrow_ipc.replace(b"title 4", b"title 5")
            yield response

    remote._chunks = damaged  # type: ignore[method-assign]
    if cut_after is not None:
        remote.cut_pull_after = cut_after
        with pytest.raises(CallFailed):
            device.start(background=False)
        write(remote, tmp_path, {"id": "k0", "title": "between the parts"})
    device.start(background=False)
    assert device.status().disagreeing == ()
    read(device)
    assert device.status().disagreeing == ("todo",)
    assert [s.kind for s in told if s.kind.startswith("sums")] == ["sums_disagree"]
    assert device.repair("todo").rows == 1
    assert device.verify() == ()
    device.close()


def test_the_server_is_told_in_the_next_call_until_it_agrees(
    device: SyncedDb, file: sqlite3.Connection, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[list[tuple[str, int]]] = []
    get = remote.get

    def heard(request: Any) -> Any:
        said.append([(d.table, d.position) for d in request.node_state.disagreements])
        return get(request)

    monkeypatch.setattr(remote, "get", heard)
    read(device)
    write_unseen(file, "UPDATE todo SET n = 99 WHERE id = 'k1'")
    device.verify()
    read(device)
    device.repair("todo")
    read(device)
    assert said == [[], [("todo", remote.server.head)], []]


def test_rows_are_read_again_after_a_day_and_when_the_clock_was_set_back(tmp_path: Path, remote: MemoryRemote) -> None:
    now = [10 * DAY_MS]
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=lambda: now[0])
    device.start(background=False)
    read(device)
    with closing(sqlite3.connect(tmp_path / "d.db", isolation_level=None)) as conn:
        write_unseen(conn, "UPDATE todo SET n = 99 WHERE id = 'k1'")
    now[0] += DAY_MS
    read(device)
    assert device.status().disagreeing == ()
    now[0] += 1
    read(device)
    assert device.status().disagreeing == ("todo",)
    device.repair("todo")
    with closing(sqlite3.connect(tmp_path / "d.db", isolation_level=None)) as conn:
        write_unseen(conn, "UPDATE todo SET n = 99 WHERE id = 'k1'")
    now[0] -= 2 * DAY_MS
    read(device)
    assert device.status().disagreeing == ("todo",)
    device.close()


@pytest.mark.parametrize(
    "wrong", ["UPDATE todo SET n = 'no number'", "UPDATE todo SET title = x'00ff' WHERE id = 'k1'"]
)
def test_a_table_with_rows_that_cannot_be_read_is_pulled(
    device: SyncedDb, file: sqlite3.Connection, wrong: str
) -> None:
    read(device)
    before = rows(device)
    device.table("todo").update({"id": "k4", "title": "mine"})
    write_unseen(file, wrong)
    assert device.verify() == ("todo",)
    assert device.repair("todo") == Repaired(rows=0, pulled=True, agrees=True)
    assert rows(device) == [*before[:4], ("k4", "mine", 4)]
    assert device.status().unsent == 1
    assert device.verify() == ()


def test_a_row_that_cannot_be_read_does_not_stop_the_log(
    device: SyncedDb, file: sqlite3.Connection, remote: MemoryRemote, tmp_path: Path
) -> None:
    read(device)
    told = states_of(device)
    write_unseen(file, "UPDATE todo SET title = x'00ff' WHERE id = 'k1'")
    write(remote, tmp_path, {"id": "k1", "n": 8})
    read(device)
    assert [(s.kind, s.table) for s in told if s.kind == "set_aside"] == [("set_aside", "todo")]
    assert rows(device)[1] == ("k1", "title 1", 8)
    assert device.verify() == ()


def test_where_most_of_it_differs_the_table_is_pulled(
    device: SyncedDb, file: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "MOST_ROWS", 3)
    write_unseen(file, "UPDATE todo SET n = n + 100")
    assert device.repair("todo") == Repaired(rows=0, pulled=True, agrees=True)
    assert [n for _, _, n in rows(device)] == [0, 1, 2, 3, 4]


def test_repair_refuses_what_it_cannot_do(device: SyncedDb, remote: MemoryRemote) -> None:
    with pytest.raises(ValueError, match="there is no synced table 'nothing'"):
        device.repair("nothing")
    with device.batch():
        device.table("todo").update({"id": "k0", "n": 1})
        with pytest.raises(BatchState):
            device.repair("todo")
        with pytest.raises(BatchState):
            device.verify()
    remote.offline = True
    with pytest.raises(CallFailed, match="offline"):
        device.repair("todo")


def test_a_server_whose_own_rows_are_not_those_of_its_sum_is_told_of(device: SyncedDb, remote: MemoryRemote) -> None:
    read(device)
    remote.server.preset("todo", "k1", {"id": "k1", "title": "behind everybody's back", "n": 1})
    logged = [type(s)(table=s.table, count=s.count, hash=b"0" * 16) for s in remote.sums()]
    remote.sums = lambda: logged  # type: ignore[method-assign]
    assert device.repair("todo") == Repaired(rows=1, pulled=False, agrees=False)
    assert device.status().disagreeing == ("todo",)
