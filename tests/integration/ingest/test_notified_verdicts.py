"""Verdicts that come with the notification: delivered without a look, where the resolver sealed them."""

from __future__ import annotations

import threading
from hashlib import sha256

import pytest

from anabranch.store.inbox import notified
from anabranch.store.session.channels import GROUPS_CHANNEL
from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, IngestRig, batch_id
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.v1 import ingest_pb2, verdict_pb2

CHAIN = bytes(range(16))
WAITING = "select database_id, principal from anabranch.inbox where batch_id = %s"
PATIENCE_S = 10.0


class Told:
    """A call that waits for a batch, and a way to tell of it by a notification only. Nothing is stored."""

    def __init__(self, rig: IngestRig, device: Device) -> None:
        self.payload = device.payload()
        self.id = batch_id(self.payload)
        self._device = device
        self._rig = rig
        self._answers: list[ingest_pb2.SendResponse] = []
        self._call = threading.Thread(target=self._send)
        self._call.start()

    def _send(self) -> None:
        self._answers.append(self._device.send(self.payload, timeout_s=3.0))

    def tell(self, *, key: bytes | None = None, principal: str | None = None, times: int = 1) -> None:
        """Tell that the batch is applied, sealed with ``key`` (the database's own if None)."""
        with connect(self._rig.url, application_name="test", autocommit=True) as conn:
            for _ in range(1_000):
                row = conn.execute(WAITING, (self.id,)).fetchone()
                if row is not None:
                    break
                self._call.join(PATIENCE_S / 1_000)
            assert row is not None, "the batch was not appended"
            database_id, of = row
            [(own_key,)] = conn.execute("select seal_key from anabranch.databases where id = %s", (database_id,))
            verdict = verdict_pb2.Verdict(
                batch_id=self.id, status=verdict_pb2.VERDICT_STATUS_APPLIED, position=7, message="told"
            )
            one = notified.Verdict(self.id, sha256(self.payload).digest(), principal or of, verdict.SerializeToString())
            text = notified.seal_verdicts(key or own_key, database_id, 7, CHAIN, [one], 4_000)
            for _ in range(times):
                conn.execute("select pg_notify(%s, %s)", (GROUPS_CHANNEL, f"{database_id}:7:{self.id};;{text}"))

    def verdict(self) -> verdict_pb2.Verdict:
        """The verdict that the call was answered."""
        self._call.join(PATIENCE_S)
        [answer] = self._answers
        return answer.verdicts[0]


@pytest.mark.slow
def test_a_verdict_comes_with_the_notification(rig: IngestRig, device: Device, resolver: VerdictWriter) -> None:
    resolver.paused.set()
    call = Told(rig, device)
    call.tell()
    verdict = call.verdict()
    assert (verdict.status, verdict.message) == (verdict_pb2.VERDICT_STATUS_APPLIED, "told")


@pytest.mark.slow
def test_a_forged_notification_decides_nothing(rig: IngestRig, device: Device, resolver: VerdictWriter) -> None:
    resolver.paused.set()
    call = Told(rig, device)
    call.tell(key=b"somebody else's key, of 32 bytes")
    assert call.verdict().status == verdict_pb2.VERDICT_STATUS_PENDING
    resolver.paused.clear()
    [verdict] = device.send(call.payload).verdicts
    assert (verdict.status, verdict.message) == (verdict_pb2.VERDICT_STATUS_APPLIED, "")


def test_forged_notifications_are_told_of_now_and_then(rig: IngestRig, device: Device, resolver: VerdictWriter) -> None:
    """Anybody with a session of the database could fill the log with them."""
    resolver.paused.set()
    call = Told(rig, device)
    call.tell(key=b"somebody else's key, of 32 bytes", times=20)
    # A notification after them is heard after them.
    call.tell()
    assert call.verdict().message == "told"
    told_of = [line for line in rig.log().splitlines() if "not sealed by the resolver" in line]
    # One of this test's, or of one that ran a moment before it; on a busy machine both.
    assert 1 <= len(told_of) <= 3


@pytest.mark.slow
def test_a_verdict_told_to_another_principal_is_not_shown(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    resolver.paused.set()
    call = Told(rig, device)
    call.tell(principal="somebody else")
    assert call.verdict().status == verdict_pb2.VERDICT_STATUS_REJECTED
    assert not call.verdict().message.startswith("told")
