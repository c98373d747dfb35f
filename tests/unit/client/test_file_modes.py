"""The modes of the files that a device makes: who may read and write them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


@pytest.fixture(params=[0o000, 0o022, 0o277, 0o777])
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    folder = tmp_path / "made"
    folder.mkdir()
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_new_files_are_their_owners_alone(tmp_path: Path, remote: MemoryRemote, umask: int) -> None:
    folder = tmp_path / "made"
    with closing(SyncedDb(folder / "d.db", remote, "d")) as device:
        device.start(background=False)
        device.table("todo").update({"id": "k0", "title": "mine"})
        assert device.sync()
        assert modes(folder) == dict.fromkeys(["d.db", "d.db-wal", "d.db-shm", "d.db-sync"], 0o600)
    assert set(modes(folder).values()) == {0o600}


def test_they_are_so_from_their_first_moment(
    tmp_path: Path, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever SQLite is opened or a statement runs, no file there is can be read by another."""
    seen: set[tuple[str, int]] = set()

    def hook(event: str, _: object) -> None:
        if watching and event in ("sqlite3.connect", "sqlite3.connect/handle", "open"):
            seen.update(modes(tmp_path).items())

    watching = [True]
    sys.addaudithook(hook)
    before = os.umask(0)
    try:
        with closing(SyncedDb(tmp_path / "d.db", remote, "d")) as device:
            device.start(background=False)
            device.table("todo").update({"id": "k0", "title": "mine"})
    finally:
        os.umask(before)
        watching.clear()
    assert {name for name, _ in seen} >= {"d.db", "d.db-sync"}
    assert {mode for _, mode in seen} == {0o600}


@pytest.mark.parametrize("mode", [0o660, 0o640, 0o644, 0o600])
def test_a_file_that_is_there_keeps_its_mode_and_those_beside_it_get_it(
    tmp_path: Path, remote: MemoryRemote, mode: int
) -> None:
    path = tmp_path / "d.db"
    path.touch()
    path.chmod(mode)
    with closing(SyncedDb(path, remote, "d")) as device:
        device.start(background=False)
        device.table("todo").update({"id": "k0", "title": "mine"})
        assert modes(tmp_path) == dict.fromkeys(["d.db", "d.db-wal", "d.db-shm", "d.db-sync"], mode)
    with closing(SyncedDb(path, remote, "d")):
        assert modes(tmp_path)["d.db"] == mode


def test_through_a_link_that_leads_nowhere_yet_too(tmp_path: Path, remote: MemoryRemote) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "d.db")
    before = os.umask(0)
    try:
        with closing(SyncedDb(tmp_path / "link.db", remote, "d")):
            assert modes(tmp_path)["d.db"] == 0o600
            assert modes(tmp_path)["d.db-wal"] == 0o600
    finally:
        os.umask(before)
