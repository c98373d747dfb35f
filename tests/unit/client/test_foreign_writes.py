"""Writes to synced tables by others than the package are refused; one that no trigger sees is noticed and put right."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from anabranch.client import State, SyncedDb, TriggerWrites
from anabranch.client.file import guards
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.unseen import write_unseen

FOREIGN = [
    "INSERT INTO todo (id, title) VALUES ('x', 'foreign')",
    "INSERT OR REPLACE INTO todo (id, title) VALUES ('k1', 'foreign')",
    "REPLACE INTO todo (id, title) VALUES ('new', 'foreign')",
    "INSERT OR IGNORE INTO todo (id, title) VALUES ('x', 'foreign')",
    "INSERT OR FAIL INTO todo (id, title) VALUES ('x', 'foreign')",
    "INSERT OR ROLLBACK INTO todo (id, title) VALUES ('x', 'foreign')",
    "INSERT INTO todo (id, title) VALUES ('k1', 'foreign') ON CONFLICT (id) DO UPDATE SET title = excluded.title",
    "INSERT INTO todo SELECT id || 'x', title, n FROM todo",
    "UPDATE todo SET title = 'foreign' WHERE id = 'k1'",
    "UPDATE OR REPLACE todo SET id = 'k2' WHERE id = 'k1'",
    "UPDATE todo SET id = 'other' WHERE id = 'k1'",
    "DELETE FROM todo WHERE id = 'k1'",
    "DELETE FROM todo",
]


@pytest.fixture
def foreign(device: SyncedDb) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(device._file.path, isolation_level=None)) as conn:
        yield conn


def rows(device: SyncedDb) -> list[tuple[object, ...]]:
    return device.execute("SELECT * FROM todo ORDER BY id").fetchall()


def committed_flag(conn: sqlite3.Connection) -> tuple[int]:
    found: tuple[int] = conn.execute("SELECT open FROM _db_writer").fetchone()
    return found


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
@pytest.mark.parametrize("sql", FOREIGN)
def test_a_foreign_write_is_refused_and_the_error_says_what_to_do(
    device: SyncedDb, foreign: sqlite3.Connection, sql: str, recursive: str
) -> None:
    before = rows(device)
    foreign.execute(f"PRAGMA recursive_triggers = {recursive}")
    with pytest.raises(sqlite3.IntegrityError, match=r"todo is a synced table.*SyncedDb\.table\('todo'\)\.insert"):
        foreign.execute(sql)
    assert rows(device) == before


def test_foreign_writes_are_refused_through_a_view_an_attached_file_and_a_foreign_key(
    device: SyncedDb, foreign: sqlite3.Connection, tmp_path: Path
) -> None:
    before = rows(device)
    foreign.execute("CREATE VIEW shown AS SELECT id, title FROM todo")
    foreign.execute(
        "CREATE TRIGGER through INSTEAD OF UPDATE ON shown "
        "BEGIN UPDATE todo SET title = new.title WHERE id = old.id; END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="synced table"):
        foreign.execute("UPDATE shown SET title = 'foreign'")
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as other:
        other.execute("ATTACH ? AS device", (str(device._file.path),))
        with pytest.raises(sqlite3.IntegrityError, match="synced table"):
            other.execute("DELETE FROM device.todo")
    assert rows(device) == before


@pytest.mark.slow
def test_the_package_itself_writes_by_every_way(device: SyncedDb, foreign: sqlite3.Connection) -> None:
    """Local writes, a batch whose part is undone, large ones, the log's rows, a pull: and nobody else in between."""
    device.table("todo").insert({"id": "a", "title": "mine"})
    with device.batch():
        device.table("todo").update({"id": "a", "n": 1})
        with pytest.raises(ValueError, match="n"):
            device.table("todo").update({"id": "a", "n": "one"})
        device.table("todo").insert([{"id": f"m{i}", "n": i} for i in range(guards.MANY + 1)])
        device.table("todo").delete("k0")
    assert committed_flag(foreign) == (0,)
    with pytest.raises(sqlite3.IntegrityError):
        foreign.execute("DELETE FROM todo")
    assert device.sync()
    assert device.execute("SELECT count(*) FROM todo").fetchone() == (5 + guards.MANY + 1,)
    device._reader.snapshot()
    assert device.execute("SELECT count(*) FROM todo").fetchone() == (5 + guards.MANY + 1,)
    assert device.verify() == ()
    assert committed_flag(foreign) == (0,)
    with pytest.raises(sqlite3.IntegrityError):
        foreign.execute("DELETE FROM todo")


