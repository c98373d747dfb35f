"""Ends a server's calls when it stops.

gRPC sends GOAWAY on each connection when the server takes no more calls. But it cancels, without a reason (CANCELLED),
every call that its caller sent before it read the GOAWAY and that is in no handler yet: the calls that wait in gRPC's
own queue, even for a long time, and the calls that are sent meanwhile. Therefore, in order:

* *holding*: from the moment at which the server is to stop, calls are taken and done as before, but none is answered
  (except those about health), so that no caller gets an answer and then sends its next call here. It lasts until no
  call came for a moment, because gRPC's queue is empty then, or ``HOLD_S`` where calls never cease.
* *announced*: each connection gets its GOAWAY, and behind it on the same connection the answers that were held: a
  caller reads that it has to go elsewhere before it reads an answer. Calls under way go on, and are answered when they
  are done.
* endless streams are sent to another server when their connections have had ``GOAWAY_S`` to read the GOAWAY, the others
  shortly before the drain is over; calls that are left then are cut off.

gRPC still cancels a call that was sent while the GOAWAY was on its way, by a caller that waited for no answer.
"""

from __future__ import annotations

import asyncio
import time

import grpc
import structlog

from anabranch.runtime.calls.streams import OpenStream, Streams

HOLD_S = 0.5
QUIET_S = 0.05
QUIET_LOOKS = 2
GOAWAY_S = 0.25
"""The time, in seconds, that a connection needs to read the GOAWAY."""
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
    # One turn of the event loop: ``stop`` takes its first step, which sends the GOAWAYs.
    await asyncio.sleep(0)
    streams.announced.set()
    # A stream that ends before that is known is opened again on the same connection.
    await asyncio.wait({stopped}, timeout=min(GOAWAY_S, drain_s / 4))
    moved = streams.move(never_ends)
    _log.info("draining", streams_moved=moved, drain_ms=round(drain_s * 1000))
    await asyncio.wait({stopped}, timeout=max(0.0, until - time.monotonic() - MOVE_MARGIN_S))
    if not stopped.done():
        _log.warning("drain is over", calls_cut=streams.cut())
    await stopped


async def _quiet(streams: Streams, most_s: float) -> None:
    """Wait until no call comes any more, at most ``most_s`` seconds. gRPC hands over calls one by one and does not show
    how many wait, so that only a time without calls says that there are none."""
    until, quiet = time.monotonic() + most_s, 0
    while quiet < QUIET_LOOKS and time.monotonic() < until:
        taken = streams.taken
        await asyncio.sleep(QUIET_S)
        quiet = quiet + 1 if streams.taken == taken else 0
