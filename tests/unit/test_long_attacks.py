"""An attack of fifteen minutes keeps no more than one of a minute, and misses nothing that is logged."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from anabranch.runtime import children
from anabranch.testkit.attack import expanding, phases
from anabranch.testkit.attack.expanding import send_expanding
from anabranch.testkit.attack.logs import Logs
from anabranch.testkit.attack.neighbour import KEPT_TIMES, Times, medians
from anabranch.testkit.attack.target import Findings, Target
from anabranch.testkit.ingest_rig import Device
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, ingest_pb2, value_pb2, verdict_pb2

ROWS = 3
FAULT = "Traceback (most recent call last)"


def test_a_fault_is_found_though_its_log_was_put_aside_and_replaced(tmp_path: Path) -> None:
    log, found = tmp_path / "ingest.log", Findings()
    logs = Logs(tmp_path, found)

    def write(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    write("calm\n" * 3)
    logs.read()
    assert not found.breaches
    write(f"calm\n{FAULT}: one\n" + "x" * children.LOG_KEPT_BYTES + "\n")
    children.turn_log(log)
    write("calm\n")
    logs.read()
    assert found.breaches == {f"ingest.log has {FAULT}": f"{FAULT}: one"}
    # Another kind of fault, in the log that began anew; and a line that is not whole yet is read later.
    write("calm\nservice fai")
    logs.read()
    write("led\n")
    logs.read()
    assert found.breaches.keys() == {f"ingest.log has {FAULT}", "ingest.log has service failed"}
    assert sum(found.answers.values()) == 2


def test_times_are_drawn_from_all_alike() -> None:
    times = Times()
    assert medians({("quiet", "none"): times}, "quiet") == {}
    # The second half of a run is twice as slow: the median is not that of its first thousand calls.
    for number in range(100 * KEPT_TIMES):
        times.add(1.0 if number < 30 * KEPT_TIMES else 2.0)
    assert len(times._kept) == KEPT_TIMES
    assert medians({("quiet", "all"): times}, "quiet") == {"all": 2.0}


class _Stop:
    """Lets so many batches go."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def rest(self, seconds: float) -> bool:
        self.left -= 1
        return self.left < 0


def test_an_attacker_deletes_what_it_has_inserted(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    most = 0

    def send(device: Device, payload: bytes, timeout_s: float) -> ingest_pb2.SendResponse:
        nonlocal most
        for mutation in batch_pb2.DbMutationBatch.FromString(payload).mutations:
            keys = {row.values[0].string_value for row in mutation.rows}
            if mutation.type == batch_pb2.MUTATION_TYPE_DELETE:
                assert keys <= there
                there.difference_update(keys)
            elif mutation.table == "item":
                there.update(keys)
        most = max(most, len(there))
        return ingest_pb2.SendResponse(verdicts=[verdict_pb2.Verdict(status=verdict_pb2.VERDICT_STATUS_APPLIED)])

    monkeypatch.setattr(Device, "send", send)
    made = {"few": lambda batch, chance: expanding._insert(batch, ROWS, "n", value_pb2.Value(decimal_value="1"))}
    monkeypatch.setattr(expanding, "_MADE", made)
    target = Target({"ingest": "127.0.0.1:1"}, "db", "key", "key", "url")
    send_expanding(target, random.Random(1), _Stop(4 * expanding.MOST_BATCHES), Findings())  # type: ignore[arg-type]
    assert most == expanding.MOST_BATCHES * ROWS


def test_attackers_rest_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_S", "ATTACK_S", "SETTLE_S"):
        monkeypatch.setattr(phases, name, 0.05)
    monkeypatch.setattr(phases, "LOOK_S", 0.001)
    one = phases.Phases()
    deeds: list[str] = []
    seen: list[str] = []
    stay = phases.Phases._stay

    def stays(made: phases.Phases, phase: str, seconds: float) -> None:
        """Goes on once the attacker has had its turn in the phase, or can be seen to rest."""
        seen.append(phase)
        before = len(deeds)
        stay(made, phase, seconds)
        if phase == phases.ATTACKED:
            until(lambda: len(deeds) > before)

    monkeypatch.setattr(phases.Phases, "_stay", stays)

    def attack() -> None:
        while not one.rest(0.001):
            deeds.append(one.now)

    attacker = threading.Thread(target=attack)
    attacker.start()
    one.run(0.5)
    attacker.join()
    assert seen[:5] == ["quiet", "attacked", "settling", "quiet", "attacked"]
    # One deed may have begun in the moment in which its phase ended.
    assert len(deeds) - deeds.count("attacked") <= len(seen)
    assert deeds.count("attacked") >= seen.count("attacked") - 1
