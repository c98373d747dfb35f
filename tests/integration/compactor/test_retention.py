"""Promise 8: the log is cut behind proof only: what is to go is compared with the files right before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.integration.compactor.conftest import Lake

from anabranch.clock import Clock
from anabranch.runtime.config import load_settings
from anabranch.store.session.engine import connect
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.sweep import SweepMemory, Swept, run_once

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
DAY_MS = 86_400_000


def sweep(lake: Lake) -> Swept:
    """A sweep forty days from now."""
    memory = SweepMemory(load_settings(JanitorSettings, postgres_url=lake.url))
    swept = run_once(memory, Clock().now_ms() + 40 * DAY_MS, threading.Event(), "app")
    assert swept is not None
    return swept[0]


def logged(lake: Lake) -> int:
    """Rows of the log."""
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        row = conn.execute("select count(*) from anabranch.log").fetchone()
    assert row is not None
    return int(row[0])


def damage(file: Path) -> None:
    """Half of the data turned over, size and footer as they were."""
    content = bytearray(file.read_bytes())
    for at in range(4, len(content) // 2):
        content[at] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.long
def test_the_floor_follows_the_compactor(lake: Lake) -> None:
    writer = lake.writer()
    for i in range(3):
        writer.insert("todo", [[f"{i}", "x", True, i]])
    last = writer.update("todo", ("0",), {"title": "y"})
    writer.delete("todo", ("1",))
    last = writer.update("todo", ("2",), {"title": "z"})
    lake.compact()
    writer.insert("todo", [["later", "x", False, 0]])
    swept = sweep(lake)
    assert [bound.hold.name for bound in swept.bounds][:1] == ["COMPACTION"]
    assert swept.floor == last
    assert logged(lake) == 1
    lake.compact()
    assert sweep(lake).floor > last
    assert logged(lake) == 0


def test_promise_8_a_file_that_is_missing_or_changed_stops_the_cut(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert("todo", [[f"{i:05}", f"title {i}", True, i] for i in range(500)])
    lake.compact()
    rows = logged(lake)
    [name] = lake.paths("todo", "changes")
    file = Path(name)
    kept = file.read_bytes()

    def held() -> str:
        swept = sweep(lake)
        assert swept.floor == 0
        assert logged(lake) == rows
        assert swept.bounds[0].hold.name == "PROOF"
        return swept.bounds[0].detail

    file.unlink()
    assert "missing" in held()
    file.write_bytes(kept[:-1])
    assert "bytes" in held()
    file.write_bytes(kept)
    damage(file)
    assert file.name in held() or "the log has" in held()
    file.write_bytes(kept)
    manifests = list((lake.lake_folder / "_manifests").glob("*.json"))
    assert len(manifests) == 1
    text = manifests[0].read_text()
    manifests[0].unlink()
    assert "_manifests" in held()
    manifests[0].write_text(text.replace('"rows": 500', '"rows": 499'))
    assert "is not what run" in held()
    manifests[0].write_text(text)
    assert sweep(lake).floor > 0
    assert logged(lake) == 0
