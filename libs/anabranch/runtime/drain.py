"""How a server's calls end when it stops.

gRPC sends each connection word (GOAWAY) that the server takes no more, but it breaks off, CANCELLED and without a
reason, every call that came before a caller has that word and is not in a handler yet: those that wait in gRPC's own
queue, also for calls that came long before, and those that are sent meanwhile. Therefore, in order:

* *holding*: from the moment at which the server is to stop, calls are taken and done as ever, but none ends (but those
  about health), so that nobody who had an answer sends the next call here. It lasts until no call came for a moment,
  for then gRPC's queue is empty, or ``HOLD_S`` where calls never cease.
* *told*: connections get their word, and behind it on the same connection what was held: whoever reads an answer has
  read before it to go elsewhere. Calls under way go on, and are answered when they are done.
* endless streams are sent away when their connections have had ``GOAWAY_S`` to read it, the others shortly before the
  drain is over; what is left then is cut off.

What gRPC still breaks off is a call that was sent while the word was on its way, by somebody who waited for no answer.
"""

from __future__ import annotations

import asyncio
import time

import grpc
import structlog

from anabranch.runtime.streams import OpenStream, Streams

HOLD_S = 0.5
QUIET_S = 0.05
QUIET_LOOKS = 2
GOAWAY_S = 0.25
"""What connections need to hear that the server takes no more."""
MOVE_MARGIN_S = 0.5
_log = structlog.get_logger()


async def drain(server: grpc.aio.Server, streams: Streams, endless: frozenset[str], drain_s: float) -> None:
    """End all calls and the server, within ``drain_s`` seconds. ``endless`` are the methods whose streams never end by
    themselves."""
    until = time.monotonic() + drain_s

    def never_ends(stream: OpenStream) -> bool:
        return stream.method in endless

    await _quiet(streams, min(HOLD_S, drain_s / 4))
    stopped = asyncio.ensure_future(server.stop(max(0.0, until - time.monotonic())))
    # Its first step, which tells the connections.
    await asyncio.sleep(0)
    streams.told.set()
    # A stream that ends before that is known is opened again on the same connection.
    await asyncio.wait({stopped}, timeout=min(GOAWAY_S, drain_s / 4))
    moved = streams.move(never_ends)
    _log.info("draining", streams_moved=moved, drain_ms=round(drain_s * 1000))
    await asyncio.wait({stopped}, timeout=max(0.0, until - time.monotonic() - MOVE_MARGIN_S))
    if not stopped.done():
        _log.warning("drain is over", calls_cut=streams.cut())
    await stopped


async def _quiet(streams: Streams, most_s: float) -> None:
    """Wait until no call comes any more, at most so long. gRPC gives calls one by one and tells nothing of those that
    wait, so that only time without one says that there are none."""
    until, quiet = time.monotonic() + most_s, 0
    while quiet < QUIET_LOOKS and time.monotonic() < until:
        taken = streams.taken
        await asyncio.sleep(QUIET_S)
        quiet = quiet + 1 if streams.taken == taken else 0
