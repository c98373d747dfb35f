"""A full disk, and whatever else makes SQLite end a transaction by itself, at every point of the device's work: all of
it or nothing, and the same work done again with room."""

from __future__ import annotations

import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.unit.client.older import before_audiences

from anabranch.client import Batch, DiskFull, FileFailed, State, SyncedDb
from anabranch.client.file.device_file import DeviceFile
from anabranch.merge.model import MutationType
from anabranch.testkit.memory_remote import MemoryRemote

LONG = "x" * 9_000
"""More than two pages: a row that can't find room in what is there."""
_MOST = 3_000


def shown(device: SyncedDb) -> list[tuple[object, ...]]:
    return device.execute("SELECT * FROM todo ORDER BY id").fetchall()


def queued(device: SyncedDb) -> list[tuple[object, ...]]:
    return device.execute("SELECT id, value FROM _db_mutations_queue ORDER BY id").fetchall()


def everything(file: DeviceFile) -> dict[str, list[tuple[object, ...]]]:
    """All that the file holds, sound."""
    with sqlite3.connect(file.path) as conn:
        conn.create_collation("ANABRANCH_DECIMAL", lambda a, b: (a > b) - (a < b))
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [n for (n,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        held = {name: conn.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
    conn.close()
    return held


class Faults:
    """Real faults of SQLite on a file's writing connection, one point after the other."""

    def __init__(self, file: DeviceFile) -> None:
        self.file = file
        self.conn = file._write
        self.path = file.path
        self.statements = 0

    @contextmanager
    def interrupted(self, number: int) -> Iterator[None]:
        """SQLite is interrupted in the statement of this number, from 1. COMMIT has no point at which it could be
        interrupted and would not have committed: ``no_room_to_commit`` is for that."""
        self.statements = 0
        now = False

        def begins(sql: str) -> None:
            nonlocal now
            if not sql.startswith(("COMMIT", "ROLLBACK", "RELEASE", "--")):
                self.statements += 1
                now = self.statements == number
            else:
                now = False

        self.conn.set_trace_callback(begins)
        self.conn.set_progress_handler(lambda: int(now), 1)
        try:
            yield
        finally:
            self.conn.set_trace_callback(None)
            self.conn.set_progress_handler(None, 0)

    @contextmanager
    def no_page_after(self, more: int) -> Iterator[None]:
        """The database has room for so many more pages."""
        with self.file._held():
            (pages,) = self.conn.execute("PRAGMA page_count").fetchone()
            self.conn.execute(f"PRAGMA max_page_count = {pages + more}").fetchone()
        try:
            yield
        finally:
            with self.file._held():
                self.conn.execute("PRAGMA max_page_count = 1073741823").fetchone()

    @contextmanager
    def no_room_to_commit(self, more: int) -> Iterator[None]:
        """No file of this process becomes longer than the write-ahead log and so many pages: what fails is COMMIT."""
        log = Path(f"{self.path}-wal")
        size = (log.stat().st_size if log.exists() else 0) + more * 4_096
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WAYS = ["interrupted", "no_page_after", "no_room_to_commit"]


class Ground:
    """One device's file, as often as it is wanted: every point has its own copy, and its own server."""

    def __init__(self, folder: Path, new_remote: Callable[[], MemoryRemote]) -> None:
        self._folder = folder
        self._new_remote = new_remote
        self._made = 0

    def device(self) -> tuple[SyncedDb, MemoryRemote]:
        self._made += 1
        remote = self._new_remote()
        device = SyncedDb(self._folder / f"{self._made}.db", remote, "d", "device")
        device.start(background=False)
        return device, remote


def nothing(device: SyncedDb, remote: MemoryRemote) -> None:
    """No more than the first pull comes before."""


def at_every_point(
    ground: Ground,
    way: str,
    work: Callable[[SyncedDb], object],
    before: Callable[[SyncedDb, MemoryRemote], object] = nothing,
    whole: bool = True,
) -> int:
    """Do ``work`` with the fault at every point, until it is done in spite of it. After each failure the file holds
    what it held, where the work is one transaction (``whole``), and the same work is done with room; gives the number
    of failures."""
    failures = 0
    for point in range(_MOST):
        device, remote = ground.device()
        before(device, remote)
        faults = Faults(device._file)
        held = everything(device._file)
        failed = False
        try:
            with getattr(faults, way)(point + 1 if way == "interrupted" else point):
                work(device)
        except (sqlite3.Error, MemoryError):
            failed = True
            device._row_check.end()
            assert not device._file._write.in_transaction
            now = everything(device._file)
            assert now == held or not whole
            # Everything that is queued is shown, and everything that is shown is known.
            assert len(now["_db_pending_rows"]) >= len(now["_db_mutations_queue"])
            work(device)
        assert device.sync()
        assert device.dead_letters() == []
        assert [list(row) for row in shown(device)] == sorted(remote.rows(remote.tables["todo"]))
        device.close()
        failures += failed
        if not failed and (way != "interrupted" or faults.statements <= point):
            return failures
    raise AssertionError(f"{way} never let it through")


def write_much(device: SyncedDb) -> None:
    todo = device.table("todo")
    with device.batch():
        for number in range(3):
            todo.insert({"id": f"a{number}", "title": LONG})
        todo.update({"id": "k0", "title": LONG})
        todo.delete(["k1", "k2"])
        todo.insert([{"id": f"m{i:03}", "title": "x" * 40} for i in range(5)])


def by_others(device: SyncedDb, remote: MemoryRemote) -> None:
    """Own batches, of which one waits, meet what others did to the same rows and to new ones."""
    device.table("todo").update({"id": "k0", "n": 7})
    assert device.flush()
    device.table("todo").update({"id": "k1", "title": LONG})
    remote.write(
        [("todo", MutationType.UPDATE, "k1", {"n": 70}), ("todo", MutationType.DELETE, "k4", {})]
        + [("todo", MutationType.INSERT, f"s{i}", {"id": f"s{i}", "title": LONG, "n": i}) for i in range(2)]
    )


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("work", [SyncedDb.read, SyncedDb.flush, SyncedDb.sync], ids=["read", "flush", "sync"])
def test_the_sync_goes_on_wherever_the_disk_failed(
    tmp_path: Path, new_remote: Callable[[], MemoryRemote], way: str, work: Callable[[SyncedDb], object]
) -> None:
    at_every_point(Ground(tmp_path, new_remote), way, work, by_others, whole=False)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_pull_into_a_file_with_a_queue_goes_on_wherever_the_disk_failed(
    tmp_path: Path, new_remote: Callable[[], MemoryRemote], way: str
) -> None:
    def behind(device: SyncedDb, remote: MemoryRemote) -> None:
        by_others(device, remote)
        device._reader._due()

    assert at_every_point(Ground(tmp_path, new_remote), way, SyncedDb.read, behind, whole=False)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_whole_or_not_there_wherever_the_disk_fails(
    tmp_path: Path, new_remote: Callable[[], MemoryRemote], way: str
) -> None:
    assert at_every_point(Ground(tmp_path, new_remote), way, write_much)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_an_app_that_goes_on_after_an_error_writes_nothing_outside_of_its_batch(
    tmp_path: Path, new_remote: Callable[[], MemoryRemote], way: str
) -> None:
    """The writes that a failed call took back are not in the batch, and the others are in it whole, or nothing is."""
    ground = Ground(tmp_path, new_remote)
    failures = 0
    for point in range(_MOST):
        device, remote = ground.device()
        faults = Faults(device._file)
        held = everything(device._file)
        todo = device.table("todo")
        saved: dict[str, str] = {}
        told = False
        try:
            with getattr(faults, way)(point + 1 if way == "interrupted" else point), device.batch():
                for number in range(4):
                    with suppress(sqlite3.Error, MemoryError):
                        todo.insert({"id": f"a{number}", "title": LONG})
                        saved[f"a{number}"] = LONG
        except (sqlite3.Error, MemoryError):
            told = True
            assert everything(device._file) == held
        else:
            rows = dict(device.execute("SELECT id, title FROM todo WHERE id LIKE 'a%'"))
            assert rows == saved
        before = shown(device)
        assert device.sync()
        assert shown(device) == before
        assert [list(row) for row in before] == sorted(remote.rows(remote.tables["todo"]))
        device.close()
        failures += told or len(saved) < 4
        if not told and len(saved) == 4 and (way != "interrupted" or faults.statements <= point):
            break
    assert failures


def test_a_trigger_that_rolls_back_ends_the_batch_and_not_only_its_call(device: SyncedDb) -> None:
    with sqlite3.connect(device._file.path) as conn:
        conn.execute(
            "CREATE TRIGGER apps BEFORE INSERT ON todo WHEN NEW.id = 'bad' BEGIN SELECT RAISE(ROLLBACK, 'no'); END"
        )
    conn.close()
    before = shown(device)
    todo = device.table("todo")
    with pytest.raises(FileFailed), device.batch():  # noqa: PT012
        todo.insert({"id": "a", "title": "small"})
        with pytest.raises(FileFailed, match="undone the whole transaction: no"):
            todo.insert({"id": "bad"})
        with suppress(FileFailed):
            todo.insert({"id": "c", "title": "small"})
    assert shown(device) == before
    assert queued(device) == []


def test_a_file_that_has_no_room_for_the_next_format_keeps_its_own(device: SyncedDb) -> None:
    path = device._file.path
    device.close()
    with sqlite3.connect(path) as conn:
        # A file of that format has no guards.
        for (name,) in conn.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE '\\_db\\_refuse%' ESCAPE '\\'"
        ).fetchall():
            conn.execute(f'DROP TRIGGER "{name}"')
        conn.execute("DROP TABLE _db_writer")
        for column in ("credential", "chosen", "describe_due"):
            conn.execute(f"ALTER TABLE _db_state DROP COLUMN {column}")
        before_audiences(conn)
        conn.execute("PRAGMA user_version = 3")
    conn.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Less than one page of the write-ahead log.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_024, hard))
    try:
        with pytest.raises(sqlite3.Error):
            SyncedDb(path, device._remote, "d")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("PRAGMA user_version").fetchone() == (3,)
    again = SyncedDb(path, device._remote, "d")
    again.start(background=False)
    assert again.sync()
    assert len(shown(again)) == 5
    again.close()


