"""A file that is not a device's is left as it is, byte for byte, with nothing made beside it."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch.client import ClientError, FileDamaged, FileFailed, ForeignFile, SyncedDb
from anabranch.client.file import layout, opening
from anabranch.client.letters.offline import DeadQueue
from anabranch.testkit.memory_remote import MemoryRemote

WRITES_AND_DIES = """
import os, sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("PRAGMA journal_mode = WAL")
conn.execute("CREATE TABLE IF NOT EXISTS notes (body TEXT)")
conn.execute("INSERT INTO notes VALUES ('theirs')")
os._exit(0)
"""


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file of a folder: the hash of its bytes, and its mode."""
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mode) for file in folder.iterdir()
    }


def plain(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("CREATE TABLE notes (body TEXT)")
        conn.execute("INSERT INTO notes VALUES ('theirs')")


def marked(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA application_id = 1234")


def with_an_empty_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE notes (body TEXT)")


def with_a_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA user_version = 3")


def with_names_like_ours(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE _db_state (a)")
        conn.execute("PRAGMA user_version = 6")


def in_wal_mode(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE notes (body TEXT)")


def left_by_a_death(path: Path) -> None:
    """All its tables are in the write-ahead log."""
    subprocess.run([sys.executable, "-c", WRITES_AND_DIES, str(path)], check=True)
    assert path.with_name(path.name + "-wal").stat().st_size
    assert path.with_name(path.name + "-shm").exists()


def copied_without_its_index(path: Path) -> None:
    left_by_a_death(path)
    path.with_name(path.name + "-shm").unlink()


def text(path: Path) -> None:
    path.write_text("no database at all, but long enough to be taken for a page of one" * 99)


def short(path: Path) -> None:
    path.write_bytes(b"x")


def like_a_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + os.urandom(5_000))


FOREIGN = [
    plain,
    marked,
    with_an_empty_table,
    with_a_version,
    with_names_like_ours,
    in_wal_mode,
    left_by_a_death,
    copied_without_its_index,
    text,
    short,
    like_a_header,
]


@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__)
def test_anothers_file_is_refused_and_left_as_it_is(
    tmp_path: Path, remote: MemoryRemote, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "theirs.db"
    make(path)
    before = contents(tmp_path)
    for opened in (lambda: SyncedDb(path, remote, "d"), lambda: DeadQueue(path)):
        with pytest.raises(ForeignFile) as raised:
            opened()
        assert str(path) in str(raised.value)
        assert "give the path of a device's file, or one where there is no file yet" in str(raised.value)
        assert contents(tmp_path) == before


def test_anothers_file_in_use_is_refused_and_its_owner_goes_on(tmp_path: Path, remote: MemoryRemote) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE notes (body TEXT)")
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO notes VALUES ('theirs')")
        before = contents(tmp_path)
        with pytest.raises(ForeignFile):
            SyncedDb(path, remote, "d")
        after = contents(tmp_path)
        # The index is memory that all who have the file open share.
        assert after.pop("theirs.db-shm")[1] == before.pop("theirs.db-shm")[1]
        assert after == before
        conn.execute("COMMIT")
        assert conn.execute("SELECT * FROM notes").fetchall() == [("theirs",)]


def test_what_is_no_plain_file_is_refused(tmp_path: Path, remote: MemoryRemote) -> None:
    with pytest.raises(ForeignFile, match="it is a folder"):
        SyncedDb(tmp_path, remote, "d")
    assert list(tmp_path.iterdir()) == []
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ForeignFile, match="no plain file"):
        SyncedDb(tmp_path / "pipe", remote, "d")
    with pytest.raises(FileFailed, match="can't be made"):
        SyncedDb(tmp_path / "missing" / "d.db", remote, "d")
    with pytest.raises(ForeignFile, match="there is no file"):
        DeadQueue(tmp_path / "none.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(ForeignFile, match="there is nothing in it"):
        DeadQueue(tmp_path / "empty.db")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty.db", "pipe"]


def test_an_empty_file_is_a_new_one_and_is_marked(tmp_path: Path, remote: MemoryRemote) -> None:
    (tmp_path / "d.db").touch()
    with closing(sqlite3.connect(tmp_path / "e.db")) as conn:
        conn.execute("PRAGMA journal_mode = WAL")  # As an earlier release leaves it that is killed at once.
    for name in ("d.db", "e.db", "f.db"):
        with closing(SyncedDb(tmp_path / name, remote, "d")) as device:
            device.start(background=False)
            assert device.sync()
        with closing(sqlite3.connect(tmp_path / name)) as conn:
            assert conn.execute("PRAGMA application_id").fetchone() == (layout.APPLICATION_ID,)


def test_a_file_that_was_left_when_it_had_its_mark_alone_is_made_whole(tmp_path: Path, remote: MemoryRemote) -> None:
    with closing(sqlite3.connect(tmp_path / "d.db")) as conn:
        conn.execute(f"PRAGMA application_id = {layout.APPLICATION_ID}")
    with closing(SyncedDb(tmp_path / "d.db", remote, "d")) as device:
        device.start(background=False)
        assert device.sync()


@pytest.mark.parametrize("left", ["closed", "killed", "without its index", "in a rollback mode"])
def test_a_file_from_before_the_mark_is_known_and_gets_it(tmp_path: Path, remote: MemoryRemote, left: str) -> None:
    path, old = tmp_path / "d.db", tmp_path / "old.db"
    device = SyncedDb(path, remote, "d")
    device.start(background=False)
    device.table("todo").update({"id": "k0", "title": "queued"})
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA application_id = 0")
        if left == "closed":
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        elif left == "in a rollback mode":
            conn.execute("VACUUM INTO ?", (str(old),))
    if left != "in a rollback mode":
        for ending in ("", "-wal", "-shm"):
            if ending != "-shm" or left == "killed":
                shutil.copyfile(f"{path}{ending}", f"{old}{ending}")
    device.close()
    with closing(SyncedDb(old, remote, "d")) as again:
        assert again.execute("PRAGMA application_id").fetchone() == (layout.APPLICATION_ID,)
        assert again.status().queued == 1
    with closing(sqlite3.connect(old)) as conn:
        assert conn.execute("PRAGMA application_id").fetchone() == (layout.APPLICATION_ID,)


def test_the_switch_to_the_log_waits_for_another_that_writes(
    tmp_path: Path, device: SyncedDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where several processes make a file at one moment."""
    with closing(sqlite3.connect(device._file.path)) as conn:
        conn.execute("VACUUM INTO ?", (str(tmp_path / "other.db"),))
    waits: list[float] = []
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            writer.execute("COMMIT")

        monkeypatch.setattr(opening, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        with closing(SyncedDb(tmp_path / "other.db", device._remote, "d")) as opened:
            assert opened.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert len(waits) == 1


DAMAGES = {
    "a table": ("DROP TABLE _db_confirmed", "its table _db_confirmed is missing"),
    "a column": ("ALTER TABLE _db_mutations_queue DROP COLUMN verdict", "_db_mutations_queue has no column verdict"),
    "the state": ("DELETE FROM _db_state", "the row of its state is missing"),
    "an id": ("UPDATE _db_state SET node_id = 'x'", "its node's id, 'x'"),
    "a number": ("UPDATE _db_state SET cursor_ms = 'x'", "_db_state.cursor_ms is of another type"),
    "a negative number": ("UPDATE _db_state SET cursor_ms = -1", "a value of its state can't be one"),
    "limits": ("UPDATE _db_state SET limits = x'ffff'", "the server's limits or policies"),
    "a description": ("UPDATE _db_tables SET value = x'ffff'", "the description of the table todo can't be read"),
    "a pull": ("UPDATE _db_tables SET pull_table = 'notes'", "the pull of todo can't be"),
    "a stage": ("UPDATE _db_tables SET stage = 'liwe'", "the pull of todo can't be"),
    "a sum": ("UPDATE _db_tables SET hash = 7", "_db_tables.hash is of another type"),
    "a number of a format": ("PRAGMA user_version = 4", "duplicate column"),
    "no format": ("PRAGMA user_version = 0", "already exists"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_file_is_refused_by_name_and_keeps_what_it_has(device: SyncedDb, what: str) -> None:
    path = device._file.path
    queued = device.table("todo").update({"id": "k0", "title": "queued"})
    device.close()
    sql, said = DAMAGES[what]
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute(sql)
    before = contents(path.parent)
    for opened in (lambda: SyncedDb(path, device._remote, "d"), lambda: DeadQueue(path)):
        with pytest.raises(FileDamaged) as raised:
            opened()
        assert str(raised.value).startswith(f"{path} is damaged: ")
        assert said in str(raised.value)
    after = contents(path.parent)
    assert {name: after[name] for name in before} == before
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("SELECT id FROM _db_mutations_queue").fetchall() == [(queued,)]


def test_a_later_versions_file_is_refused(device: SyncedDb) -> None:
    path = device._file.path
    device.close()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"PRAGMA user_version = {layout.FORMAT + 1}")
    before = contents(path.parent)
    for opened in (lambda: SyncedDb(path, device._remote, "d"), lambda: DeadQueue(path)):
        with pytest.raises(ClientError, match=f"later version \\(format {layout.FORMAT + 1}\\)"):
            opened()
    assert contents(path.parent) == before


def test_a_file_that_was_cut_to_nothing_keeps_its_log(tmp_path: Path, device: SyncedDb) -> None:
    device.table("todo").update({"id": "k0", "title": "queued"})
    path, cut = device._file.path, tmp_path / "cut.db"
    for ending in ("", "-wal"):
        shutil.copyfile(f"{path}{ending}", f"{cut}{ending}")
    cut.write_bytes(b"")
    log = Path(f"{cut}-wal").read_bytes()
    assert log
    with pytest.raises(FileDamaged, match="it has no bytes, and its write-ahead log has some"):
        SyncedDb(cut, device._remote, "d")
    assert Path(f"{cut}-wal").read_bytes() == log


def test_the_row_that_lets_the_app_write_is_put_back(device: SyncedDb) -> None:
    path = device._file.path
    device.close()
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("DELETE FROM _db_writer")
    with closing(SyncedDb(path, device._remote, "d")) as again:
        again.start(background=False)
        again.table("todo").update({"id": "k0", "title": "new"})
        assert again.sync()
