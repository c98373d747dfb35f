"""A device's network, cut and restored by a test: gRPC client interceptors in front of the real channels.

State: *up* passes everything; *down* refuses every call before it is made, and has ended the streams of sends that
were open. ``lose_answers`` lets so many calls of Send that carry batches be made, decided and answered, and loses their
answers; a message of a device at work, on a stream that stays open, is such a call. ``cut_pull`` ends the next Pull
once so many of its rows have come. ``verdicts`` gets every verdict that arrives, as bytes, before the device sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from anabranch.errors import AnabranchError

_PULL = "/anabranch.v1.SnapshotService/Pull"
_SEND = "/anabranch.v1.IngestService/Send"


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


class _Sends:
    """A SendStream: its requests on their way, and its responses as far as they arrive.

    One whose first request carries batches stays open, and each of its messages is a call; else all of it is one. Where
    answers are lost, what they answer is decided first. All other attributes are those of the call.
    """

    def __init__(self, network: Network, requests: Iterator[Any]) -> None:
        self._network = network
        self._requests = requests
        self._call: Any = None
        self._stays_open = self._loses = False
        self._sent = self._answered = 0

    def begin(self, continuation: Callable[..., Any], details: Any) -> _Sends:
        self._call = continuation(details, self._passing())
        return self

    def _passing(self) -> Iterator[Any]:
        for number, request in enumerate(self._requests):
            if not number:
                self._stays_open = bool(request.envelopes)
            if (request.envelopes if self._stays_open else not number) and self._network.loses():
                self._loses = True
            self._sent += len(request.envelopes)
            yield request

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        for response in self._call:
            self._answered += len(response.verdicts)
            if not self._loses:
                self._network.note(response)
                return response
            if self._stays_open and self._answered >= self._sent:
                break
        self._network.ended(self)
        if self._loses:
            self._call.cancel()
            raise UnreachableError
        raise StopIteration

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
    are read from: use it with devices that sync only on demand."""

    def __init__(self, verdicts: Callable[[bytes], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._down = False
        self._lose = 0
        self._lost = 0
        self._cut_after: int | None = None
        self._pulls_cut = 0
        self._rows_done: dict[str, int] = {}
        self._verdicts = verdicts
        self._open: set[_Sends] = set()

    def cut(self) -> None:
        """From now on every call fails."""
        with self._lock:
            self._down = True
            cut, self._open = self._open, set()
        for stream in cut:
            stream.cancel()

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
    def streams_open(self) -> int:
        """How many streams of sends are open."""
        with self._lock:
            return len(self._open)

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

    def loses(self) -> bool:
        """Whether the answer to the call of Send that is made now is one to be lost."""
        with self._lock:
            if not self._lose:
                return False
            self._lose -= 1
            self._lost += 1
            return True

    def ended(self, stream: _Sends) -> None:
        """Forget a stream."""
        with self._lock:
            self._open.discard(stream)

    def note(self, response: Any) -> None:
        """Pass the verdicts of a response on."""
        if self._verdicts is not None:
            for verdict in getattr(response, "verdicts", ()):
                self._verdicts(verdict.SerializeToString())

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Called by gRPC."""
        self._pass()
        call = continuation(details, request)
        response = call.result()
        if details.method == _SEND and request.envelopes and self.loses():
            raise UnreachableError
        self.note(response)
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
        with self._lock:
            if self._down:
                raise UnreachableError
            stream = _Sends(self, requests).begin(continuation, details)
            self._open.add(stream)
        return stream
