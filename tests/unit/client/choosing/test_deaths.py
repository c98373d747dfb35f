"""A change of the choice that fails, or whose process dies at any moment, and another process that chooses."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.choosing.tables import NAMES, Open, Server, agrees, bodies, in_file, live

from anabranch.client import CallFailed, NotChosen, SyncedDb
from anabranch.client.file import choice
from anabranch.client.remote import RemoteDb


@pytest.mark.parametrize("failing", ["give_up", "forget_rows"])
def test_a_change_that_fails_leaves_the_choice_before(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    device = opened()
    device.table("note").update({"id": "k1", "body": "mine"})
    done = getattr(choice, failing)

    def fail(tx: Any, what: Any) -> None:
        done(tx, what)
        if failing == "forget_rows" or what.name == "log":
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(choice, failing, fail)
    with pytest.raises(sqlite3.OperationalError):
        device.choose_tables(["todo"])
    assert device.status().chosen is None
    assert in_file(device) == set(NAMES)
    assert bodies(device, "note")["k1"] == "mine"
    device.close()
    with pytest.raises(sqlite3.OperationalError):
        opened(["todo"], start=False)
    device = opened()
    assert device.sync()
    agrees(device, server, *NAMES)


DIES = """
import os, sys
from anabranch.client import RemoteDb, SyncedDb
from anabranch.client.file import choice, device_file

def dies(function, when):
    calls = []
    def call(*arguments):
        calls.append(1)
        if when == "before" and len(calls) == 2:
            os._exit(9)
        function(*arguments)
        if when == "after" and len(calls) == 2:
            os._exit(9)
    return call

where = sys.argv[2]
if where == "committed":
    SyncedDb(sys.argv[1], RemoteDb("localhost:1"), "d", tables=["todo"])
    os._exit(9)
choice.give_up = dies(choice.give_up, where)
SyncedDb(sys.argv[1], RemoteDb("localhost:1"), "d", tables=["todo"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("where", "after"), [("before", NAMES), ("after", NAMES), ("committed", ("todo",))])
def test_a_process_that_dies_leaves_the_old_choice_or_the_new_one(
    opened: Open, server: Server, where: str, after: tuple[str, ...]
) -> None:
    device = opened()
    device.table("note").update({"id": "k1", "body": "mine"})
    device.close()
    died = subprocess.run([sys.executable, "-c", DIES, str(device._file.path), where], env=os.environ, check=False)
    assert died.returncode == 9
    with closing(sqlite3.connect(device._file.path)) as conn:
        (chosen,) = conn.execute("SELECT chosen FROM _db_state").fetchone()
        assert chosen == (None if after == NAMES else '["todo"]')
        there = {name for (name,) in conn.execute("SELECT name FROM _db_tables")}
        tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert there == set(after) == tables & set(NAMES)
    device = opened(None if after == NAMES else after)
    assert device.status().unsent == 1
    assert device.sync()
    agrees(device, server, *after)


class Died(Exception):
    """The process is gone."""


@pytest.mark.parametrize("point", ["before_apply", "after_apply", "between dropping and pulling", "in the pull"])
def test_a_death_on_the_way_to_another_choice_loses_nothing(opened: Open, server: Server, point: str) -> None:
    armed: list[str] = []

    def reached(at: str) -> None:
        if at in armed:
            raise Died

    device = opened(["todo", "note"], reached=reached)
    device.table("note").update({"id": "k1", "body": "mine"})
    device.table("todo").update({"id": "k1", "body": "mine"})
    server.set("log", "k1", "theirs")
    server.set("note", "k1", "theirs")
    server.set("todo", "k2", "theirs")
    device.choose_tables(["todo", "log"])
    if point == "in the pull":
        server.cut_pull_after = 2
        with pytest.raises(CallFailed):
            device.read()
    elif point != "between dropping and pulling":
        armed.append(point)
        with pytest.raises(Died):
            device.read()
    device._file.close()
    device._lease.release()
    device = opened(["todo", "log"])
    assert device.status().unsent == 2
    assert in_file(device) <= {"todo", "log"}
    assert device.sync()
    agrees(device, server, "todo", "log")
    device.close()
    device = opened()
    device.read()
    agrees(device, server, *NAMES)
    assert live(server, "todo")["k1"] == live(server, "note")["k1"] == "mine"


def test_another_process_that_chooses_is_heeded(opened: Open, server: Server, tmp_path: Path) -> None:
    device = opened(["todo", "note"])
    other = SyncedDb(tmp_path / "d.db", RemoteDb("localhost:1"), "d", tables=["todo", "log"])
    other.close()
    assert in_file(device) == {"todo"}
    with pytest.raises(NotChosen):
        device.table("note").delete("k1")
    server.set("todo", "k1", "theirs")
    device.read()
    agrees(device, server, "todo", "log")
