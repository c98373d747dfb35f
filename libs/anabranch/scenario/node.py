"""A node as the runner knows it: its file, its process, its network, and every batch that it has made.

State model of the process: *gone* (none), *running* (one, which answers each request or dies), *started* (its SyncedDb
has begun, so that its tables are there). If the socket ends during a request, the process died: at a fault point, which
the caller expects, or for no known reason, which is a finding. The state of the network outlives the process: the next
process gets it.
"""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from anabranch import clock, faults
from anabranch.errors import AnabranchError
from anabranch.scenario.lines import Lines, send

ANSWER_S = 90.0
_NURSERY_S = 60.0
_SUFFIXES = ("", "-wal")
_LOG_TAIL_BYTES = 2_000


class RaisedError(AnabranchError):
    """A call on a node raised. ``again``: the same call may succeed later."""

    def __init__(self, node: str, raised: Mapping[str, Any]) -> None:
        super().__init__(f"{node}: {raised['type']}: {raised['message']}")
        self.code: str = raised["code"]
        self.reason: str = raised["reason"]
        self.again: bool = raised["again"]

    @property
    def is_of_another_principal(self) -> bool:
        """Whether the call was refused because the file belongs to another principal."""
        return self.reason == "WRONG_PRINCIPAL"

    @property
    def is_of_one_node(self) -> bool:
        """Whether the server refuses this node as it is, so that others go on: its file is another principal's, or its
        app is too old."""
        return self.is_of_another_principal or self.reason == "APP_OUTDATED"


class NodeDiedError(AnabranchError):
    """A node's process is gone."""


class Made(NamedTuple):
    """A batch as a node made it."""

    id: str
    payload: bytes
    basis: int


class Nursery:
    """The process that forks nodes. Starting it returns at once; the first node waits until it is ready. ``program``:
    a client to run as a node in place of ours."""

    def __init__(self, log: Path, program: Path | None = None) -> None:
        self._more = {} if program is None else {"program": str(program.resolve())}
        ours, theirs = socket.socketpair()
        with log.open("ab") as output, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "anabranch.scenario.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._control = ours
        self._control.settimeout(_NURSERY_S)
        self._lines = self._control.makefile("rb")

    def spawn(self, options: Mapping[str, Any]) -> tuple[int, socket.socket]:
        """A new node's process id, and the socket to talk to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            message = json.dumps({"do": "spawn", "options": {**options, **self._more}}).encode()
            socket.send_fds(self._control, [message], [theirs.fileno()])
        return self._answer()["pid"], ours

    def kill(self, pid: int) -> None:
        """SIGKILL a node and wait for its end."""
        self._ask("kill", pid)

    def reap(self, pid: int) -> int:
        """Wait for a node that is ending; return its exit code, negative for a signal."""
        return self._ask("reap", pid)

    def _ask(self, what: str, pid: int) -> int:
        self._control.sendall(json.dumps({"do": what, "pid": pid}).encode())
        return self._answer()["status"]

    def _answer(self) -> dict[str, int]:
        line = self._lines.readline()
        if not line:
            raise NodeDiedError("the process that starts nodes is gone")
        answer: dict[str, int] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it, and every node that is left."""
        self._lines.close()
        self._control.close()
        self._process.wait(_NURSERY_S)


@dataclass
class Network:
    """The state of a node's network, whether or not the node has a process. ``lost`` and ``pulls_cut``: how often that
    happened, by the process's last report."""

    is_cut: bool = False
    loses_answer: bool = False
    cut_pull: int | None = None
    lost: int = 0
    pulls_cut: int = 0


