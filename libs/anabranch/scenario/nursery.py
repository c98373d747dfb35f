"""A process that forks nodes: it has everything imported that a node needs, so that one starts in milliseconds.

State model. It has one thread, opens no channel and no file of a node, and does one thing at a time: ``spawn`` (with
the node's end of a socket) gives a process id, ``kill`` sends SIGKILL and waits for the end, ``reap`` waits for one
that ends by itself. The nodes are its children, so that an id is theirs until it was waited for here. When its own
socket ends, so do its children, and then it. With the option ``program`` a node is that program, run as
``PROGRAM FD OPTIONS``.

Usage: python -m anabranch.scenario.nursery FD
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

from anabranch.scenario.device import serve

_MESSAGE_BYTES = 1 << 16
_END_S = 30.0
_LOOK_S = 0.002


def main(control: socket.socket) -> None:
    """Serve until ``control`` ends."""
    # Ctrl-C is for the runner, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 1)
        if not message:
            break
        told = json.loads(message)
        if told["do"] == "spawn":
            pid = _fork(control, descriptors[0], told["options"])
            children.add(pid)
            answer = {"pid": pid}
        else:
            pid = told["pid"]
            if told["do"] == "kill":
                os.kill(pid, signal.SIGKILL)
            answer = {"status": _wait(pid)}
            children.discard(pid)
        control.sendall(json.dumps(answer).encode() + b"\n")
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _wait(pid: int) -> int:
    """The exit code (negative: the signal) of a child that is ending; SIGKILL where it takes too long."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_LOOK_S)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(control: socket.socket, descriptor: int, options: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    code = 1
    try:
        control.close()
        with open(options["log"], "ab", buffering=0) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        if "program" in options:
            # A foreign client: it inherits the socket, and sends the same messages.
            os.set_inheritable(descriptor, True)
            os.execv(options["program"], [options["program"], str(descriptor), json.dumps(options)])
        with socket.socket(fileno=descriptor) as peer:
            serve(peer, options)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Without the interpreter's shutdown, which would clean up state of the nursery.
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