def test_an_undone_batch_leaves_the_file_closed(device: SyncedDb, foreign: sqlite3.Connection) -> None:
    for count in (1, guards.MANY):
        with suppress(KeyError), device.batch():
            device.table("todo").insert([{"id": f"m{i}"} for i in range(count)])
            raise KeyError
        assert device.execute("SELECT count(*) FROM todo").fetchone() == (5,)
        assert committed_flag(foreign) == (0,)
        with pytest.raises(sqlite3.IntegrityError):
            foreign.execute("DELETE FROM todo")


def test_a_part_that_is_undone_after_rows_were_written_does_not_leave_the_file_open(
    device: SyncedDb, foreign: sqlite3.Connection
) -> None:
    with device._file.transaction() as tx:
        with tx.writing(tx.tables["todo"], 1):
            tx.conn.execute("UPDATE todo SET n = 1 WHERE id = 'k1'")
        with pytest.raises(KeyError), tx.savepoint():
            raise KeyError
    assert committed_flag(foreign) == (0,)


def test_an_open_cursor_of_the_app_is_no_hindrance(device: SyncedDb) -> None:
    with device.batch():
        device.table("todo").insert([{"id": f"m{i:04}"} for i in range(2_000)])
        cursor = device.execute("SELECT id FROM todo ORDER BY id")
        assert cursor.fetchone() == ("k0",)
        device.table("todo").insert([{"id": f"n{i:04}"} for i in range(guards.MANY)])
        assert len(cursor.fetchall()) >= 2_004


def test_queries_of_the_app_do_not_write_either(device: SyncedDb) -> None:
    before = rows(device)
    device.execute("PRAGMA query_only = OFF")
    for sql in ("DELETE FROM todo", "INSERT INTO todo (id) VALUES ('x') RETURNING id"):
        with pytest.raises(sqlite3.Error):
            device.execute(sql)
        with device.batch(), pytest.raises(sqlite3.Error):
            device.execute(sql)
    assert rows(device) == before


def test_what_others_write_can_be_let_through(tmp_path: Path, remote: MemoryRemote) -> None:
    path = tmp_path / "d.db"
    with closing(SyncedDb(path, remote, "d", refuse_foreign_writes=False)) as device:
        device.start(background=False)
        with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
            foreign.execute("UPDATE todo SET title = 'foreign' WHERE id = 'k1'")
        assert device.verify() == ("todo",)
        assert device.repair("todo").agrees
    with closing(SyncedDb(path, remote, "d")) as device, closing(sqlite3.connect(path)) as foreign:
        with pytest.raises(sqlite3.IntegrityError):
            foreign.execute("DELETE FROM todo")
        # Somebody may have written while nothing refused it.
        assert device.execute("SELECT verified FROM _db_tables").fetchone() == (0,)


def test_triggers_that_somebody_dropped_are_put_up_again_and_the_rows_looked_at(
    tmp_path: Path, remote: MemoryRemote
) -> None:
    path = tmp_path / "d.db"
    with closing(SyncedDb(path, remote, "d")) as device:
        device.start(background=False)
        device.read()
        device._row_check.end()
        device.verify()
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        for name in guards.statements("todo"):
            foreign.execute(f'DROP TRIGGER "{name}"')
        foreign.execute("UPDATE todo SET title = 'foreign' WHERE id = 'k1'")
    with closing(SyncedDb(path, remote, "d")) as device:
        device.start(background=False)
        found = threading.Event()
        device.on_state(lambda state: found.set() if state.kind == "sums_disagree" else None)
        with closing(sqlite3.connect(path)) as foreign, pytest.raises(sqlite3.IntegrityError):
            foreign.execute("DELETE FROM todo")
        device.read()
        assert found.wait(20)
        assert device.repair("todo").agrees


