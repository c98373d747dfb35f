"""A device that dies, or finds no room, while it follows a schema change: the file is before it or after it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.client.schema.altered import Open, agrees, columns, in_file, is_consistent, new_remote
from tests.unit.client.schema.killing import BEFORE, migration, prepared
from tests.unit.client.test_full_disk import WAYS, Faults, everything

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote

_MOST = 3_000
ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("step", [pytest.param(19, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_any_statement_leaves_it_before_or_after(tmp_path: Path, step: int) -> None:
    path = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.client.schema.killing", str(tmp_path), str(step)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert int(done.stdout) > 50, "all statements of the change are among them"


@pytest.mark.parametrize("point", ["before_apply", "after_apply"])
def test_a_death_around_the_page_loses_nothing(opened: Open, remote: MemoryRemote, point: str) -> None:
    def reached(at: str) -> None:
        if at == point:
            raise RuntimeError("dies")

    remote.page_parts = 100
    device = opened(reached=reached)
    device.table("todo").update({"id": "k1", "title": "mine", "n": 7})
    device.table("note").update({"id": "k1", "body": "mine"})
    remote.alter(migration)
    with pytest.raises(RuntimeError, match="dies"):
        device.read()
    device.close()
    again = opened()
    is_consistent(again)
    assert in_file(again) == ({"todo", "note"} if point == "before_apply" else {"task", "visit"})
    assert again.sync()
    agrees(again, remote)


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_at_any_point_leaves_it_before(tmp_path: Path, way: str) -> None:
    for point in range(_MOST):
        remote, path = new_remote(), tmp_path / f"{point}.db"
        prepared(path, remote)
        remote.alter(migration)
        device = SyncedDb(path, remote, "d")
        faults, failed = Faults(device._file), False
        before = everything(device._file)
        try:
            with getattr(faults, way)(point + 1 if way == "interrupted" else point):
                device.read()
        except (sqlite3.Error, MemoryError):
            failed = True
        device._row_check.end()
        assert not device._file._write.in_transaction
        is_consistent(device)
        if device.status().schema_version == 1:
            assert {table: columns(device, table) for table in in_file(device)} == BEFORE
            now = everything(device._file)
            # Those of which Describe, an answer of its own, may have told something.
            assert before.keys() == now.keys()
            assert all(now[name] == before[name] for name in now.keys() - {"_db_state", "_db_tables"})
        assert device.sync()
        agrees(device, remote)
        device.close()
        if not failed:
            return
    raise AssertionError("it never ended")
