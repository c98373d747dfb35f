"""A device's network, cut and restored by a test: gRPC client interceptors in front of the real channels.

State: *up* passes everything; *down* refuses every call before it is made. ``lose_answers`` lets so many calls of Send
that carry batches be made, decided and answered, and loses their answers. ``cut_pull`` ends the next Pull once so many
of its rows have come. ``verdicts`` gets every verdict that arrives, as bytes, before the device sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from anabranch.errors import AnabranchError

_PULL = "/anabranch.v1.SnapshotService/Pull"
_SENDS = ("/anabranch.v1.IngestService/Send", "/anabranch.v1.IngestService/SendStream")


class UnreachableError(AnabranchError, grpc.RpcError):
    """The error that a device gets where the network is cut, or where an answer is lost."""

    def code(self) -> grpc.StatusCode:
        """UNAVAILABLE."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """The error in words."""
        return "the network is cut by a test"

    def trailing_metadata(self) -> tuple[()]:
        """None."""
        return ()


class _Noting:
    """A call's responses, each passed to ``note`` first; all other attributes are those of the call."""

    def __init__(self, call: Any, note: Callable[[Any], None]) -> None:
        self._call = call
        self._note = note

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        response = next(self._call)
        self._note(response)
        return response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class _Cut:
    """The responses of a Pull up to the one with which ``after_rows`` rows have come; then the call fails."""

    def __init__(self, call: Any, after_rows: int, rows_done: dict[str, int], cut: Callable[[], None]) -> None:
        self._call = call
        self._left = after_rows
        self._rows_done = rows_done
        self._cut = cut

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._left <= 0:
            self._cut()
            self._call.cancel()
            raise UnreachableError
        response = next(self._call)
        if not response.arrow_ipc_incomplete and response.table:
            before = self._rows_done.get(response.table, 0)
            # A lower count than before means another pull of the table, from its start.
            self._left -= response.rows_done - (before if before <= response.rows_done else 0)
            self._rows_done[response.table] = response.rows_done
        return response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class Network(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """One device's way to the server; give it to ``RemoteDb(interceptors=[network])``. A cut does not end streams that
    are open: use it with devices that sync only on demand."""

    def __init__(self, verdicts: Callable[[bytes], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._down = False
        self._lose = 0
        self._lost = 0
        self._cut_after: int | None = None
        self._pulls_cut = 0
        self._rows_done: dict[str, int] = {}
        self._verdicts = verdicts

    def cut(self) -> None:
        """From now on every call fails."""
        with self._lock:
            self._down = True

    def restore(self) -> None:
        """Calls are made again."""
        with self._lock:
            self._down = False

    @property
    def is_cut(self) -> bool:
        """Whether calls fail."""
        with self._lock:
            return self._down

    def lose_answers(self, count: int) -> None:
        """Lose the answers of the next ``count`` calls of Send that carry batches."""
        with self._lock:
            self._lose = count

    def cut_pull(self, after_rows: int) -> None:
        """Have the next Pull fail once so many of its rows have come, as far as chunks end there."""
        with self._lock:
            self._cut_after = after_rows

    @property
    def answers_lost(self) -> int:
        """How many answers ``lose_answers`` has lost so far."""
        with self._lock:
            return self._lost

    @property
    def pulls_cut(self) -> int:
        """How many pulls ``cut_pull`` has ended so far."""
        with self._lock:
            return self._pulls_cut

    def _pull_was_cut(self) -> None:
        with self._lock:
            self._pulls_cut += 1

    def _pass(self) -> None:
        with self._lock:
            if self._down:
                raise UnreachableError

    def _loses(self, method: str, carries: bool) -> bool:
        with self._lock:
            if method not in _SENDS or not self._lose or not carries:
                return False
            self._lose -= 1
            self._lost += 1
            return True

    def _note(self, response: Any) -> None:
        if self._verdicts is not None:
            for verdict in getattr(response, "verdicts", ()):
                self._verdicts(verdict.SerializeToString())

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Called by gRPC."""
        self._pass()
        call = continuation(details, request)
        response = call.result()
        if self._loses(details.method, bool(getattr(request, "envelopes", ()))):
            raise UnreachableError
        self._note(response)
        return call

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Called by gRPC."""
        self._pass()
        call = continuation(details, request)
        if details.method != _PULL:
            return call
        with self._lock:
            after_rows, self._cut_after = self._cut_after, None
        return call if after_rows is None else _Cut(call, after_rows, self._rows_done, self._pull_was_cut)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Called by gRPC."""
        self._pass()
        call = continuation(details, requests)
        if self._loses(details.method, True):
            for _ in call:  # the server decides everything, and no answer arrives
                pass
            raise UnreachableError
        return _Noting(call, self._note)
