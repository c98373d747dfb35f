"""The compactor for tests that run it many times: one process that has started Spark, and takes runs one at a time.

``python -m anabranch_compactor`` starts Python, Java and Spark for every run, which is most of what a small run costs.
Here only the first run pays for it. Exit code, standard output and standard error of a run are those of the program
itself (``warm_compactor_process`` says why); what Java writes goes into a log file. A run that is to be killed from
outside, or that is about Java or about the start of Spark, needs the program: Spark lives on here.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from anabranch.errors import AnabranchError

_END_S = 60.0
_TAIL_BYTES = 1_500


class ColdError(AnabranchError):
    """The process that has Spark could not start it, or died; the message is what it wrote last."""


class WarmCompactor:
    """The process is started by the first run, with that run's settings of Spark, and ends with ``close`` or with this
    process, even where that is killed. ``log`` takes what Java writes. Not for several threads."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, environment: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run the compactor with an environment of its own, as ``compactor_job.program`` gives it.

        Raises:
            ColdError: there was no process that could run it. The next run starts another one.
            subprocess.TimeoutExpired: the run took longer, and was ended together with the process.
        """
        control = self._started(environment)
        message = json.dumps(dict(environment)).encode()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            control.settimeout(timeout_s)
            try:
                socket.send_fds(control, [len(message).to_bytes(8)], [output.fileno(), errors.fileno()])
                control.sendall(message)
                answer = control.recv(8)
            except TimeoutError:
                self._kill()
                raise subprocess.TimeoutExpired("anabranch_compactor", timeout_s) from None
            except OSError:
                answer = b""
            if not answer:
                self._kill()
                raise ColdError(f"the compactor's process is gone: {self._told()}")
            output.seek(0)
            errors.seek(0)
            code = int.from_bytes(answer, signed=True)
            return subprocess.CompletedProcess(
                "anabranch_compactor", code, output.read().decode(), errors.read().decode()
            )

    def close(self) -> None:
        """End the process, if there is one."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(_END_S)
        self._control = self._process = None

    def _started(self, environment: Mapping[str, str]) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            with self._log.open("ab") as output, theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "anabranch.testkit.warm_compactor_process", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env={name: value for name, value in environment.items() if name != "ANABRANCH_FAULT_FILE"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        return self._control

    def _kill(self) -> None:
        """Java ends when the process that started it is gone."""
        if self._process is not None:
            self._process.kill()
        self.close()

    def _told(self) -> str:
        return self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