@dataclass
class Node:
    """A node. ``options`` is all that its process needs to know; ``started``: it has its tables; ``version``: the
    schema version that it has read (None: it has read nothing)."""

    name: str
    nursery: Nursery
    options: dict[str, Any]
    network: Network
    offset_ms: int = 0
    started: bool = False
    version: int | None = None
    made: list[Made] = field(default_factory=list)
    deaths: int = 0
    _pid: int | None = None
    _peer: socket.socket | None = None
    _lines: Lines | None = None
    _known: set[str] = field(default_factory=set)

    @property
    def file(self) -> Path:
        """Its SQLite file."""
        return Path(self.options["file"])

    @property
    def pinned(self) -> int | None:
        """The schema version that its app was built for; None where any will do."""
        version: int | None = self.options.get("schema_version")
        return version

    @property
    def fault_file(self) -> Path:
        """The file that arms its fault points."""
        return Path(self.options["fault_file"])

    @property
    def log_tail(self) -> str:
        """The end of its process's output."""
        log = Path(self.options["log"])
        return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""

    # Its process

    @property
    def has_process(self) -> bool:
        """Whether it has a process."""
        return self._peer is not None

    def open(self) -> None:
        """Start a process, with the network as it was. Its SyncedDb is not started."""
        if self._peer is not None:
            return
        self._pid, self._peer = self.nursery.spawn(self.options)
        self._lines = Lines(self._peer)
        network = self.network
        network.lost = network.pulls_cut = 0
        if network.is_cut:
            self.ask("cut")
        if network.loses_answer:
            self.ask("lose_answer")
        if network.cut_pull is not None:
            self.ask("cut_pull", after_rows=network.cut_pull)

    def ask(self, do: str, /, **arguments: Any) -> Any:
        """Send it a command; return the answer.

        Raises:
            RaisedError: the call raised there.
            NodeDiedError: it died meanwhile; there is no process now.
            TimeoutError: it did not answer in time, and was killed.
        """
        if self._peer is None or self._lines is None:
            raise NodeDiedError(f"{self.name} has no process")
        try:
            send(self._peer, {"do": do, "with": arguments})
            answer = self._lines.next(ANSWER_S)
        except BrokenPipeError:
            answer = None
        except TimeoutError:
            self.kill()
            raise TimeoutError(f"{self.name} did not answer {do} in {ANSWER_S:g} s") from None
        if answer is None:
            self._gone()
            raise NodeDiedError(f"{self.name} died at {do}")
        self._note(answer)
        if "raised" in answer:
            raise RaisedError(self.name, answer["raised"])
        return answer["gives"]

    def _note(self, answer: Mapping[str, Any]) -> None:
        network = self.network
        lost, cut = answer.get("lost", 0), answer.get("pulls_cut", 0)
        if lost > network.lost:
            network.loses_answer = False
        if cut > network.pulls_cut:
            network.cut_pull = None
        network.lost, network.pulls_cut = lost, cut

    def _gone(self) -> None:
        peer, pid = self._peer, self._pid
        self._peer = self._lines = self._pid = None
        self.started = False
        self.deaths += 1
        if peer is not None:
            peer.close()
        if pid is not None:
            self.nursery.reap(pid)

    def kill(self) -> None:
        """SIGKILL its process, if it has one."""
        peer, pid = self._peer, self._pid
        self._peer = self._lines = self._pid = None
        self.started = False
        if pid is not None:
            self.nursery.kill(pid)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        """Have its process close the file and end."""
        if self._peer is None:
            return
        with suppress(RaisedError, NodeDiedError):
            self.ask("stop")
        self.kill()

    # Its file

    def reader(self) -> closing[sqlite3.Connection]:
        """A connection that can only read, to be closed."""
        return closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True, timeout=10.0))

    def run_foreign(self, sql: str) -> None:
        """Run SQL on its file as a program that knows nothing of us would. Raises RaisedError."""
        with closing(sqlite3.connect(self.file, timeout=10.0)) as conn:
            try:
                with conn:
                    conn.execute(sql)
            except sqlite3.Error as error:
                told = {"type": type(error).__name__, "message": str(error), "code": "", "reason": "", "again": False}
                raise RaisedError(self.name, told) from error

    def look_for_batches(self) -> int:
        """Note the batches in the queue that were not there before, with their bytes; return how many."""
        with self.reader() as conn:
            ids = [i for (i,) in conn.execute("SELECT id FROM _db_mutations_queue ORDER BY id") if i not in self._known]
            for batch_id in ids:
                row = conn.execute("SELECT value, basis FROM _db_mutations_queue WHERE id = ?", (batch_id,)).fetchone()
                self.made.append(Made(batch_id, bytes(row[0]), row[1]))
        self._known.update(ids)
        return len(ids)

    def forget_batches(self) -> None:
        """Regard the batches in the queue as made elsewhere, as those of a copied file are."""
        self.look_for_batches()
        self.made.clear()

    def unsent(self) -> list[str]:
        """The batches without a verdict, in order."""
        with self.reader() as conn:
            rows = conn.execute("SELECT id FROM _db_mutations_queue WHERE server_timestamp_ms IS NULL ORDER BY id")
            return [batch_id for (batch_id,) in rows]

    def copy_file(self, to: Path) -> None:
        """Copy the file with its write-ahead log; nothing writes meanwhile, since its process waits for a command."""
        for suffix in _SUFFIXES:
            source, target = self.file.with_name(self.file.name + suffix), to.with_name(to.name + suffix)
            target.unlink(missing_ok=True)
            if source.exists():
                shutil.copyfile(source, target)

    def put_back(self, kept: Path) -> None:
        """Replace the file with ``kept``, a copy of it. The node must have no process."""
        self.file.with_name(self.file.name + "-shm").unlink(missing_ok=True)
        for suffix in _SUFFIXES:
            source, target = kept.with_name(kept.name + suffix), self.file.with_name(self.file.name + suffix)
            target.unlink(missing_ok=True)
            if source.exists():
                shutil.copyfile(source, target)

    def set_clock(self, common_ms: int) -> None:
        """Move its clock to the common offset and its own."""
        clock.set_offset(Path(self.options["clock_file"]), common_ms + self.offset_ms)

    def arm(self, point: str) -> None:
        """Have it die at a fault point, once."""
        faults.arm(self.fault_file, point)
