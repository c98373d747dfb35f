"""A node that only writes holds nothing back: what it has is what it was answered. One that reads holds its cursor."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.janitor.conftest import DAY_MS, Ground
from ulid import ULID

from anabranch.testkit.ingest_rig import Device, IngestRig


@pytest.mark.slow
def test_the_floor_goes_past_a_node_that_only_writes_and_not_past_one_that_reads(
    ground: Ground, tmp_path: Path
) -> None:
    positions = ground.write(4)
    with IngestRig(ground.url, tmp_path) as rig:
        writer, reader = (Device(rig.addresses[0], rig.new_key(f"user-{ULID()}"), "app") for _ in range(2))
        reader.acknowledged = positions[1]
        for _ in range(3):
            for device in (writer, reader):
                # Nobody decides here: it is answered that they wait.
                device.send(device.payload(), timeout_s=1.0)
    stored = "select acknowledged from anabranch.nodes where node_id = %s"
    assert ground.number(stored, writer.node_id) == positions[-1]
    assert ground.number(stored, reader.node_id) == positions[1]
    for device, days in ((writer, 39), (reader, 39)):
        seen_ms = ground.now_ms + days * DAY_MS
        ground.conn.execute(
            "update anabranch.nodes set last_seen_ms = %s where node_id = %s", (seen_ms, device.node_id)
        )
    assert ground.swept(40).floor == positions[1]
    ground.conn.execute("delete from anabranch.nodes where node_id = %s", (reader.node_id,))
    assert ground.swept(40).floor == positions[-1]


@pytest.mark.slow
def test_a_writer_that_comes_once_is_where_the_head_was_and_no_further(ground: Ground, tmp_path: Path) -> None:
    """Its next batch leans on nothing older; and the log that comes after its batch, it may yet want to read."""
    before = ground.write(2)
    with IngestRig(ground.url, tmp_path) as rig:
        device = Device(rig.addresses[0], rig.new_key(f"user-{ULID()}"), "app")
        device.send(device.payload(), timeout_s=1.0)
    ground.write(2)
    seen_ms = ground.now_ms + 39 * DAY_MS
    ground.conn.execute("update anabranch.nodes set last_seen_ms = %s where node_id = %s", (seen_ms, device.node_id))
    assert ground.swept(40).floor == before[-1]
