"""Schema changes of the log on a device: in place, without a pull, with the queue on top."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from tests.unit.client.schema.altered import (
    NOTE,
    VISIT,
    Open,
    agrees,
    columns,
    in_file,
    is_consistent,
    phases,
    rows,
    states,
    told,
)

from anabranch.client import Change, NotReady, SyncedDb
from anabranch.client.reading import sums
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.testkit.unseen import write_unseen
from anabranch.v1 import change_pb2, snapshot_pb2
from anabranch.values import Column, Kind, Table
from anabranch.values.canonical import table_sum


def test_a_column_is_added_with_a_constant_and_the_queue_goes_on(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k1", "title": "mine"})
    device.table("todo").insert({"id": "new", "title": "mine too"})
    remote.alter(lambda ddl: ddl.add_column("todo", "priority", Kind.INT64, "bigint", initial=3))
    device.read()
    is_consistent(device)
    assert rows(device, "todo", "id", "title", "priority") == [
        ("k0", "title 0", 3),
        ("k1", "mine", 3),
        ("k2", "title 2", 3),
        ("k3", "title 3", 3),
        ("k4", "title 4", 3),
        ("new", "mine too", None),
    ]
    device.table("todo").update({"id": "k1", "priority": 9})
    assert device.sync()
    agrees(device, remote)


def test_nothing_is_rewritten_and_nothing_is_told_row_by_row(device: SyncedDb, remote: MemoryRemote) -> None:
    changes: list[Change] = []
    device.on_change(changes.append)
    remote.alter(lambda ddl: ddl.add_column("todo", "note"))
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.read()
    assert changes == []
    agrees(device, remote)


INITIALS: list[tuple[Kind, str, Any]] = [
    (Kind.STRING, "text", None),
    (Kind.STRING, "text", ""),
    (Kind.STRING, "text", 'it\'s "quoted" \n ü 𝄞 12'),
    (Kind.STRING, "text", "12"),
    (Kind.INT64, "bigint", 0),
    (Kind.INT64, "bigint", -(2**63)),
    (Kind.INT64, "bigint", 2**63 - 1),
    (Kind.BOOL, "boolean", False),
    (Kind.BOOL, "boolean", True),
    (Kind.DOUBLE, "double precision", 0.0),
    (Kind.DOUBLE, "double precision", -0.0),
    (Kind.DOUBLE, "double precision", 5.0),
    (Kind.DOUBLE, "double precision", -1e15),
    (Kind.DOUBLE, "double precision", 0.1),
    (Kind.DOUBLE, "double precision", 5e-324),
    (Kind.DOUBLE, "double precision", 1.7976931348623157e308),
    (Kind.DOUBLE, "double precision", math.inf),
    (Kind.DOUBLE, "double precision", -math.inf),
    (Kind.DOUBLE, "double precision", math.nan),
    (Kind.DECIMAL, "numeric", "1.10"),
    (Kind.DECIMAL, "numeric", "NaN"),
    (Kind.BYTES, "bytea", b""),
    (Kind.BYTES, "bytea", b"\x00\xff'"),
]


@pytest.mark.parametrize(("kind", "postgres_type", "initial"), INITIALS)
def test_every_initial_value_is_what_the_server_has(
    device: SyncedDb, remote: MemoryRemote, kind: Kind, postgres_type: str, initial: Any
) -> None:
    remote.alter(lambda ddl: ddl.add_column("todo", "c", kind, postgres_type, initial=initial))
    device.read()
    is_consistent(device)
    table = device._file.tables()["todo"]
    found = {repr(table.codec.load(row)[-1]) for row in rows(device, "todo", "id", "title", "n", "c")}
    assert found == {repr(initial)}
    (kinds,) = device.execute("SELECT DISTINCT typeof(c) FROM todo").fetchall()
    stored = table.codec.store((None, None, None, initial))[-1]
    assert kinds == ({type(None): "null", str: "text", int: "integer", float: "real", bytes: "blob"}[type(stored)],)
    remote.alter(lambda ddl: ddl.update("todo", "k0", c=None))
    device.read()
    assert device.status().disagreeing == ()
    assert device.verify() == ()


def test_values_of_its_own_follow_as_effects_of_the_column(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.part_effects, remote.page_parts = 1, 2
    changes: list[Change] = []
    device.on_change(changes.append)
    device.table("todo").update({"id": "k2", "title": "mine"})
    changes.clear()
    remote.alter(
        lambda ddl: ddl.add_column("todo", "size", Kind.INT64, "bigint", values=lambda row: len(str(row["title"])))
    )
    device.read()
    is_consistent(device)
    assert {(c.key, c.columns) for c in changes} == {((f"k{i}",), ("size",)) for i in range(5)}
    assert device.sync()
    agrees(device, remote)


def test_a_renamed_column_and_table_under_a_queue(device: SyncedDb, remote: MemoryRemote) -> None:
    events = told(device)
    device.table("todo").update({"id": "k1", "title": "offline"})
    device.table("note").insert({"id": "new", "body": "offline"})
    device.table("note").update({"id": "new", "body": "offline again"})

    def rename(ddl: Ddl) -> None:
        ddl.rename_column("todo", "title", "subject")
        ddl.rename_table("note", "remark")

    remote.alter(rename)
    device.read()
    is_consistent(device)
    assert in_file(device) == {"todo", "remark"}
    assert rows(device, "todo", "id", "subject")[1] == ("k1", "offline")
    assert rows(device, "remark")[-1] == ("new", "offline again")
    assert phases(events) == [(2, ("todo", "note"), "before"), (2, ("todo", "remark"), "after")]
    device.table("todo").update({"id": "k1", "subject": "by the new name"})
    with pytest.raises(ValueError, match="todo has no column 'title'"):
        device.table("todo").update({"id": "k1", "title": "x"})
    with pytest.raises(ValueError, match="no synced table 'note'"):
        device.table("note").delete("k0")
    assert device.sync()
    agrees(device, remote)
    assert remote.server.live()["todo", "k1"]["title"] == "by the new name"


def test_names_are_swapped_and_given_on(device: SyncedDb, remote: MemoryRemote) -> None:
    def swap(ddl: Ddl) -> None:
        ddl.rename_table("todo", "note")
        ddl.rename_table("note", "todo")
        ddl.rename_column("todo", "title", "n")
        ddl.rename_column("todo", "n", "title")
        ddl.rename_column("note", "body", "Body")

    device.table("todo").update({"id": "k1", "title": "mine"})
    remote.alter(swap)
    device.read()
    is_consistent(device)
    assert rows(device, "note", "id", "n", "title")[1] == ("k1", "mine", 1)
    assert columns(device, "todo") == ["id", "Body"]
    assert device.sync()
    agrees(device, remote)


def test_a_name_goes_from_one_column_to_a_new_one(device: SyncedDb, remote: MemoryRemote) -> None:
    def change(ddl: Ddl) -> None:
        ddl.rename_column("todo", "title", "old_title")
        ddl.add_column("todo", "title", initial="fresh")
        ddl.drop_column("todo", "n")
        ddl.add_column("todo", "n", initial="was a number")
        ddl.rename_table("note", "old_note")
        ddl.create(Table("note~2", NOTE.columns, ("id",), renamed="note"), [{"id": "first", "body": "one"}])

    device.table("note").update({"id": "k1", "body": "to the old one"})
    remote.alter(change)
    device.read()
    is_consistent(device)
    assert rows(device, "todo", "id", "old_title", "title", "n")[0] == ("k0", "title 0", "fresh", "was a number")
    assert rows(device, "note") == [("first", "one")]
    assert device.sync()
    agrees(device, remote)
    assert remote.server.live()["note", "k1"]["body"] == "to the old one"


def test_a_column_is_dropped_under_a_queue(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k1", "title": "offline", "n": 7})
    device.table("todo").update({"id": "k2", "n": 8})
    device.table("todo").insert({"id": "new", "title": "t", "n": 9})
    remote.alter(lambda ddl: ddl.drop_column("todo", "n"))
    device.read()
    is_consistent(device)
    assert columns(device, "todo") == ["id", "title"]
    assert rows(device, "todo")[1] == ("k1", "offline")
    assert device.sync()
    agrees(device, remote)
    assert remote.lost_values == [("todo", "k1", "n", 7), ("todo", "k2", "n", 8), ("todo", "new", "n", 9)]
    assert device.dead_letters() == []


def test_an_added_column_that_nobody_wrote_is_dropped_without_reading_the_rows(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.alter(lambda ddl: (ddl.add_column("todo", "a", initial="x"), ddl.add_column("todo", "b")))
    device.read()
    monkeypatch.setattr("anabranch.client.schema.alter._recount", lambda *_: pytest.fail("recounted"))
    remote.alter(lambda ddl: (ddl.drop_column("todo", "a"), ddl.drop_column("todo", "b")))
    device.read()
    monkeypatch.undo()
    agrees(device, remote)


@pytest.mark.parametrize("queued", [False, True])
def test_an_added_column_that_somebody_wrote_is_dropped(device: SyncedDb, remote: MemoryRemote, queued: bool) -> None:
    remote.alter(lambda ddl: ddl.add_column("todo", "a", initial="x"))
    remote.alter(lambda ddl: ddl.update("todo", "k1", a="y"))
    device.read()
    if queued:
        # Shown as all others are; its base is what counts.
        device.table("todo").update({"id": "k1", "a": "x"})
    remote.alter(lambda ddl: ddl.drop_column("todo", "a"))
    device.read()
    is_consistent(device)
    assert device.status().disagreeing == ()
    assert device.sync()
    agrees(device, remote)


def test_a_column_is_retyped_and_its_values_follow(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k2", "n": 45})
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", lambda cell: f"{cell} minutes"))
    device.read()
    is_consistent(device)
    # The pending value was a number: it is not shown, and the server casts it.
    assert rows(device, "todo", "id", "n")[2] == ("k2", "2 minutes")
    device.table("todo").update({"id": "k3", "n": "by hand"})
    assert device.sync()
    agrees(device, remote)
    assert remote.server.live()["todo", "k2"]["n~2"] == "45 minutes"


def test_a_value_that_can_not_be_cast_is_one_dead_letter(device: SyncedDb, remote: MemoryRemote) -> None:
    def cast(cell: Any) -> Any:
        if cell == 45:
            raise ValueError("no")
        return str(cell)

    device.table("todo").update({"id": "k2", "n": 45})
    kept = device.table("todo").update({"id": "k2", "title": "kept"})
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", cast))
    assert device.sync()
    agrees(device, remote)
    (letter,) = device.dead_letters()
    assert (letter.reason, letter.mutations) == (
        "VALUE_NOT_CAST",
        (("update", "todo", ({"id": "k2", "n": 45},)),),
    )
    assert (verdict := device.verdict(kept)) is not None
    assert verdict.status == "APPLIED"
    device.replay(letter.id, {"n": "45 minutes"})
    assert device.sync()
    agrees(device, remote)


def test_values_that_are_rewritten_in_one_kind_keep_the_column(device: SyncedDb, remote: MemoryRemote) -> None:
    def change(ddl: Ddl) -> None:
        ddl.relabel("todo", "n", "integer")
        ddl.rewrite("todo", "n", lambda row: (row["n"] or 0) * 100)

    remote.alter(change)
    device.read()
    agrees(device, remote)
    assert rows(device, "todo", "id", "n")[4] == ("k4", 400)


def test_ddl_and_changes_of_rows_arrive_as_one_moment(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.part_effects, remote.page_parts = 1, 1
    device.table("todo").update({"id": "k2", "title": "A. Turing"})

    def migration(ddl: Ddl) -> None:
        first = ddl.add_column("todo", "first")
        last = ddl.add_column("todo", "last")
        for i in range(5):
            ddl.update("todo", f"k{i}", **{first: "title", last: str(i)})
        ddl.drop_column("todo", "title")
        ddl.insert("todo", {"id": "x", first: "Grace", last: "Hopper"})
        ddl.delete("todo", "k4")

    remote.alter(migration)
    seen: list[list[str]] = []
    device.on_change(lambda change: seen.append(columns(device, "todo")))
    device.read()
    assert set(map(tuple, seen)) == {("id", "n", "first", "last")}
    assert device.sync()
    agrees(device, remote)
    assert remote.lost_values == [("todo", "k2", "title", "A. Turing")]


def test_a_table_comes_with_its_rows_and_is_live_at_once(device: SyncedDb, remote: MemoryRemote) -> None:
    events = told(device)
    remote.alter(lambda ddl: ddl.create(VISIT, [{"id": "v1", "at": 1}, {"id": "v2", "at": 2}]))
    device.read()
    assert rows(device, "visit") == [("v1", 1), ("v2", 2)]
    device.table("visit").insert({"id": "v3"})
    assert device.sync()
    agrees(device, remote)
    assert (2, ("visit",), "after") in phases(events)
    assert "pulling" not in states(events)


def test_a_table_that_was_registered_by_hand_and_then_altered_is_pulled(device: SyncedDb, remote: MemoryRemote) -> None:
    """The change does not say that it came: its rows are not in the log."""
    remote.server.tables = {**remote.server.tables, "visit": remote.server.tables["note"]}
    remote.tables = {**remote.tables, "visit": VISIT}
    remote.server.preset("visit", "v1", {"id": "v1", "at": 1})
    del remote.server.rows["visit", "v1"].values["body"]  # type: ignore[union-attr]
    remote.alter(lambda ddl: ddl.add_column("visit", "note", initial="-"))
    device.read()
    agrees(device, remote, pulls=2)


def test_a_dropped_table_leaves_readable_dead_letters(device: SyncedDb, remote: MemoryRemote) -> None:
    changes: list[Change] = []
    device.on_change(changes.append)
    with device.batch():
        device.table("note").update({"id": "k1", "body": "edited offline"})
        device.table("todo").update({"id": "k1", "title": "edited offline"})
    device.table("todo").update({"id": "k1", "title": "edited again"})
    changes.clear()
    remote.alter(lambda ddl: ddl.drop_table("note"))
    device.read()
    assert {(c.table, c.type, c.key) for c in changes} == {("note", "delete", (f"k{i}",)) for i in range(5)}
    assert device.status().queued == 2
    is_consistent(device)
    assert device.sync()
    agrees(device, remote)
    (letter,) = device.dead_letters()
    assert (letter.reason, letter.table) == ("UNKNOWN_TABLE", "note")
    assert letter.mutations == (
        ("update", "note", ({"id": "k1", "body": "edited offline"},)),
        ("update", "todo", ({"id": "k1", "title": "edited offline"},)),
    )
    assert rows(device, "todo")[1] == ("k1", "edited again", 1)


def test_a_table_comes_again_under_the_identity_of_one_that_went(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("note").insert({"id": "mine", "body": "queued before"})
    remote.alter(lambda ddl: ddl.drop_table("note"))
    remote.alter(lambda ddl: ddl.create(NOTE, [{"id": "first", "body": "of the new one"}]))
    device.read()
    is_consistent(device)
    assert rows(device, "note") == [("first", "of the new one"), ("mine", "queued before")]
    assert device.sync()
    agrees(device, remote)


def test_a_table_is_dropped_and_made_again_in_one_transaction(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("note").insert({"id": "mine", "body": "queued before"})
    remote.alter(lambda ddl: ddl.drop_table("note").create(NOTE, [{"id": "first", "body": "of the new one"}]))
    device.read()
    is_consistent(device)
    assert rows(device, "note") == [("first", "of the new one"), ("mine", "queued before")]
    assert device.sync()
    agrees(device, remote)


ANEW = Table("todo", (Column("id", Kind.STRING, "text"), Column("title", Kind.INT64, "bigint")), ("id",))


def test_a_table_that_can_not_go_on_is_pulled_and_its_queue_kept(device: SyncedDb, remote: MemoryRemote) -> None:
    events = told(device)
    device.table("todo").delete("k2")
    device.table("note").update({"id": "k1", "body": "mine"})
    remote.alter(lambda ddl: ddl.make_anew(ANEW, [{"id": f"k{i}", "title": i} for i in range(1, 4)]))
    device.read()
    is_consistent(device)
    assert rows(device, "todo") == [("k1", 1), ("k3", 3)]
    assert states(events)[:1] == ["set_aside"]
    assert device.sync()
    agrees(device, remote, pulls=2)


def test_many_changes_while_away(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k1", "title": "mine", "n": 7})
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    remote.alter(lambda ddl: ddl.add_column("todo", "size", Kind.INT64, "bigint", initial=0))
    remote.alter(lambda ddl: ddl.update("todo", "k2", size=5))
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", str))
    remote.alter(lambda ddl: ddl.rename_table("todo", "task"))
    remote.alter(lambda ddl: ddl.drop_column("todo", "size"))
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "title"))
    remote.alter(lambda ddl: ddl.create(VISIT, [{"id": "v", "at": 1}]))
    remote.alter(lambda ddl: ddl.rename_table("visit", "call"))
    described = remote.calls["describe"]
    assert device.sync()
    agrees(device, remote)
    assert remote.calls["describe"] - described <= 2 * 9
    assert remote.server.live()["todo", "k1"]["n~2"] == "7"


def test_a_change_in_many_parts_is_applied_once(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.part_effects, remote.page_parts = 1, 1
    events = told(device)

    def change(ddl: Ddl) -> None:
        ddl.add_column("todo", "c", initial="x")
        for i in range(5):
            ddl.update("todo", f"k{i}", c=f"own {i}")

    remote.alter(change)
    device.read()
    agrees(device, remote)
    assert phases(events) == [(2, ("todo",), "before"), (2, ("todo",), "after")]


def test_groups_before_and_after_a_change_in_one_page(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.page_parts = 100
    remote.alter(lambda ddl: ddl.update("todo", "k0", n=100, title="before"))
    remote.alter(lambda ddl: ddl.insert("todo", {"id": "b", "n": 1}))
    remote.alter(lambda ddl: (ddl.drop_column("todo", "n"), ddl.add_column("todo", "n", initial="x")))
    remote.alter(lambda ddl: ddl.update("todo", "k0", title="after"))
    remote.alter(lambda ddl: ddl.insert("todo", {"id": "c", "title": "c"}))
    events = told(device)
    device.read()
    agrees(device, remote)
    assert "sums_disagree" not in states(events)


def test_a_change_that_can_not_be_read_sets_all_tables_aside(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k1", "title": "mine"})
    events = told(device)
    position = remote.alter(lambda ddl: (ddl.add_column("todo", "c", initial="x"), ddl.update("todo", "k1", c="y")))
    remote.schema.changes[position] = b"\xff\xff\xff"
    device.read()
    assert states(events).count("set_aside") >= 2
    assert device.sync()
    agrees(device, remote, pulls=3)


def test_a_kind_that_is_not_known_takes_its_table_and_no_other(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.alter(lambda ddl: ddl.add_column("todo", "c"))
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "text"))
    position = min(remote.schema.changes)
    change = remote.schema.changes[position]
    message = snapshot_pb2.SchemaChange.FromString(change)
    message.tables[0].columns[-1].kind = 9_999  # type: ignore[assignment]
    remote.schema.changes[position] = message.SerializeToString()
    describe = remote.schema.described

    def described(*arguments: Any) -> Any:
        messages = describe(*arguments)
        messages[0].columns[-1].kind = 9_999  # type: ignore[assignment]
        return messages

    remote.schema.described = described  # type: ignore[method-assign,assignment]
    events = told(device)
    device.table("todo").update({"id": "k1", "title": "mine"})
    assert device.sync()
    assert in_file(device) == {"note"}
    assert "set_aside" in states(events)
    assert remote.server.live()["todo", "k1"]["title"] == "mine"
    assert rows(device, "note", "text")[0] == ("body 0",)
    is_consistent(device)


def test_what_is_not_chosen_is_not_made(opened: Open, remote: MemoryRemote) -> None:
    device = opened(tables=["note", "visit"])
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    remote.alter(lambda ddl: ddl.create(Table("other", VISIT.columns, ("id",)), [{"id": "o", "at": 1}]))
    remote.alter(lambda ddl: ddl.create(VISIT, [{"id": "v", "at": 1}]))
    remote.alter(lambda ddl: ddl.rename_table("note", "remark"))
    assert device.sync()
    assert in_file(device) == {"remark", "visit"}
    assert rows(device, "visit") == [("v", 1)]
    assert device.status().awaited == ()
    assert device.status().pulls == 1
    device.close()
    # The app goes on giving the names that it knows.
    again = opened(tables=["note", "visit"])
    assert again.sync()
    assert in_file(again) == {"remark", "visit"}
    assert again.status().pulls == 1
    again.choose_tables(["note"])
    assert in_file(again) == {"remark"}
    is_consistent(again)


def test_a_renamed_table_is_one_that_was_chosen(opened: Open, remote: MemoryRemote) -> None:
    device = opened(tables=["remark"])
    assert device.status().awaited == ("remark",)
    remote.alter(lambda ddl: ddl.rename_table("note", "remark"))
    assert device.sync()
    assert rows(device, "remark")[0] == ("k0", "body 0")
    assert device.status().awaited == ()


def test_a_name_that_the_file_has_for_something_else_is_not_taken(device: SyncedDb, remote: MemoryRemote) -> None:
    with closing(sqlite3.connect(device._file.path)) as conn:
        conn.execute("CREATE TABLE remark (mine)")
    events = told(device)
    remote.alter(lambda ddl: (ddl.rename_table("note", "remark"), ddl.rename_column("note", "body", "text")))
    device.read()
    is_consistent(device)
    assert "not_renamed" in states(events)
    assert rows(device, "note", "text")[0] == ("body 0",)
    device.table("note").update({"id": "k1", "text": "mine"})
    assert device.sync()
    with closing(sqlite3.connect(device._file.path)) as conn:
        conn.execute("DROP TABLE remark")
    remote.alter(lambda ddl: ddl.add_column("note", "c"))
    device.read()
    agrees(device, remote)


def test_what_sqlite_can_not_hold_is_given_up_and_told(device: SyncedDb, remote: MemoryRemote) -> None:
    events = told(device)
    remote.alter(lambda ddl: ddl.rename_column("todo", "n", "TITLE"))
    device.table("todo").update({"id": "k1", "title": "mine"})
    device.read()
    assert in_file(device) == {"note"}
    assert "set_aside" in states(events)
    remote.alter(lambda ddl: ddl.rename_column("todo", "n", "number"))
    assert device.sync()
    agrees(device, remote, pulls=2)


def test_a_table_under_a_pull_is_altered_too(opened: Open, remote: MemoryRemote) -> None:
    """It is set aside, its pull breaks, and the log goes on elsewhere."""
    device = opened()
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_tables SET stage = 'aside' WHERE name = 'todo'")
    remote.cut_pull_after = 2
    with pytest.raises(Exception, match="cut"):
        device.read()
    assert device.execute("SELECT pull_table FROM _db_tables WHERE name = 'todo'").fetchone() != (None,)
    position = remote.alter(lambda ddl: (ddl.add_column("todo", "c", initial="x"), ddl.drop_column("todo", "n")))
    group = remote._parts(position - 1, remote.view(device._file.current().reader_state))
    device._reader._paging.restart(device.status().cursor)
    device._reader._paging.page(change_pb2.Page(groups=group, reached=remote.position(position)))
    assert rows(device, "todo", "id", "title", "c")[0] == ("k0", "title 0", "x")
    assert device.sync()
    agrees(device, remote, pulls=2)


@pytest.mark.parametrize("change", [
    lambda ddl: ddl.add_column("todo", "c", initial="x"),
    lambda ddl: ddl.drop_column("todo", "n"),
    lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", str),
], ids=["added", "dropped", "retyped"])  # fmt: skip
@pytest.mark.parametrize("again", [False, True], ids=["first pull", "later pull"])
def test_a_table_that_is_altered_between_description_and_pull_is_described_anew(
    opened: Open, remote: MemoryRemote, change: Callable[[Ddl], object], again: bool
) -> None:
    device = opened() if again else opened(start=False)
    if again:
        with device._file.transaction() as tx:
            tx.set(snapshot_due=1)
    pull, altered = remote.pull, list[int]()

    def altering(request: Any) -> Any:
        if not altered:
            altered.append(remote.alter(change))
        return pull(request)

    remote.pull = altering  # type: ignore[method-assign]
    device.read() if again else device.start(background=False)
    device.read()
    agrees(device, remote, pulls=2 if again else 1)


def test_writes_wait_for_no_pull_of_a_table_that_came(opened: Open, remote: MemoryRemote) -> None:
    device = opened()
    with pytest.raises(ValueError, match="no synced table 'visit'"):
        device.table("visit").insert({"id": "v"})
    remote.alter(lambda ddl: ddl.create(VISIT))
    device.read()
    try:
        device.table("visit").insert({"id": "v"})
    except NotReady:
        pytest.fail("it has to be pulled")
    assert device.sync()
    agrees(device, remote)


def test_a_check_of_the_rows_goes_on_while_they_are_altered(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads them as of one moment, and says nothing of a table that is another one when it has ended."""
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        write_unseen(conn, "UPDATE todo SET n = 99 WHERE id = 'k0'")

    def altering(encoder: Any, found: Any) -> Any:
        monkeypatch.setattr(sums, "table_sum", table_sum)
        remote.alter(lambda ddl: ddl.drop_column("todo", "n").rename_table("todo", "task"))
        reading = threading.Thread(target=device.read)
        reading.start()
        reading.join()
        return table_sum(encoder, found)

    monkeypatch.setattr(sums, "table_sum", altering)
    assert sums.verify(device._file, "todo", 1) is None
    agrees(device, remote)
