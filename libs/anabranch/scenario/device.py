"""A node, in a process of its own: a SyncedDb on its file that carries out commands, one line at a time, and answers
with the result of each. It never syncs by itself. It ends when its runner does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anabranch import faults
from anabranch.client import CallFailed, SyncedDb
from anabranch.client.queue.statements import Queued
from anabranch.clock import Clock
from anabranch.scenario.lines import Lines, send
from anabranch.testkit.network import Network
from anabranch.testkit.remote import remote_of
from anabranch.v1 import errors_pb2, verdict_pb2

_RESEND_S = 30.0


class Device:
    """The node. Every public method is a command; its return value is the answer."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._verdicts: list[bytes] = []
        self._token: str = options["token"]
        self.network = Network(self._verdicts.append)
        remote = remote_of(options["addresses"], lambda: self._token, [self.network])
        chosen = ("tables", "audiences", "schema_version")
        own: dict[str, Any] = {name: options[name] for name in chosen if name in options}
        now_ms = Clock(file=Path(options["clock_file"])).now_ms
        self._db = SyncedDb(
            options["file"],
            remote,
            options["db_name"],
            node_name=options["name"],
            now_ms=now_ms,
            reached=faults.reach,
            **own,
        )

    def renew(self, token: str) -> None:
        """Make all further calls with another token of the same principal."""
        self._token = token

    def start(self) -> None:
        """Start the SyncedDb, with a pull where the file is new."""
        self._db.start(background=False)

    def stop(self) -> None:
        """Close the file."""
        self._db.close()

    def write(self, mutations: Sequence[Mapping[str, Any]], batch: bool) -> None:
        """Make mutations locally: each a batch of its own, or all of them one ``batch``."""
        if not batch:
            for mutation in mutations:
                self._mutate(**mutation)
            return
        with self._db.batch():
            for mutation in mutations:
                self._mutate(**mutation)

    def _mutate(self, kind: str, table: str, rows: list[Any]) -> None:
        synced = self._db.table(table)
        {"insert": synced.insert, "update": synced.update, "delete": synced.delete}[kind](rows)

    def flush(self, timeout_s: float) -> bool:
        """Send the queue and wait for verdicts; return whether all came."""
        return self._db.flush(timeout_s)

    def send_one(self, batch_id: str, timeout_s: float) -> None:
        """Send one batch of the queue in a call of its own."""
        self._db._sender.flush(timeout_s, only=[batch_id])

    def read(self) -> None:
        """Read the log to its head."""
        self._db.read()

    def resend(self, batch_id: str, payload: bytes, basis: int) -> list[str]:
        """Send bytes again; return the answer: status and reason."""
        self._verdicts.clear()
        self._db._sender._call([Queued(batch_id, payload, basis, "")], _RESEND_S)
        answered = [verdict_pb2.Verdict.FromString(v) for v in self._verdicts]
        return [
            f"{verdict_pb2.VerdictStatus.Name(v.status)} {errors_pb2.Reason.Name(v.reason)}"
            for v in answered
            if v.batch_id == batch_id
        ]

    def status(self) -> dict[str, Any]:
        """The status of the file."""
        return asdict(self._db.status())

    def dead_letters(self) -> list[dict[str, Any]]:
        """The dead letters, in the order made."""
        return [asdict(letter) for letter in self._db.dead_letters()]

    def replay(self, letter_id: str, changes: Mapping[str, Any]) -> None:
        """Replay a dead letter, changed."""
        self._db.replay(letter_id, changes)

    def discard(self, letter_id: str) -> None:
        """Remove a dead letter."""
        self._db.discard(letter_id)

    def restore(self, number: int) -> int:
        """Put back the value that lost in the conflict of that number, the oldest first; return how many there are.
        Does nothing where there are fewer."""
        lost = list(self._db.conflicts())
        if number <= len(lost):
            self._db.restore(lost[-number])
        return len(lost)

    def sums(self) -> dict[str, Any]:
        """Every table's kept sum: count and hash."""
        return {name: list(kept) for name, kept in self._db.table_sums().items()}

    def time_passed(self) -> None:
        """Forget the server's time: the node got it longer ago than such a reading is valid."""
        self._db._clock.forget()

    def cut(self) -> None:
        """Cut the network."""
        self.network.cut()

    def restore_network(self) -> None:
        """Restore it."""
        self.network.restore()

    def lose_answer(self) -> None:
        """Lose the answer to the next call that sends batches."""
        self.network.lose_answers(1)

    def cut_pull(self, after_rows: int) -> None:
        """Cut the next pull."""
        self.network.cut_pull(after_rows)


def serve(peer: socket.socket, options: Mapping[str, Any]) -> None:
    """Carry out the commands of ``peer`` until it is gone or sends ``stop``."""
    faults.watch(Path(options["fault_file"]))
    lines = Lines(peer)
    device: Device | None = None
    while (told := lines.next()) is not None:
        answer: dict[str, Any] = {}
        try:
            device = device or Device(options)
            doing: Callable[..., Any] = getattr(device, told["do"])
            answer["gives"] = doing(**told["with"])
        # An error of any kind is the answer to the call: the runner judges it.
        except Exception as error:
            answer["raised"] = {
                "type": type(error).__name__,
                "message": str(error),
                "code": error.code if isinstance(error, CallFailed) else "",
                "reason": error.reason if isinstance(error, CallFailed) else "",
                "again": isinstance(error, CallFailed) and error.again,
            }
        if device is not None:
            answer["lost"] = device.network.answers_lost
            answer["pulls_cut"] = device.network.pulls_cut
        send(peer, answer)
        if told["do"] == "stop":
            return