def test_the_sync_in_the_background_survives_a_full_disk_and_says_so(device: SyncedDb, remote: MemoryRemote) -> None:
    """There is no room for a dead letter: the batch stays queued, and is asked about again."""
    told: list[State] = []
    heard = {"disk_full": threading.Event(), "dead_letter": threading.Event()}

    def hear(state: State) -> None:
        told.append(state)
        if state.kind in heard:
            heard[state.kind].set()

    device.on_state(hear)
    device.table("todo").update({"id": "k4", "title": LONG * 20})
    remote.write([("todo", MutationType.DELETE, "k4", {})])
    device.stop()
    with Faults(device._file).no_page_after(0):
        device.start()
        assert heard["disk_full"].wait(30)
        assert (device.status().queued, device.status().dead) == (1, 0)
    assert "device.db" in next(s.detail for s in told if s.kind == "disk_full")
    # A write finds room: nobody waits for a backoff to end.
    device.table("todo").update({"id": "k0", "n": 1})
    assert heard["dead_letter"].wait(30)
    assert device.status().dead == 1


def test_the_error_names_the_disk_and_the_batch_is_over(device: SyncedDb) -> None:
    before = shown(device)
    todo = device.table("todo")

    def write(batch: Batch) -> None:
        todo.insert({"id": "a", "title": "small"})
        with pytest.raises(DiskFull, match=r"device\.db can't grow.*Make room"):
            todo.insert([{"id": f"b{i}", "title": LONG} for i in range(9)])
        device._file._write.abandon(DiskFull("as SQLite does where it can't undo the statement alone"))
        for i in range(9):
            with pytest.raises(DiskFull, match="undone the whole transaction"):
                todo.insert({"id": f"c{i}", "title": "small"})

    opened = []
    with pytest.raises(DiskFull), Faults(device._file).no_page_after(3), device.batch() as batch:  # noqa: PT012
        opened.append(batch)
        write(batch)
    assert opened[0].id == ""
    assert shown(device) == before
    assert queued(device) == []
