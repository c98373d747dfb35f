"""The tables and rows in the file of a device that has chosen some of the synced tables."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.choosing.tables import NAMES, SECRET, Open, Server, agrees, bodies, holds, in_file, live, table
from tests.unit.client.older import before_audiences

from anabranch.client import BatchState, FileDamaged, NotChosen, SyncedDb
from anabranch.client.file import layout
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.letters.offline import DeadQueue
from anabranch.client.reading.effects import Folded, Folder
from anabranch.v1 import change_pb2, value_pb2


def test_rows_of_other_tables_are_never_in_the_file(opened: Open, server: Server) -> None:
    looked = [0]

    def look(point: str) -> None:
        looked[0] += 1
        assert device.status().chosen is None or not holds(device, SECRET), point

    device = opened(["todo"], start=False, reached=look)
    device.start(background=False)
    server.set("note", "k1", f"{SECRET}, changed")
    server.set("todo", "k1", "changed")
    server.set("log", "k9", f"{SECRET}, added")
    device.table("todo").update({"id": "k0", "body": "mine"})
    assert device.sync()
    assert looked[0] > 3
    assert not holds(device, SECRET)
    assert bodies(device, "todo")["k1"] == "changed"
    agrees(device, server, "todo")
    assert device.status().chosen == ("todo",)
    # The look can find something.
    device.choose_tables(None)
    device.read()
    assert holds(device, SECRET)
    agrees(device, server, *NAMES)
    assert device.status().chosen is None


def test_nothing_is_chosen_by_default(opened: Open, server: Server) -> None:
    agrees(opened(), server, *NAMES)


def test_effects_of_other_tables_are_passed_over_unread() -> None:
    def group(*effects: bytes) -> change_pb2.LoggedGroup:
        return change_pb2.LoggedGroup(position=7, batches=[change_pb2.LoggedBatch(id="b", effects=effects)])

    def effect(name: str) -> bytes:
        return change_pb2.Effect(
            table=name, type=change_pb2.EFFECT_TYPE_DELETE, columns=["id"], values=[value_pb2.Value(string_value="x")]
        ).SerializeToString()

    ours = {"todo": DeviceTable(table("todo"))}
    broken = change_pb2.Effect(table="todo2").SerializeToString() + b"\xff"
    wanted = effect("todo")
    # Written in another order, it is read to find out.
    name, rest = wanted[:6], wanted[6:]
    assert name == b"\x0a\x04todo"
    for data in (wanted, rest + name):
        folded = Folded()
        Folder(ours, {}).fold(group(broken, effect("note"), data), folded)
        folded.read()
        assert folded.patches["todo"].keys() == {Folder(ours, {})._tables["todo"].key_text(("x",))}
    with pytest.raises(Exception, match="parsing"):
        Folder({"todo2": ours["todo"]}, {}).fold(group(broken), Folded())


def test_the_error_for_another_table_names_those_that_are_chosen(opened: Open, server: Server) -> None:
    device = opened(["todo", "log"])
    said = "note is not among the tables that this device has chosen: log, todo"
    calls: list[Callable[[], Any]] = [
        lambda: device.table("note").insert({"id": "x", "body": "y"}),
        lambda: device.table("note").update({"id": "k1", "body": "y"}),
        lambda: device.table("note").delete("k1"),
        lambda: device.verify("note"),
        lambda: device.repair("note"),
        lambda: device.conflicts("note"),
    ]
    for call in calls:
        with pytest.raises(NotChosen, match=said) as raised:
            call()
        assert isinstance(raised.value, ValueError)
    with device.batch():
        device.table("todo").update({"id": "k1", "body": "mine"})
        with pytest.raises(NotChosen):
            device.table("note").delete("k1")
    assert device.sync()
    assert live(server, "todo")["k1"] == "mine"


@pytest.mark.parametrize("wrong", ["todo", b"todo", [1], [""]])
def test_names_that_are_none_are_refused(tmp_path: Path, server: Server, wrong: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        SyncedDb(tmp_path / "d.db", server, "d", tables=wrong)
    assert not (tmp_path / "d.db").exists()


def test_a_later_opening_may_choose_otherwise(opened: Open, server: Server) -> None:
    opened(["todo", "note"]).close()
    device = opened(["note", "log"], start=False)
    assert in_file(device) == {"note"}
    device.start(background=False)
    server.set("note", "k1", "changed")
    device.read()
    agrees(device, server, "note", "log")
    device.close()
    device = opened(None)
    device.read()
    agrees(device, server, *NAMES)
    device.close()
    # A look at the letters alone chooses nothing.
    device = opened(["log"])
    device.close()
    DeadQueue(device._file.path).close()
    with closing(sqlite3.connect(device._file.path)) as conn:
        assert conn.execute("SELECT chosen FROM _db_state").fetchone() == ('["log"]',)


def test_a_file_of_the_format_before_has_all_tables_until_it_chooses(opened: Open, server: Server) -> None:
    device = opened()
    queued = device.table("note").update({"id": "k1", "body": "mine"})
    device.close()
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        for column in ("chosen", "describe_due"):
            conn.execute(f"ALTER TABLE _db_state DROP COLUMN {column}")
        before_audiences(conn)
        conn.execute("PRAGMA user_version = 6")
    device = opened()
    assert device.execute("PRAGMA user_version").fetchone() == (layout.FORMAT,)
    assert (device.status().chosen, in_file(device)) == (None, set(NAMES))
    device.close()
    device = opened(["todo"])
    assert in_file(device) == {"todo"}
    assert device.status().unsent == 1
    assert device.sync()
    assert device.verdict(queued) is not None
    agrees(device, server, "todo")


def test_a_copy_of_the_file_chooses_for_itself(opened: Open, server: Server, tmp_path: Path) -> None:
    device = opened(["todo", "note"])
    device.close()
    shutil.copy(tmp_path / "d.db", tmp_path / "copy.db")
    copy, device = opened(["note", "log"], name="copy"), opened(["todo", "note"])
    server.set("note", "k1", "theirs")
    for one in (copy, device):
        one.read()
    agrees(copy, server, "note", "log")
    agrees(device, server, "todo", "note")


@pytest.mark.parametrize("wrong", ["[1]", "{}", "nothing"])
def test_a_choice_that_is_damaged_in_the_file_is_named(opened: Open, wrong: str) -> None:
    device = opened(["todo"])
    device.close()
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        conn.execute("UPDATE _db_state SET chosen = ?", (wrong,))
    with pytest.raises(FileDamaged, match="the tables that it has chosen"):
        opened(["todo"], start=False)


def test_a_choice_inside_a_batch_is_refused(opened: Open) -> None:
    device = opened()
    with device.batch(), pytest.raises(BatchState):
        device.choose_tables(["todo"])
    assert device.status().chosen is None
