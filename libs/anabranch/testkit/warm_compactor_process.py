"""The process of a ``WarmCompactor``: it has loaded the compactor and started Spark, and forks itself for each run.

A forked process is as new as the program's own: the process that it comes from has only loaded modules and started
Spark, and never runs the job. So settings, ``os.environ``, logs, telemetry, metrics, every cache and every
``ContextVar`` are those of a process before its run, and a run can leave nothing behind in them; an error that nobody
caught, or a SIGKILL at a fault point, ends the run alone. Three things are there before a run and are put right for it:

* the fault file, which ``faults`` reads as it is loaded: this process has none, and a run watches its own;
* the folder of temporary files, which ``tempfile`` finds once a process;
* the connection to Java, of which each process needs one of its own: Java answers in the order of questions.

What outlives a run is Spark's: the session (into which the compactor puts nothing but its data source), and Python's
workers, which have the environment of the first run, and which runs of many stages share in the program, too. Java
keeps the objects that a run has named until it ends itself.

State model: one run at a time. Where the control socket ends, a run under way is killed, and Spark ended.

Usage: python -m anabranch.testkit.warm_compactor_process FD
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch import faults

_HEAD_BYTES = 8
# By name, because libs import no service.
_job = importlib.import_module("anabranch_compactor.__main__")
_config = importlib.import_module("anabranch_compactor.config")
_spark = importlib.import_module("anabranch_compactor.spark.session")


def main(control: socket.socket) -> None:
    """Serve until ``control`` ends."""
    # Ctrl-C is for the test, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = _job.load_settings(_config.CompactorSettings)
    asked = settings.spark_master, settings.spark_driver_memory_mib
    with _spark.spark_session(asked[0], driver_memory_mib=asked[1]) as session:
        while True:
            head, files, _, _ = socket.recv_fds(control, _HEAD_BYTES, 2)
            if not head:
                return
            environment = json.loads(_exactly(control, int.from_bytes(head)))
            code = _run(control, environment, files, session, asked)
            if code is None:
                return
            control.sendall(code.to_bytes(8, signed=True))


def _exactly(control: socket.socket, size: int) -> bytes:
    message = b""
    while len(message) < size:
        piece = control.recv(size - len(message))
        if not piece:
            raise EOFError("the message ended in the middle")
        message += piece
    return message


def _run(
    control: socket.socket, environment: Mapping[str, str], files: list[int], session: Any, asked: tuple[Any, int]
) -> int | None:
    """The exit code of one run (negative: the signal); None where ``control`` ended meanwhile."""
    running, end = os.pipe()
    pid = os.fork()
    if not pid:
        control.close()
        _become(environment, files, session, asked)
    for descriptor in (end, *files):
        os.close(descriptor)
    try:
        ready, _, _ = select.select([running, control.fileno()], [], [])
    finally:
        os.close(running)
    has_ended = running in ready
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if has_ended else None


def _become(environment: Mapping[str, str], files: list[int], session: Any, asked: tuple[Any, int]) -> None:
    """Be the program from here on."""

    @contextmanager
    def given(*wanted: Any, driver_memory_mib: int) -> Iterator[Any]:
        if (*wanted, driver_memory_mib) != asked:
            raise ValueError(f"this Spark was started with {asked}, not with {(*wanted, driver_memory_mib)}")
        yield session

    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environment)
        if file := environment.get("ANABRANCH_FAULT_FILE"):
            faults.watch(Path(file))
        tempfile.tempdir = None
        session.sparkContext._gateway._gateway_client.thread_connection = threading.local()
        for number, descriptor in enumerate(files, 1):
            os.dup2(descriptor, number)
        code = _job.main(given)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Without the interpreter's shutdown, which would end the Spark of the process that this one comes from.
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
