"""The app's own views, indexes and triggers in a file whose synced tables are altered: they stop nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, contextmanager
from typing import Any

import pytest
from tests.unit.client.schema.altered import Open, agrees, columns, is_consistent, rows, states, told

from anabranch.client import SyncedDb
from anabranch.client.schema import altering
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.values import Kind

CHANGES: dict[str, Callable[[Ddl], object]] = {
    "added": lambda ddl: ddl.add_column("todo", "c", initial="x"),
    "dropped": lambda ddl: ddl.drop_column("todo", "n"),
    "renamed": lambda ddl: ddl.rename_column("todo", "title", "subject"),
    "table renamed": lambda ddl: ddl.rename_table("todo", "task"),
    "retyped": lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", str),
    "all": lambda ddl: (
        *(ddl.rename_table("todo", "task"), ddl.rename_column("todo", "title", "n")),
        *(ddl.drop_column("todo", "n"), ddl.add_column("todo", "title", initial="x")),
    ),
}
OBJECTS = {
    "index": "CREATE INDEX own_title ON todo (title)",
    "index on what goes": "CREATE INDEX own_n ON todo (n)",
    "unique": "CREATE UNIQUE INDEX own_both ON todo (id, n)",
    "index on an expression": "CREATE INDEX own_expression ON todo (n + 1)",
    "partial": "CREATE INDEX own_partial ON todo (title) WHERE n > 2",
    "view": "CREATE VIEW own_view AS SELECT id, title, n FROM todo",
    "broken view": "CREATE VIEW own_broken AS SELECT nope FROM nowhere",
    "trigger": "CREATE TRIGGER own_trigger AFTER INSERT ON todo BEGIN INSERT INTO own VALUES (new.id); END",
    "trigger on what goes": "CREATE TRIGGER own_trigger AFTER UPDATE ON todo BEGIN INSERT INTO own VALUES (new.n); END",
    "trigger of a column": "CREATE TRIGGER own_trigger AFTER UPDATE OF n ON todo BEGIN INSERT INTO own VALUES (1); END",
    "trigger elsewhere": "CREATE TRIGGER own_trigger AFTER DELETE ON note "
    "BEGIN INSERT INTO own SELECT n FROM todo; END",
    "broken trigger": "CREATE TRIGGER own_trigger AFTER INSERT ON own BEGIN SELECT nope FROM nowhere; END",
}


def own(device: SyncedDb, *statements: str) -> None:
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        conn.execute("CREATE TABLE IF NOT EXISTS own (x)")
        for statement in statements:
            conn.execute(statement)


def drop_own(device: SyncedDb) -> None:
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        conn.execute("DROP TABLE own")
        for kind, name in conn.execute("SELECT type, name FROM sqlite_master WHERE name LIKE 'own_%'").fetchall():
            conn.execute(f"DROP {kind} {name}")


def there(device: SyncedDb) -> set[str]:
    return {name for (name,) in device.execute("SELECT name FROM sqlite_master WHERE name LIKE 'own_%'")}


@contextmanager
def only(way: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The ways before this one fail, as with other builds of SQLite."""

    def refuse(*_: Any) -> Any:
        raise sqlite3.OperationalError("not in this build")

    for one in ("_as_it_is", "_tolerantly"):
        if one == way:
            break
        monkeypatch.setattr(altering, one, refuse)
    yield
    monkeypatch.undo()


WAYS = [("_as_it_is", change) for change in CHANGES]
WAYS += [(way, change) for way in ("_tolerantly", "_by_copy") for change in ("added", "all")]


