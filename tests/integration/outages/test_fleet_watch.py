"""A service that hangs is started again, and none while Postgres is away."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from anabranch.runtime.fleet import Fleet
from anabranch.runtime.fleet_watch import FleetWatch, last_objection
from anabranch.runtime.health import probe
from anabranch.testkit.gate import Gate

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outages"), pytest.mark.timeout(300)]

UNREADY_S = 6.0
PATIENCE_S = 60.0


class Said:
    """Lines that people would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, text: str) -> None:
        with self._changed:
            self.lines.append(text)
            self._changed.notify_all()

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in line for line in self.lines), PATIENCE_S), self.lines


def test_a_service_that_hangs_is_started_again_and_none_while_postgres_is_away(
    migrated_url: str, tmp_path: Path
) -> None:
    to = conninfo_to_dict(migrated_url)
    said = Said()
    with Gate(f"{to['host']}:{to['port']}") as gate:
        host, _, port = gate.address.rpartition(":")
        url = make_conninfo(migrated_url, host=host, port=port)
        environment = {"ANABRANCH_READY_INTERVAL_MS": "100"}
        fleet = Fleet(postgres_url=url, folder=tmp_path, restarts=True, say=said, environment=environment)
        try:
            fleet.start(PATIENCE_S)
            before = {name: fleet.child(name).pid for name in fleet.names}
            with FleetWatch(fleet, url, said, unready_s=UNREADY_S):
                gate.silence()
                silent = time.monotonic()
                while time.monotonic() < silent + 3 * UNREADY_S:
                    time.sleep(0.2)
                assert probe(fleet.addresses["ingest"], 2.0) == "NOT_SERVING"
                gate.open()
                for name in fleet.names:
                    fleet.wait_ready(name, PATIENCE_S)
                assert {name: fleet.child(name).pid for name in fleet.names} == before
                assert said.lines == []
                fleet.child("ingest").send(signal.SIGSTOP)
                said.wait_for("ingest was not ready for")
                said.wait_for("ingest was started again")
                fleet.wait_ready("ingest", PATIENCE_S)
                assert "though Postgres answers (it does not answer): it is ended" in "".join(said.lines)
                others = {name: pid for name, pid in before.items() if name != "ingest"}
                assert {name: fleet.child(name).pid for name in others} == others
        finally:
            fleet.stop()


def test_why_a_service_is_not_ready_is_the_last_that_it_said() -> None:
    log = 'cut"}\n{"event": "not ready", "detail": "first"}\n{"event": "not ready", "detail": "the last"}\nplain\n[1]\n'
    assert last_objection(log) == "the last"
    assert last_objection('{"event": "ready"}') == "its log does not say why"
