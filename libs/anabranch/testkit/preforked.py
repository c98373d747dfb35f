"""Starts services for tests in a tenth of the time: each is forked from a process that has imported its modules.

A service takes a second of processor time to import its modules, and tests start hundreds. A forked one is the same
program from the first line of its ``__main__`` on, in a process, session and environment of its own; it is not the
same before that. So what tests of a start itself, or of memory that modules take, are about needs
``anabranch.runtime.children.launch``.

There is one such process for each service and each process of the tests, made when it is needed first; it ends with the
one that made it, however that ends. Where the operating system has no ``pidfd_open``, or a variable of the environment
that Python or a library may read is another one than here, the service is started as ever.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import IO

from anabranch.runtime import children
from anabranch.runtime.children import Process, Program
from anabranch.runtime.fleet import SERVICES

MODULES = (*SERVICES.values(), "anabranch.testkit.echo_service")
"""The modules that are forked where they are all that a program runs."""
_CAN = hasattr(os, "pidfd_open")
_ANSWER_S = 60.0
_READ_LATER = ("ANABRANCH_", "PYTEST_")
"""Beginnings of variables that nobody reads before a service's first line."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""A library that numpy loads starts others at once; no service computes by it."""


class _Forked:
    """A forked process. ``parent`` is the one that it was forked from, which alone can reap it."""

    def __init__(self, parent: _Parent, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self._parent = parent
        # Before it is reaped no other process can have its id.
        self._end = os.pidfd_open(pid)

    def await_end(self) -> None:
        """Wait for its end, and leave it its id."""
        end = select.poll()
        end.register(self._end, select.POLLIN)
        while not end.poll():
            continue

    def wait(self) -> int:
        """Wait for its end, and let its id go."""
        self.await_end()
        os.close(self._end)
        return self._parent.ask({"reap": self.pid})


class _Parent:
    """The process that services of one module are forked from. Any thread."""

    def __init__(self, module: str) -> None:
        self.owner = os.getpid()
        self.environment = _read_early(os.environ)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "anabranch.testkit.preforked_process", str(theirs.fileno()), module],
                env={**os.environ, **_ONE_THREAD},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def fork(self, program: Program, output: IO[bytes]) -> Process:
        """Fork the program's process. Raises OSError where this one is gone."""
        ours, its = os.pipe()
        with os.fdopen(ours, "rb") as standard_input:
            stdin = os.fdopen(its, "wb")
            files = [standard_input.fileno(), output.fileno()]
            order = {"environment": dict(program.environment), "folder": os.getcwd()}
            return _Forked(self, self.ask(order, files), stdin)

    def ask(self, message: Mapping[str, object], files: list[int] | None = None) -> int:
        """Send a message; gives the answer. Raises OSError where the process is gone."""
        body = json.dumps(message).encode()
        with self._lock:
            socket.send_fds(self._control, [len(body).to_bytes(8)], files or [])
            self._control.sendall(body)
            answer = self._control.recv(8, socket.MSG_WAITALL)
        if len(answer) < 8:
            raise OSError("the process that services are forked from is gone; its error stands above")
        return int.from_bytes(answer, signed=True)


_parents: dict[str, _Parent] = {}
_making = threading.Lock()


def launch(program: Program, output: IO[bytes]) -> Process:
    """Start a program: a service by a fork, anything else as ever. Raises OSError where it can't be started."""
    module = program.arguments[-1]
    if not _CAN or module not in MODULES or tuple(program.arguments) != (sys.executable, "-m", module):
        return children.launch(program, output)
    parent = _parent(module)
    if _read_early(program.environment) != parent.environment:
        return children.launch(program, output)
    return parent.fork(program, output)


def prepare(modules: Iterable[str]) -> None:
    """Have the modules of services imported while something else is done."""
    if _CAN:
        for module in modules:
            _parent(module)


def _parent(module: str) -> _Parent:
    with _making:
        parent = _parents.get(module)
        if parent is None or parent.owner != os.getpid():
            parent = _parents[module] = _Parent(module)
        return parent


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_READ_LATER)}
