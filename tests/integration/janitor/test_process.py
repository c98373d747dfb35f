"""The janitor as a process: killed wherever it is, and asked by calls."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tests.integration.janitor.conftest import DAY_MS, Ground
from typer.testing import CliRunner

from anabranch import clock, faults
from anabranch.cli.app import app
from anabranch.ports import free_port
from anabranch.runtime.children import Child, Program
from anabranch.runtime.health import PROBE_OPTIONS, becomes_ready
from anabranch.store.nodes import key_administration
from anabranch.testkit import preforked
from anabranch.v1 import retention_pb2, retention_pb2_grpc

PATIENCE_S = 30.0


class Rig:
    """A janitor whose clock is ``days`` ahead."""

    def __init__(self, ground: Ground, folder: Path, days: float, environment: Mapping[str, str]) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.fault_file = folder / "faults"
        self.key = key_administration.create(ground.conn, subject="admin", role="admin", database=None, now_ms=1)
        self.device = key_administration.create(ground.conn, subject="device", role="device", database="app", now_ms=1)
        clock.set_offset(folder / "clock", round(days * DAY_MS))
        program = Program(
            name="janitor",
            arguments=(sys.executable, "-m", "anabranch_retention_janitor"),
            environment={
                **os.environ,
                "ANABRANCH_POSTGRES_URL": ground.url,
                "ANABRANCH_LISTEN_ADDRESS": self.address,
                "ANABRANCH_END_WITH_STDIN": "true",
                "ANABRANCH_CLOCK_FILE": str(folder / "clock"),
                "ANABRANCH_FAULT_FILE": str(self.fault_file),
                **environment,
            },
            log=folder / "janitor.log",
        )
        self.child = Child(program, restarts=False, say=print, launch=preforked.launch)

    def wait_ready(self) -> None:
        until = time.monotonic() + PATIENCE_S
        with grpc.insecure_channel(self.address, options=PROBE_OPTIONS) as channel:
            while time.monotonic() < until:
                if becomes_ready(channel, 1.0):
                    return
        raise TimeoutError(self.child.log_tail())

    @contextmanager
    def stub(self) -> Iterator[retention_pb2_grpc.RetentionJanitorServiceStub]:
        with grpc.insecure_channel(self.address) as channel:
            yield retention_pb2_grpc.RetentionJanitorServiceStub(channel)

    def metadata(self, key: str | None = None) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {key or self.key}"),)


def state(ground: Ground) -> tuple[int, int, int]:
    rows = ground.number("select count(*) from anabranch.log where database_id = %s", ground.id)
    groups = ground.number("select count(*) from anabranch.groups where database_id = %s", ground.id)
    return ground.floor, -rows, -groups


@pytest.mark.slow
def test_killed_each_time_it_comes_to_its_end_all_the_same(ground: Ground, tmp_path: Path) -> None:
    """Each life ends at the next step that was committed; every one of them got further, and none removed what the
    committed floor does not cover."""
    positions = ground.write(3)
    rig = Rig(ground, tmp_path, 40, {"ANABRANCH_FLOOR_MAX_CHANGES": "2", "ANABRANCH_SWEEP_MAX_ROWS": "4"})
    seen = [state(ground)]
    for life in range(1, 20):
        floor_left = ground.floor < positions[-1]
        faults.arm(rig.fault_file, "after_floor" if floor_left else "after_removal")
        rig.child.start()
        rig.child.wait_died(life - 1, PATIENCE_S)
        faults.disarm(rig.fault_file)
        seen.append(state(ground))
        assert set(positions) - set(ground.positions()) <= {p for p in positions if p <= ground.floor}
        if seen[-1] == (positions[-1], 0, -1):
            break
    assert seen[1:4] == [(position, -6, -3) for position in positions], "the floor first, one step a life"
    assert len(set(seen)) == len(seen), "each life got further"
    assert seen == sorted(seen), "never back"
    assert seen[-1] == (positions[-1], 0, -1)


@pytest.mark.slow
def test_calls_tell_and_sweep(ground: Ground, tmp_path: Path) -> None:
    positions = ground.write(3)
    ground.node("A", positions[1], seen_days=39)
    rig = Rig(ground, tmp_path, 0, {"ANABRANCH_SWEEP_INTERVAL_MS": "3600000"})
    rig.child.start()
    try:
        rig.wait_ready()
        with rig.stub() as janitor:
            with pytest.raises(grpc.RpcError) as refused:
                janitor.GetStatus(
                    retention_pb2.GetStatusRequest(db_name="app"), metadata=rig.metadata(rig.device), timeout=10
                )
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.RpcError) as unknown:
                janitor.RunSweep(retention_pb2.RunSweepRequest(db_name="no"), metadata=rig.metadata(), timeout=10)
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            young = janitor.GetStatus(
                retention_pb2.GetStatusRequest(db_name="app"), metadata=rig.metadata(), timeout=10
            )
            assert (young.floor, young.next_floor, young.bounds[0].hold) == (0, 0, retention_pb2.FLOOR_HOLD_WINDOW)
            clock.set_offset(tmp_path / "clock", 40 * DAY_MS)
            dry = janitor.RunSweep(
                retention_pb2.RunSweepRequest(db_name="app", dry_run=True), metadata=rig.metadata(), timeout=10
            )
            assert (dry.floor_before, dry.floor, ground.floor) == (0, positions[1], 0)
            assert {one.what: one.rows for one in dry.removed} == {"log": 4, "groups": 1}
            done = janitor.RunSweep(retention_pb2.RunSweepRequest(db_name="app"), metadata=rig.metadata(), timeout=30)
            assert (done.floor_before, done.floor, ground.floor) == (0, positions[1], positions[1])
            assert done.bounds[0].hold == retention_pb2.FLOOR_HOLD_NODE
            assert done.state.floor == positions[1]
            assert ground.positions() == positions[2:]
    finally:
        rig.child.stop(15)


def test_the_command_shows_what_holds_the_floor(ground: Ground) -> None:
    ground.write(1)
    shown = CliRunner().invoke(app, ["retention", "status", "app", "--postgres-url", ground.url, "--json"])
    assert shown.exit_code == 0, shown.output
    assert '"hold": "WINDOW"' in shown.output
    refused = CliRunner().invoke(app, ["retention", "status", "no", "--postgres-url", ground.url])
    assert refused.exit_code == 2
    assert "UNKNOWN_DATABASE" in refused.output
