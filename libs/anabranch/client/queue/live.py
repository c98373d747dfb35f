"""One open stream for the small writes of a device that is at work, in place of a call for each.

State model of a *stream*: *open*, then *over*: it was left, nothing was sent on it for ``_IDLE_S``, or the server or
the network ended it. One message at a time is without its verdicts. Two threads serve it, gRPC's that takes requests
and one that reads responses; both wait at queues, and end with it.

State model of ``LiveSends``: *calls*, as long as the last answer is older than ``_LIVE_S`` or a stream has just failed;
else *streams*. *Suspect*: a stream gave no answer, so a call is made in its place; if that is answered, streams are
avoided for a while, each time for longer: the server has none, or what stands before it holds them back.

A message is a call in all but its transport: it carries the node's token and the position seen, and the server judges
it as a call. A failure that comes before any answer on its stream, and is no judgement, is taken for one of streams;
every other is the call's own.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Iterator

from opentelemetry import trace

from anabranch.client.errors import CallFailed
from anabranch.client.remote import SLOWEST_BYTES_PER_S, STREAM_TIMEOUT_S, RemoteDb
from anabranch.v1.ingest_pb2 import SendStreamRequest, SendStreamResponse

_SMALL_BYTES = SLOWEST_BYTES_PER_S
"""Larger ones are calls, whose deadline grows with their bytes."""
_LIVE_S = 10.0
_ANSWER_S = 5.0
"""The longest wait for the verdicts of a message. The call that is made then waits for as long as any."""
_IDLE_S = 30.0
"""Below the minute after which balancers and NATs end what is idle."""
_AVOID_S = 60.0
_AVOID_MOST_S = 3600.0
_tracer = trace.get_tracer("anabranch.client")


class _Stream:
    """One stream, which ``first`` opens. ``answered``: whether a message has had its verdicts; ``over``: it takes no
    more of them."""

    def __init__(self, remote: RemoteDb, first: SendStreamRequest) -> None:
        self.answered = False
        self.over = False
        self._lock = threading.Lock()
        self._outgoing: queue.SimpleQueue[SendStreamRequest | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[SendStreamResponse | Exception | None] = queue.SimpleQueue()
        self._outgoing.put(first)
        self._responses = remote.send_stream(self._requests(), STREAM_TIMEOUT_S)
        self.token = self._responses.token
        threading.Thread(target=self._read, name="anabranch-live", daemon=True).start()

    def put(self, request: SendStreamRequest) -> bool:
        """Send a message; False where the stream is over."""
        with self._lock:
            if not self.over:
                self._outgoing.put(request)
            return not self.over

    def take(self, until_s: float) -> SendStreamResponse | None:
        """The next response, None at the end. Raises queue.Empty at ``until_s``, and the stream's failure."""
        response = self._incoming.get(timeout=max(0.0, until_s - time.monotonic()))
        if isinstance(response, Exception):
            raise response
        return response

    def leave(self) -> None:
        """End it; what is under way on it is not waited for."""
        self._end()
        self._responses.cancel()

    def _end(self) -> None:
        with self._lock:
            self.over = True
            self._outgoing.put(None)

    def _requests(self) -> Iterator[SendStreamRequest]:
        while True:
            try:
                request = self._outgoing.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    # A message may have come at this moment.
                    self.over = self.over or self._outgoing.empty()
                if self.over:
                    return
                continue
            if request is None:
                return
            yield request

    def _read(self) -> None:
        last: Exception | None = None
        try:
            for response in self._responses:
                self._incoming.put(response)
        except Exception as error:
            # The sender raises it.
            last = error
        self._end()
        self._incoming.put(last)


class LiveSends:
    """Sends small messages over one stream of ``remote`` while its device is at work. One thread at a time."""

    def __init__(self, remote: RemoteDb) -> None:
        self._remote = remote
        self._stream: _Stream | None = None
        self._answered_s = float("-inf")
        self._suspect = False
        self._avoided = 0
        self._avoid_until_s = 0.0

    def takes(self, size: int) -> bool:
        """Whether batches of so many bytes are to go over a stream now."""
        now = time.monotonic()
        live = now - self._answered_s <= _LIVE_S and now >= self._avoid_until_s
        return live and not self._suspect and size <= _SMALL_BYTES

    def is_open(self) -> bool:
        """Whether a stream is open that has the app's token of now. Raises as ``RemoteDb.token``."""
        token = self._remote.token()
        if self._stream is not None and (self._stream.over or self._stream.token != token):
            self.close()
        return self._stream is not None

    def called(self) -> None:
        """Note that a call was answered."""
        self._answered_s = time.monotonic()
        if self._suspect:
            self._suspect = False
            longest_s = min(_AVOID_MOST_S, _AVOID_S * 2**self._avoided)
            self._avoided += 1
            self._avoid_until_s = self._answered_s + random.uniform(0.5, 1.0) * longest_s

    def exchange(self, request: SendStreamRequest, timeout_s: float) -> SendStreamResponse | None:
        """Send a message and wait for its verdicts, ``timeout_s`` at most; it opens the stream where none is open. What
        came together, some verdicts may be missing; None where nothing came: then a call is to be made. ``node_token``
        is empty where the server did not judge it as a call.

        Raises:
            CallFailed: as a call.
        """
        stream, self._stream = self._stream, None
        answer: SendStreamResponse | None = None
        until_s = time.monotonic() + min(timeout_s, _ANSWER_S)
        try:
            with _tracer.start_as_current_span("anabranch.client.send"):
                if stream is None:
                    stream = _Stream(self._remote, request)
                elif not stream.put(request):
                    return None
                while answer is None or len(answer.verdicts) < len(request.envelopes):
                    response = stream.take(until_s)
                    if response is None:
                        break
                    answer = answer or SendStreamResponse()
                    answer.MergeFrom(response)
                else:
                    if answer.node_token:
                        self._stream, stream.answered = stream, True
                        self._answered_s, self._avoided = time.monotonic(), 0
                        return answer
            self._suspect = not stream.answered or bool(answer and not answer.node_token)
        except queue.Empty:
            self._suspect = True
        except CallFailed as error:
            judged = error.reason not in ("", "OVERLOADED")
            if judged or answer is not None or (stream is not None and stream.answered):
                raise
            self._suspect = True
        finally:
            if self._stream is None:
                self._answered_s = float("-inf")
                if stream is not None:
                    stream.leave()
        return answer

    def close(self) -> None:
        """End the stream, if one is open."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.leave()
