"""A TCP port in front of a server, as a network or a load balancer is: its target can be changed, and it can go silent.

State of a gate: *open*: bytes pass both ways; *silent*: nothing passes, and no side gets an error: connections are
accepted and stay, as where packets are lost. Bytes that were held back pass once it is open again, if the connection
still exists. A new target is for new connections; existing ones keep their target.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

_CHUNK = 64 * 1024
_START_S = 10.0


class Gate:
    """Listens on ``address`` while its block lasts. ``target`` is host:port."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.connections = 0
        """The number of connections made so far."""
        self._open = asyncio.Event()
        self._open.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    def silence(self) -> None:
        """From now on nothing passes."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def open(self) -> None:
        """Everything passes again."""
        self._loop.call_soon_threadsafe(self._open.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        onward: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            host, _, port = self.target.rpartition(":")
            answers, onward = await asyncio.open_connection(host, int(port))
            # When either side ends, both do.
            pumps = {asyncio.create_task(self._pump(reader, onward)), asyncio.create_task(self._pump(answers, writer))}
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            # No server listens there: the client sees the connection end, as with a server that is gone.
            return
        except asyncio.CancelledError:
            return
        finally:
            self._tasks.discard(task)
            for one in (writer, onward):
                if one is not None:
                    one.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
