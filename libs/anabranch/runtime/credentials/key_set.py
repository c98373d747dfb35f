"""The key set of an issuer, kept: read again and again in the background, and never waited for by those who need not.

States:

* *unread*: no set is known. Whoever asks for a key waits for the reading under way, or is told that there is none now.
* *known*: ``run`` reads it again every ``reload_s``, and, after a reading that failed, every ``RETRY_S``. What was read
  replaces all that was known, so that a key that the issuer has removed proves nothing after ``reload_s`` and the time
  that the source takes. Where the source gives no set, the known keys hold, and a log line and a metric say so.

A token that names an unknown key has the set read at once, by one reading at a time, at most every ``RETRY_S``. Only
such callers wait for it, at most ``MOST_WAITING``. A reading has a thread of its own, which is left behind where its
source does not answer in time; at most ``MOST_LEFT`` of them. Everything else is in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.credentials.key_set_text import (
    SET_TIMEOUT_S,
    Keys,
    KeySetError,
    KeySetText,
    SigningKey,
    fetch,
    read,
)
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

RETRY_S = 5.0
MOST_WAITING = 200
MOST_LEFT = 4
_log = structlog.get_logger()


class KeySet:
    """The keys of ``file`` or ``url``. ``changed`` is called when another set was taken."""

    def __init__(self, file: Path | None, url: str | None, reload_s: float, changed: Callable[[], None]) -> None:
        self._file = file
        self._url = url
        self._reload_s = reload_s
        self._changed = changed
        self._keys: Keys | None = None
        self._signers: frozenset[bytes] = frozenset()
        self._left_out: Mapping[str, int] = {}
        self._tried = float("-inf")
        self._failed = False
        self._reading: asyncio.Task[None] | None = None
        self._waiting = 0
        self._left = 0

    async def run(self) -> None:
        """Read the set again and again."""
        while True:
            await asyncio.shield(self._read_once())
            await asyncio.sleep(min(RETRY_S, self._reload_s) if self._failed else self._reload_s)

    def proves(self, signer: bytes) -> bool:
        """Whether a key is still one of the set's. True as long as no set is known."""
        return self._keys is None or signer in self._signers

    async def key(self, name: str, algorithm: str) -> SigningKey:
        """The key of this id for this algorithm. Raises CallError: UNAUTHENTICATED, UNAVAILABLE, OVERLOADED."""
        wanted = (name, algorithm)
        found = (self._keys or {}).get(wanted)
        if found is None and (self._reading is not None or time.monotonic() - self._tried >= RETRY_S):
            await self._wait()
            found = (self._keys or {}).get(wanted)
        if found is None:
            self._refuse()
        return found

    def _refuse(self) -> NoReturn:
        if self._keys is None:
            raise CallError(errors_pb2.REASON_UNAVAILABLE, "the key set can't be read now")
        raise CallError(errors_pb2.REASON_UNAUTHENTICATED, "the token was signed by a key that is not in the key set")

    async def _wait(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                "too many calls wait for the key set: call again in a second",
                retry_after_ms="1000",
            )
        self._waiting += 1
        try:
            # Shielded: a caller that gives up must not take the set from the others.
            await asyncio.shield(self._read_once())
        finally:
            self._waiting -= 1

    def _read_once(self) -> asyncio.Task[None]:
        """Return the reading under way, or a new one."""
        if self._reading is None:
            self._tried = time.monotonic()
            self._reading = asyncio.create_task(self._read(), name="key-set")
        return self._reading

    async def _read(self) -> None:
        try:
            found = await self._fetched()
        except Exception as error:
            self._failed = True
            why = error.why if isinstance(error, KeySetError) else "malformed"
            metrics.count("anabranch_key_set_reads", result=why)
            _log.warning(
                "key set can't be read: the keys known hold", why=why, detail=error, keys=len(self._keys or ())
            )
        else:
            self._failed = False
            metrics.count("anabranch_key_set_reads", result="taken")
            self._take(found)
        finally:
            self._reading = None

    def _take(self, found: KeySetText) -> None:
        if found.left_out != self._left_out:
            _log.warning("keys of the key set are left out", reasons=dict(found.left_out), keys=len(found.keys))
        self._left_out = found.left_out
        signers = frozenset(key.signer for key in found.keys.values())
        changed = self._keys is None or found.keys.keys() != self._keys.keys() or signers != self._signers
        self._keys, self._signers = found.keys, signers
        if changed:
            _log.info("key set taken", keys=len(found.keys))
            self._changed()

    async def _fetched(self) -> KeySetText:
        if self._left >= MOST_LEFT:
            raise KeySetError("slow", "the source has not answered earlier readings yet")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[KeySetText] = loop.create_future()

        def settle(result: KeySetText | Exception) -> None:
            if done.cancelled():
                self._left -= 1
            elif isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        def work() -> None:
            result: KeySetText | Exception
            try:
                result = read(fetch(self._file, self._url))
            except Exception as error:
                result = error
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result)

        threading.Thread(target=work, name="key-set", daemon=True).start()
        try:
            async with asyncio.timeout(SET_TIMEOUT_S):
                return await done
        except TimeoutError:
            if done.cancelled():
                self._left += 1
            raise KeySetError("slow", f"the source did not send the set within {SET_TIMEOUT_S:g} s") from None
