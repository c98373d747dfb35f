"""A storm of notifications is no storm of queries: looks at credentials keep a distance."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from typing import Any

import pytest

from anabranch.clock import Clock
from anabranch.runtime.calls.streams import Streams
from anabranch.runtime.credentials import watch
from anabranch.runtime.credentials.auth import Identity
from anabranch.runtime.credentials.watch import LEAST_S, CredentialWatch

LOOKS = 4


class Session:
    """A session that hears notifications without end."""

    closed = False

    def __init__(self) -> None:
        self.heard = 0

    async def close(self) -> None:
        self.closed = True


class Looks:
    """The moments of looks, in place of an authenticator; ``enough`` when there were ``LOOKS``."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.enough = asyncio.Event()

    async def ended(self, identities: Iterable[Identity], conn: Any) -> set[Identity]:
        self.moments.append(time.monotonic())
        if len(self.moments) >= LOOKS:
            self.enough.set()
        return set()


def test_looks_keep_a_distance_however_many_notifications_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[Looks, Session]:
        looks, session = Looks(), Session()

        async def opened(url: str, *, application_name: str) -> Session:
            return session

        async def heard(conn: Session, wait_s: float, gather_s: float) -> int:
            await asyncio.sleep(0)
            conn.heard += 1
            return 1

        monkeypatch.setattr(watch, "open_key_listener", opened)
        monkeypatch.setattr(watch, "heard", heard)
        streams = Streams(10, asyncio.Event(), Clock())
        watching = asyncio.create_task(CredentialWatch("", "test", looks, streams).run())  # type: ignore[arg-type]
        await asyncio.wait_for(looks.enough.wait(), 20)
        watching.cancel()
        await asyncio.wait({watching})
        return looks, session

    looks, session = asyncio.run(run())
    assert session.closed
    assert session.heard >= LOOKS - 1
    between = [after - before for before, after in itertools.pairwise(looks.moments)]
    assert min(between) >= LEAST_S - 0.01
