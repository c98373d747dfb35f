"""A process that follows a schema change and is killed at one statement of it after the other; run by ``test_deaths``.

A child dies at a statement by which the file is written; the parent then looks at what it left. Prints about how many
statements there were."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import closing
from pathlib import Path

from tests.unit.client.schema.altered import agrees, columns, in_file, is_consistent, new_remote, rows

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.values import Column, Kind, Table

VISIT = Table("visit", (Column("id", Kind.STRING, "text"),), ("id",))
BEFORE = {"todo": ["id", "title", "n"], "note": ["id", "body"]}
AFTER = {"task": ["id", "subject", "n", "priority"], "visit": ["id"]}


def migration(ddl: Ddl) -> None:
    ddl.rename_table("todo", "task").rename_column("todo", "title", "subject")
    ddl.add_column("todo", "priority", Kind.INT64, "bigint", initial=3)
    ddl.retype("todo", "n", Kind.STRING, "text", str)
    ddl.update("todo", "k0", priority=9)
    ddl.create(VISIT, [{"id": "v"}])
    ddl.drop_table("note")


def prepared(path: Path, remote: MemoryRemote) -> None:
    with closing(SyncedDb(path, remote, "d")) as device:
        device.start(background=False)
        device.table("todo").update({"id": "k1", "title": "mine", "n": 7})
        device.table("todo").insert({"id": "new", "title": "mine"})
        device.table("note").update({"id": "k1", "body": "mine"})


def dies_at(number: int, path: Path, remote: MemoryRemote) -> None:
    """Read the log, and die at the statement of this number; return where there are not so many."""
    device, count = SyncedDb(path, remote, "d"), 0

    def begins(sql: str) -> None:
        nonlocal count
        count += not sql.startswith("--")
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    device._file._write.set_trace_callback(begins)
    device.read()
    device._file._write.set_trace_callback(None)
    device.close()


def main(folder: Path, step: int) -> None:
    number, ended = 1 - step, False
    seen = set[str]()
    while not ended:
        number += step
        remote, path = new_remote(), folder / f"{number}.db"
        prepared(path, remote)
        remote.alter(migration)
        child = os.fork()
        if not child:
            dies_at(number, path, remote)
            os._exit(0)
        ended = os.waitpid(child, 0)[1] == 0
        with closing(SyncedDb(path, remote, "d")) as device:
            is_consistent(device)
            found = {table: columns(device, table) for table in in_file(device)}
            assert found in (BEFORE, AFTER), (number, found)
            seen.add("before" if found == BEFORE else "after")
            assert device.status().queued == 3
            assert rows(device, "todo" if found == BEFORE else "task")[1][1] == "mine"
            device.start(background=False)
            assert device.sync()
            agrees(device, remote)
            assert [letter.reason for letter in device.dead_letters()] == ["UNKNOWN_TABLE"]
            assert remote.server.live()["todo", "k1"]["n~2"] == "7"
        for file in folder.glob(f"{number}.db*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert seen == {"before", "after"}
    print(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