@pytest.mark.parametrize(("way", "change"), WAYS)
@pytest.mark.parametrize("thing", OBJECTS)
def test_none_of_them_stops_a_change(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, thing: str, change: str, way: str
) -> None:
    own(device, OBJECTS[thing])
    device.table("todo").update({"id": "k1", "title": "mine", "n": 7})
    device.table("note").delete("k2")
    remote.alter(CHANGES[change])
    with only(way, monkeypatch):
        device.read()
    is_consistent(device)
    assert device.sync()
    # The rows can still be written, by the app and by the log.
    remote.alter(lambda ddl: (ddl.insert("todo", {"id": "z"}), ddl.delete("todo", "k3"), ddl.delete("note", "k3")))
    todo = remote.tables["todo"].sql_name
    device.table(todo).insert({"id": "new"})
    device.table(todo).delete("k0")
    assert device.sync()
    drop_own(device)
    agrees(device, remote)


@pytest.mark.parametrize("way", ["_as_it_is", "_tolerantly"])
def test_what_still_fits_is_kept_and_what_does_not_is_told(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    own(
        device,
        *(OBJECTS[one] for one in ("index", "index on what goes", "unique", "view", "broken view", "trigger")),
        "CREATE TRIGGER own_gone AFTER UPDATE ON todo BEGIN INSERT INTO own VALUES (old.n); END",
    )
    events = told(device)
    remote.alter(
        lambda ddl: (
            *(ddl.rename_table("todo", "task"), ddl.rename_column("todo", "title", "subject")),
            ddl.drop_column("todo", "n"),
        )
    )
    with only(way, monkeypatch):
        device.read()
    is_consistent(device)
    assert there(device) == {"own_title", "own_view", "own_broken", "own_trigger"}
    detail = " ".join(event.detail for event in events if getattr(event, "kind", "") == "not_kept")
    assert all(name in detail for name in ("own_n", "own_both", "own_gone"))
    (index,) = device.execute("SELECT sql FROM sqlite_master WHERE name = 'own_title'").fetchone()
    assert index == 'CREATE INDEX own_title ON "task" ("subject")'
    remote.alter(lambda ddl: ddl.insert("todo", {"id": "z"}))
    device.read()
    assert rows(device, "own") == [("z",)]


def test_a_copied_table_keeps_the_indexes_that_fit(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(device, OBJECTS["index"], OBJECTS["index on what goes"], OBJECTS["trigger"], OBJECTS["broken view"])
    events = told(device)
    remote.alter(CHANGES["dropped"])
    with only("_by_copy", monkeypatch):
        device.read()
    assert there(device) == {"own_title", "own_trigger", "own_broken"}
    assert states(events).count("not_kept") == 1


def test_a_view_of_the_app_goes_on_under_the_new_names(device: SyncedDb, remote: MemoryRemote) -> None:
    own(device, OBJECTS["view"])
    remote.alter(lambda ddl: (ddl.rename_table("todo", "task"), ddl.rename_column("todo", "title", "subject")))
    device.read()
    assert rows(device, "own_view")[0] == ("k0", "title 0", 0)


def test_a_trigger_that_reads_a_dropped_table_does_not_stop_the_sync(device: SyncedDb, remote: MemoryRemote) -> None:
    own(device, "CREATE TRIGGER own_reads AFTER INSERT ON todo BEGIN INSERT INTO own SELECT body FROM note; END")
    own(device, "CREATE TRIGGER own_stays AFTER INSERT ON todo BEGIN INSERT INTO own VALUES (new.id); END")
    events = told(device)
    remote.alter(lambda ddl: ddl.drop_table("note"))
    remote.alter(lambda ddl: ddl.insert("todo", {"id": "z"}))
    device.read()
    assert states(events).count("not_kept") == 1
    assert there(device) == {"own_stays"}
    assert rows(device, "own") == [("z",)]


def test_a_trigger_that_writes_what_it_may_not_is_left_alone(device: SyncedDb, remote: MemoryRemote) -> None:
    """It was refused before, and is the app's to drop."""
    own(device, "CREATE TRIGGER own_bad AFTER DELETE ON todo BEGIN DELETE FROM note; END")
    remote.alter(CHANGES["all"])
    device.read()
    assert there(device) == {"own_bad"}


@pytest.mark.parametrize("change", CHANGES)
def test_an_open_cursor_of_the_app_goes_on_with_what_it_reads(
    device: SyncedDb, remote: MemoryRemote, change: str
) -> None:
    cursor = device.execute("SELECT id, title, n FROM todo ORDER BY id")
    assert cursor.fetchone() == ("k0", "title 0", 0)
    with closing(sqlite3.connect(device._file.path)) as conn:
        other = conn.execute("SELECT id FROM todo ORDER BY id")
        assert other.fetchone() == ("k0",)
        remote.alter(CHANGES[change])
        device.read()
        assert other.fetchone() == ("k1",)
    assert cursor.fetchone() == ("k1", "title 1", 1)
    cursor.close()
    agrees(device, remote)


def test_a_column_of_the_apps_own_in_a_synced_table_is_in_nobodys_way(device: SyncedDb, remote: MemoryRemote) -> None:
    own(device, "ALTER TABLE todo ADD COLUMN c TEXT")
    remote.alter(lambda ddl: ddl.add_column("todo", "c", initial="x"))
    device.read()
    drop_own(device)
    agrees(device, remote)
    assert rows(device, "todo", "c")[0] == ("x",)


RAISES = "CREATE TRIGGER own_raises BEFORE UPDATE ON todo WHEN {when} BEGIN SELECT RAISE(ABORT, 'not so'); END"
LOGS = "CREATE TRIGGER own_logs AFTER UPDATE ON todo BEGIN INSERT INTO own VALUES (new.id); END"


def test_no_trigger_fires_where_a_column_is_emptied(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    own(device, RAISES.format(when="new.n IS NULL"), LOGS)
    remote.alter(lambda ddl: ddl.drop_column("todo", "n"))
    device.read()
    is_consistent(device)
    assert rows(device, "todo", "id", "n") == [(f"k{i}", None) for i in range(5)]
    assert rows(device, "own") == []
    assert there(device) == {"own_raises", "own_logs"}


def test_a_unique_index_does_not_stop_a_column_that_is_emptied(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    own(device, "CREATE UNIQUE INDEX own_n ON todo (coalesce(n, 0))", OBJECTS["index"])
    events = told(device)
    remote.alter(lambda ddl: ddl.drop_column("todo", "n"))
    device.read()
    is_consistent(device)
    assert rows(device, "todo", "id", "n") == [(f"k{i}", None) for i in range(5)]
    assert there(device) == {"own_title"}
    assert states(events).count("not_kept") == 1


def test_no_trigger_fires_where_a_column_gets_its_initial_value(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(altering, "_default", lambda *_: None)
    own(device, RAISES.format(when="1"), LOGS)
    remote.alter(lambda ddl: ddl.add_column("todo", "c", initial="x"))
    device.read()
    is_consistent(device)
    assert rows(device, "todo", "c") == [("x",)] * 5
    assert rows(device, "own") == []
    assert there(device) == {"own_raises", "own_logs"}


def test_a_constraint_that_no_way_gets_past_sets_one_table_aside(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise sqlite3.IntegrityError("not so")

    for way in ("_as_it_is", "_tolerantly", "_by_copy"):
        monkeypatch.setattr(altering, way, refuse)
    events = told(device)
    remote.alter(lambda ddl: (ddl.add_column("todo", "c"), ddl.update("note", "k1", body="theirs")))
    device.read()
    is_consistent(device)
    assert states(events)[0] == "set_aside"
    assert rows(device, "note", "id", "body")[1] == ("k1", "theirs")
    # It is pulled as it is now.
    assert columns(device, "todo") == ["id", "title", "n", "c"]


SAME_NAME: dict[str, Callable[[Ddl], object]] = {
    "retyped": lambda ddl: ddl.retype("todo", "n", Kind.DOUBLE, "double precision", float),
    "dropped and added": lambda ddl: (
        ddl.drop_column("todo", "n"),
        ddl.add_column("todo", "n", Kind.DOUBLE, "double precision", values=lambda row: float(str(row["id"])[1:])),
    ),
    "another's name": lambda ddl: (
        *(ddl.drop_column("todo", "n"), ddl.add_column("todo", "m", Kind.INT64, "bigint")),
        *(ddl.rename_column("todo", "m", "n"), ddl.rewrite("todo", "m", lambda row: int(str(row["id"])[1:]))),
    ),
}


def sql_of(device: SyncedDb, name: str) -> str:
    (sql,) = device.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return str(sql)


@pytest.mark.parametrize("way", ["_as_it_is", "_tolerantly", "_by_copy"])
@pytest.mark.parametrize("change", SAME_NAME)
def test_what_names_a_column_that_another_takes_the_place_of_goes_on_with_that(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, change: str, way: str
) -> None:
    own(
        device,
        *("CREATE VIEW own_view AS SELECT id, n FROM todo WHERE n > 2", "CREATE INDEX own_n ON todo (n)"),
        *("CREATE INDEX own_expression ON todo (n + 1)", "CREATE INDEX own_partial ON todo (title) WHERE n > 2"),
        *("CREATE VIEW own_second AS SELECT n FROM own_view", "CREATE TABLE own_log (x)"),
        "CREATE TRIGGER own_instead INSTEAD OF INSERT ON own_view BEGIN INSERT INTO own_log VALUES (new.n); END",
        "CREATE TRIGGER own_trigger AFTER UPDATE OF n ON todo BEGIN INSERT INTO own VALUES (new.n); END",
        "CREATE TRIGGER own_elsewhere AFTER UPDATE ON note BEGIN INSERT INTO own_log SELECT max(n) FROM todo; END",
    )
    before, events = there(device), told(device)
    remote.alter(SAME_NAME[change])
    with only(way, monkeypatch):
        device.read()
    is_consistent(device)
    assert there(device) == before
    assert "not_kept" not in states(events)
    assert [sql for sql in (sql_of(device, name) for name in before) if "_db_" in sql] == []
    assert rows(device, "own_view") == [("k3", 3), ("k4", 4)]
    assert rows(device, "own_second") == [(3,), (4,)]
    assert rows(device, "own") == [(i,) for i in range(5)]
    plan = device.execute("EXPLAIN QUERY PLAN SELECT id FROM todo WHERE n + 1 = 4").fetchall()
    assert "own_expression" in plan[0][-1]
    assert device.execute("SELECT id FROM todo WHERE n + 1 = 4").fetchall() == [("k3",)]
    assert device.execute("SELECT id FROM todo INDEXED BY own_partial WHERE n > 2 AND title > ''").fetchall() == [
        ("k3",),
        ("k4",),
    ]
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        conn.execute("INSERT INTO own_view (id, n) VALUES ('x', 8)")
    remote.alter(lambda ddl: ddl.update("note", "k1", body="theirs"))
    device.read()
    assert rows(device, "own_log") == [(4,), (8,)]


@pytest.mark.parametrize("way", ["_as_it_is", "_tolerantly", "_by_copy"])
def test_a_view_of_what_is_gone_fails_and_gives_no_texts(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """SQLite writes new names in double quotes, and takes what it finds so, and does not know, for texts."""
    own(device, OBJECTS["view"], "CREATE INDEX own_expression ON todo (title || 'x')")
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.read()
    assert '"subject"' in sql_of(device, "own_view")
    events = told(device)
    remote.alter(lambda ddl: ddl.drop_column("todo", "title"))
    with only(way, monkeypatch):
        device.read()
    is_consistent(device)
    with pytest.raises(sqlite3.OperationalError, match="no such column: subject"):
        rows(device, "own_view")
    assert there(device) == {"own_view"}
    assert states(events) == ["not_kept"]
    remote.alter(lambda ddl: ddl.add_column("todo", "subject", initial="x"))
    device.read()
    assert rows(device, "own_view")[0] == ("k0", "x", 0)
