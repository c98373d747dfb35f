"""A healthy caller beside an attack, in a process of its own.

It calls two services by turns that are alike but for one thing: one is attacked, and the other is not. Whatever else
the machine does, it does to both; so their ratio is that of the attack.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import grpc

from anabranch.v1 import change_pb2, change_pb2_grpc

CALL_S = 30.0
WARM_CALLS = 50
LEAST_CALLS = 20
END_S = 60.0


@contextmanager
def paired(attacked: str, spared: str, key: str, db_name: str, after: int, most_times: float) -> Iterator[None]:
    """While the block lasts, a ``Get`` at the address ``attacked`` takes at most ``most_times`` what it takes at
    ``spared``, by the medians. Raises AssertionError."""
    command = [sys.executable, "-m", "anabranch.testkit.paired", attacked, spared, key, db_name, str(after)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "calls\n"
        try:
            yield
        finally:
            told, _ = caller.communicate("over\n", timeout=END_S)
    at_attacked, at_spared, calls = map(float, told.split())
    text = f"{at_attacked * 1000:.1f} ms attacked, {at_spared * 1000:.1f} ms spared, {calls:.0f} calls each"
    print(f"neighbour: {text}")
    assert calls >= LEAST_CALLS, text
    assert at_attacked < most_times * at_spared, text


def main() -> None:
    """Call until a line comes in; print the medians, in seconds, and the number of calls."""
    *addresses, key, db_name, after = sys.argv[1:]
    request = change_pb2.GetRequest(db_name=db_name, after=int(after))
    metadata = (("authorization", f"Bearer {key}"),)
    over = threading.Event()
    threading.Thread(target=_await_line, args=(over,), daemon=True).start()
    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.insecure_channel(address)) for address in addresses]
        stubs = [change_pb2_grpc.ChangeServiceStub(channel) for channel in channels]
        times: list[list[float]] = [[], []]
        warm = WARM_CALLS
        while not over.is_set():
            for stub, found in zip(stubs, times, strict=True):
                began = time.monotonic()
                stub.Get(request, timeout=CALL_S, metadata=metadata)
                found.append(time.monotonic() - began)
            warm -= 1
            if warm == 0:
                times = [[], []]
                print("calls", flush=True)
        print(*map(median, times), len(times[0]), flush=True)


def _await_line(over: threading.Event) -> None:
    sys.stdin.readline()
    over.set()


if __name__ == "__main__":
    main()
