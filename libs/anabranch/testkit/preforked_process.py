"""Forks services that have imported all their modules: ``python -m anabranch.testkit.preforked_process 5 MODULE`` with
the number of a socket and the module that ``python -m`` would run.

A message on the socket is its length, 8 bytes, and JSON:

* ``{"environment": …, "folder": …}``, together with two files: a process is forked, of this environment and in this
  folder, with the first as its standard input and the second as its output; the answer is its id.
* ``{"reap": id}``: a process that has ended gives up its id; the answer is its exit code, or the negative number of the
  signal that ended it.

An answer is a number of 8 bytes. The process ends with the socket.

A fork has one thread of its parent's. So nothing may be started here, by no module that is imported: that is looked at.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NamedTuple

from anabranch import faults

_HEAD_BYTES = 8
_ABSENT = ("pandas", "polars")
"""Libraries that Arrow and ADBC import where they are installed: no image has them, and polars starts threads."""
_FORKED = ("jemalloc_bg_thd",)
"""Threads of libraries that see to a fork themselves."""


class _Absent(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Let nobody find what is absent from an image."""
        if fullname.partition(".")[0] in _ABSENT:
            raise ModuleNotFoundError(f"{fullname} is in no image", name=fullname)


class _Order(NamedTuple):
    """A process that is to be."""

    environment: dict[str, str]
    folder: str
    files: list[int]


def _serve(control: socket.socket) -> _Order | None:
    """Answer until the socket ends (None), or, in a forked process, until there is an order to carry out."""
    while True:
        head, files, _, _ = socket.recv_fds(control, _HEAD_BYTES, 2)
        if not head:
            return None
        message = json.loads(_exactly(control, int.from_bytes(head)))
        if "reap" in message:
            _, status = os.waitpid(message["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif answer := os.fork():
            for file in files:
                os.close(file)
        else:
            return _Order(message["environment"], message["folder"], files)
        control.sendall(answer.to_bytes(_HEAD_BYTES, signed=True))


def _exactly(control: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = control.recv(size - len(parts))
        if not part:
            raise EOFError("the socket ended within a message")
        parts += part
    return bytes(parts)


def _become(order: _Order) -> None:
    os.setsid()
    os.chdir(order.folder)
    standard_input, output = order.files
    for file, number in ((standard_input, 0), (output, 1), (output, 2)):
        os.dup2(file, number)
    for file in order.files:
        os.close(file)
    os.environ.clear()
    os.environ.update(order.environment)
    # The one variable that is read by an import.
    if fault_file := order.environment.get("ANABRANCH_FAULT_FILE"):
        faults.watch(Path(fault_file))


def _threads() -> list[str]:
    """The names of this process's threads beside this one."""
    others = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return [name for task in others if (name := (task / "comm").read_text().strip()) not in _FORKED]


def _main(number: str, module: str) -> None:
    sys.meta_path.insert(0, _Absent())
    first = f"{module}.__main__" if hasattr(importlib.import_module(module), "__path__") else module
    importlib.import_module(first)
    if threads := _threads():
        raise RuntimeError(f"{module} has threads before it has begun, which a fork would lack: {threads}")
    with socket.socket(fileno=int(number)) as control:
        order = _serve(control)
    if order is not None:
        _become(order)
        # It runs as the main module, with all that it imports there already.
        del sys.modules[first]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
