"""Whose a device's file is."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from anabranch.client import (
    SyncedDb,
    WrongPrincipal,
)
from anabranch.client.file import layout
from anabranch.testkit.memory_remote import MemoryRemote


def token(subject: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).rstrip(b"=").decode()
    return f"head.{claims}.signature"


def test_the_file_belongs_to_its_principal_until_it_is_cleared(tmp_path: Path, remote: MemoryRemote) -> None:
    remote._token = token("alice")
    device = SyncedDb(tmp_path / "d.db", remote, "d", "n")
    device.start(background=False)
    device.table("todo").update({"id": "k0", "title": "alice's secret"})
    node = device.status().node_id
    device.stop()
    remote._token = token("bob")
    with pytest.raises(WrongPrincipal, match="alice"):
        device.start(background=False)
    # Neither is anything of alice's shown, nor anything of bob's queued among what is hers.
    with pytest.raises(WrongPrincipal, match="alice"):
        device.table("todo").update({"id": "k0", "title": "bob's"})
    with pytest.raises(WrongPrincipal, match="alice"):
        device.execute("SELECT title FROM todo")
    assert device.status().queued == 1
    remote._token = token("alice")
    device.start(background=False)
    assert device.execute("SELECT title FROM todo WHERE id = 'k0'").fetchone() == ("alice's secret",)
    device.stop()
    remote._token = token("bob")
    with pytest.raises(WrongPrincipal, match="alice"):
        device.start(background=False)
    device.clear()
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()
    device.start(background=False)
    assert device.status().node_id != node
    assert device.status().queued == 0
    assert device.sync()
    assert remote.server.log == []
    device.close()


def test_another_api_key_is_shown_nothing_until_the_server_says_whose_it_is(
    tmp_path: Path, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.db"

    def opened(key: str) -> SyncedDb:
        remote._token = key
        return SyncedDb(path, remote, "d", "n")

    device = opened("key of alice")
    device.start(background=False)
    device.table("todo").update({"id": "k0", "title": "alice's"})
    device.close()
    for file in tmp_path.iterdir():
        assert b"key of alice" not in file.read_bytes()
    remote.offline = True
    device = opened("key of bob")
    calls: list[Callable[[], object]] = [
        lambda: device.execute("SELECT title FROM todo"),
        lambda: device.table("todo").delete("k0"),
        lambda: device.verdict("01"),
        lambda: device.start(background=False),
        lambda: device.execute("SELECT title FROM todo"),
    ]
    for call in calls:
        with pytest.raises(WrongPrincipal):
            call()
    device.close()
    device = opened("key of alice")
    assert device.execute("SELECT title FROM todo WHERE id = 'k0'").fetchone() == ("alice's",)
    device.close()
    remote.offline = False
    device = opened("next key of alice")
    device.start(background=False)
    device.close()
    remote.offline = True
    device = opened("next key of alice")
    device.start(background=False)
    assert device.execute("SELECT title FROM todo WHERE id = 'k0'").fetchone() == ("alice's",)
    device.close()
    # Another process of the app may go on with the one before; one that four others have followed is forgotten.
    device = opened("key of alice")
    assert device.execute("SELECT title FROM todo WHERE id = 'k0'").fetchone() == ("alice's",)
    device.close()
    remote.offline = False
    for number in range(3):
        device = opened(f"key {number} of alice")
        device.start(background=False)
        device.close()
    with pytest.raises(WrongPrincipal):
        opened("key of alice").execute("SELECT 1")


def test_no_table_of_ours_is_forgotten_when_the_file_is_cleared(device: SyncedDb) -> None:
    """Also none that a later format brings: what clear() empties is what the file has."""
    device.start(background=False)
    device.table("todo").update({"id": "k0", "title": "mine"})
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        conn.execute("CREATE TABLE _db_later (id TEXT PRIMARY KEY)")
        conn.execute("INSERT INTO _db_later VALUES ('secret')")
    device.clear()
    with closing(sqlite3.connect(device._file.path)) as conn:
        names = [name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        left = {name: conn.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
        assert left.pop("_db_state") == left.pop("_db_writer") == 1
        assert not any(left.values())
        assert "_db_later" in left


def test_what_is_about_a_synced_table_is_known_by_its_column(device: SyncedDb) -> None:
    with closing(sqlite3.connect(device._file.path)) as conn:
        about = {
            table
            for (table,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if table.startswith(layout.PREFIX)
            and "tbl" in {column for _, column, *_ in conn.execute(f"PRAGMA table_info({table})")}
        }
    assert about | {"_db_tables"} == set(layout.OF_TABLES)


def test_what_the_server_does_not_tell_another_person_is_not_given_up(
    tmp_path: Path, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts are asked for by batch, and another principal's are unknown to the server: as if they were lost."""
    now_ms, offset_ms = remote.now_ms, [0]
    remote.now_ms = lambda: now_ms() + offset_ms[0]
    device = SyncedDb(tmp_path / "d.db", remote, "d", "n", now_ms=now_ms)
    device.start(background=False)
    device.table("todo").update({"id": "k0", "title": "alice's"})
    device._clock.forget()
    offset_ms[0] = 8 * 24 * 3600 * 1000

    def of_alice(request: object, timeout_s: float = 0.0) -> NoReturn:
        raise WrongPrincipal("the file belongs to alice")

    monkeypatch.setattr(remote, "describe", of_alice)
    with pytest.raises(WrongPrincipal):
        device.flush()
    assert (device.status().unsent, device.status().dead) == (1, 0)
    monkeypatch.undo()
    assert device.flush()
    assert device.status().dead == 1, "to its own principal the server says so"
    device.close()
