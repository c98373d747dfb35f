"""One open stream for the small writes of a device at work, in place of a call for each.

State model. A stream is *open*, then *over*: it was left or idle, or server or network ended it. One message at a time
waits for its verdicts; it is a call in all but its transport. ``LiveSends`` makes *calls* where the last answer is old
or a stream has just failed, else it *streams*. *Suspect*: a stream failed before it gave an answer, and was not judged,
so a call is made; if that is answered, streams are avoided for a while: the server has none, or what stands before it
holds them back.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Iterator

from opentelemetry import trace

from anabranch.client.errors import CallFailed
from anabranch.client.remote import SLOWEST_BYTES_PER_S, STREAM_TIMEOUT_S, RemoteDb
from anabranch.v1.ingest_pb2 import SendStreamRequest, SendStreamResponse

_SMALL_BYTES = SLOWEST_BYTES_PER_S  # Larger ones are calls, whose deadline grows with their bytes.
_LIVE_S = 10.0
_ANSWER_S = 5.0  # The call that is made then waits for as long as any.
_IDLE_S = 30.0  # Below the minute after which balancers end what is idle.
_AVOID_S = 600.0
_tracer = trace.get_tracer("anabranch.client")


class _Stream:
    """A stream, opened with ``first``. gRPC's thread takes what is ``outgoing``, one of its own reads responses."""

    def __init__(self, remote: RemoteDb, first: SendStreamRequest) -> None:
        self.over = False
        self.outgoing: queue.SimpleQueue[SendStreamRequest | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[SendStreamResponse | Exception] = queue.SimpleQueue()
        self.outgoing.put(first)
        self.responses = remote.send_stream(self._requests(), STREAM_TIMEOUT_S)
        threading.Thread(target=self._read, name="anabranch-live", daemon=True).start()

    def take(self, until_s: float) -> SendStreamResponse:
        """The next response. Raises queue.Empty at ``until_s`` and at the stream's end, and its failure."""
        response = self._incoming.get(timeout=max(0.0, until_s - time.monotonic()))
        if isinstance(response, Exception):
            raise response
        return response

    def _requests(self) -> Iterator[SendStreamRequest]:
        with contextlib.suppress(queue.Empty):
            while (request := self.outgoing.get(timeout=_IDLE_S)) is not None:
                yield request
        self.over = True

    def _read(self) -> None:
        last: Exception = queue.Empty()
        try:
            for response in self.responses:
                self._incoming.put(response)
        except Exception as error:
            last = error  # ``take`` raises it.
        self.over = True
        self.outgoing.put(None)
        self._incoming.put(last)


class LiveSends:
    """Sends small messages to ``remote``. One thread at a time."""

    def __init__(self, remote: RemoteDb) -> None:
        self._remote = remote
        self._stream: _Stream | None = None
        self._answered_s = float("-inf")
        self._suspect = False
        self._avoid_until_s = 0.0

    def takes(self, size: int) -> bool:
        """Whether so many bytes are to go over a stream now."""
        now = time.monotonic()
        live = now - self._answered_s <= _LIVE_S or (self._stream is not None and not self._stream.over)
        return live and now >= self._avoid_until_s and not self._suspect and size <= _SMALL_BYTES

    def is_open(self) -> bool:
        """Whether a stream with the app's token of now is open. Raises as ``RemoteDb.token``."""
        token = self._remote.token()
        if self._stream is not None and (self._stream.over or self._stream.responses.token != token):
            self.close()
        return self._stream is not None

    def called(self) -> None:
        """Note that a call was answered."""
        self._answered_s = time.monotonic()
        if self._suspect:
            self._avoid_until_s = self._answered_s + random.uniform(_AVOID_S / 2, _AVOID_S)
            self._suspect = False

    def exchange(self, request: SendStreamRequest, timeout_s: float) -> SendStreamResponse | None:
        """Send a message, opening a stream where none is, and wait for its verdicts. Return all that came, or None.
        After less than all, or without a ``node_token`` (it was not judged as a call), a call is next. Raises
        CallFailed as a call."""
        until_s = time.monotonic() + min(timeout_s, _ANSWER_S)
        begun, done, answer = self._stream is not None, False, SendStreamResponse()
        try:
            with _tracer.start_as_current_span("anabranch.client.send"):
                if self._stream is None:
                    self._stream = _Stream(self._remote, request)
                else:
                    self._stream.outgoing.put(request)
                while len(answer.verdicts) < len(request.envelopes):
                    answer.MergeFrom(self._stream.take(until_s))
                    begun = True
            done = bool(answer.node_token)
            self._suspect = not done
        except (queue.Empty, CallFailed) as error:
            if isinstance(error, CallFailed) and (begun or error.reason not in ("", "OVERLOADED")):
                raise
            # A server that is stopped ends a stream that has served in good order.
            self._suspect = not (begun and self._stream is not None and self._stream.over)
        finally:
            self._answered_s = time.monotonic()
            if not done:
                self.close()
        return answer if answer.HasField("state") else None

    def close(self) -> None:
        """End the stream, if one is open; a call is next."""
        if self._stream is not None:
            self._stream.responses.cancel()
        self._stream, self._answered_s = None, float("-inf")