@pytest.mark.parametrize(
    "ddl", ["DROP TABLE todo", "ALTER TABLE todo RENAME TO gone", "ALTER TABLE todo RENAME COLUMN title TO t"]
)
def test_a_table_that_somebody_dropped_or_changed_is_pulled_again_with_pending_writes_on_top(
    tmp_path: Path, remote: MemoryRemote, ddl: str
) -> None:
    path = tmp_path / "d.db"
    with closing(SyncedDb(path, remote, "d")) as device:
        device.start(background=False)
        device.table("todo").update({"id": "k1", "title": "mine"})
        before = rows(device)
    with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
        foreign.execute(ddl)
    with closing(SyncedDb(path, remote, "d")) as device:
        assert device.execute("SELECT stage, reason FROM _db_tables").fetchone() == (
            "aside",
            "another program has changed or dropped the table in the file",
        )
        device.start(background=False)
        device.read()
        assert rows(device) == before
        assert device.sync()
        assert rows(device) == before
        assert device.verify() == ()


def test_a_trigger_of_the_app_that_writes_to_a_synced_table_is_refused_by_name(
    device: SyncedDb, foreign: sqlite3.Connection
) -> None:
    foreign.execute("CREATE TABLE apps_own (id TEXT, title TEXT)")
    foreign.execute(
        "CREATE TRIGGER to_own AFTER UPDATE ON todo BEGIN INSERT INTO apps_own VALUES (new.id, new.title); END"
    )
    device.table("todo").update({"id": "k1", "title": "one"})
    assert foreign.execute("SELECT * FROM apps_own").fetchall() == [("k1", "one")]
    before = rows(device)
    foreign.execute("CREATE TRIGGER touch AFTER UPDATE ON todo BEGIN UPDATE todo SET n = 7 WHERE id = new.id; END")
    with pytest.raises(TriggerWrites, match="the trigger touch writes to todo"):
        device.table("todo").update({"id": "k2", "title": "two"})
    with device.batch():
        device.table("todo").insert({"id": "kept"})
        with pytest.raises(TriggerWrites, match="the trigger touch writes to todo"):
            device.table("todo").update({"id": "k2", "title": "two"})
    assert [row for row in rows(device) if row[0] != "kept"] == before
    assert device.status().unsent == 2
    foreign.execute("DROP TRIGGER touch")
    foreign.execute("CREATE TRIGGER ours AFTER UPDATE ON todo BEGIN DELETE FROM _db_mutations_queue; END")
    with pytest.raises(TriggerWrites, match="the trigger ours writes to _db_mutations_queue"):
        device.table("todo").update({"id": "k2", "title": "two"})
    foreign.execute("DROP TRIGGER ours")
    device.table("todo").update({"id": "k2", "title": "two"})
    assert device.sync()
    assert device.verify() == ()


def test_the_log_is_not_applied_past_such_a_trigger_and_the_app_is_told(
    device: SyncedDb, foreign: sqlite3.Connection, remote: MemoryRemote, tmp_path: Path
) -> None:
    states: list[State] = []
    device.on_state(states.append)
    foreign.execute("CREATE TRIGGER touch AFTER UPDATE ON todo BEGIN UPDATE todo SET n = 7 WHERE id = new.id; END")
    with closing(SyncedDb(tmp_path / "other.db", remote, "d")) as other:
        other.start(background=False)
        other.table("todo").update({"id": "k1", "title": "theirs"})
        assert other.sync()
    with pytest.raises(TriggerWrites, match="touch"):
        device.read()
    foreign.execute("DROP TRIGGER touch")
    device.read()
    assert device.execute("SELECT title FROM todo WHERE id = 'k1'").fetchone() == ("theirs",)


def test_damage_is_found_all_the_same(device: SyncedDb, foreign: sqlite3.Connection) -> None:
    write_unseen(foreign, "UPDATE todo SET title = 'damaged' WHERE id = 'k1'")
    assert device.verify() == ("todo",)
