"""A storm of notifications is no storm of queries: looks at credentials keep a distance. Where there is nothing to look
at there is no session either."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from anabranch.clock import Clock
from anabranch.runtime.calls.streams import Streams
from anabranch.runtime.credentials import watch
from anabranch.runtime.credentials.auth import Identity
from anabranch.runtime.credentials.watch import LEAST_S, CredentialWatch, KeyNews

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

    on_identified: Callable[[], None]

    def __init__(self, *, knows: bool = True) -> None:
        self.moments: list[float] = []
        self.enough = asyncio.Event()
        self.knows = knows

    def knows_keys(self) -> bool:
        return self.knows

    async def ended(self, identities: Iterable[Identity], conn: Any) -> set[Identity]:
        self.moments.append(time.monotonic())
        if len(self.moments) >= LOOKS:
            self.enough.set()
        return set()


def test_looks_keep_a_distance_however_many_notifications_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[Looks, Session]:
        looks, session = Looks(), Session()

        async def opened(url: str, *, application_name: str, listens: bool) -> Session:
            assert listens
            return session

        async def heard(conn: Session, wait_s: float, gather_s: float) -> int:
            await asyncio.sleep(0)
            conn.heard += 1
            return 1

        monkeypatch.setattr(watch, "open_key_session", opened)
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


def test_a_service_that_listens_passes_on_its_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 60.0)

    async def run() -> Looks:
        looks, news = Looks(), KeyNews()

        async def opened(url: str, *, application_name: str, listens: bool) -> Session:
            assert not listens
            return Session()

        monkeypatch.setattr(watch, "open_key_session", opened)
        streams = Streams(10, asyncio.Event(), Clock())
        watching = asyncio.create_task(CredentialWatch("", "test", looks, streams, news).run())  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            while not looks.enough.is_set():
                news.hear()
                await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait({watching})
        return looks

    looks = asyncio.run(run())
    between = [after - before for before, after in itertools.pairwise(looks.moments)]
    assert min(between) >= LEAST_S - 0.01


def test_there_is_a_session_only_while_there_is_something_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        looks, sessions = Looks(knows=False), [Session(), Session()]
        opened = asyncio.Queue[Session]()

        async def open_one(url: str, *, application_name: str, listens: bool) -> Session:
            opened.put_nowait(sessions[opened.qsize()])
            return sessions[opened.qsize() - 1]

        async def heard(conn: Session, wait_s: float, gather_s: float) -> int:
            looks.knows = len(looks.moments) < 2
            return 0

        monkeypatch.setattr(watch, "open_key_session", open_one)
        monkeypatch.setattr(watch, "heard", heard)
        monkeypatch.setattr(watch, "LEAST_S", 0.0)
        streams = Streams(10, asyncio.Event(), Clock())
        watching = asyncio.create_task(CredentialWatch("", "test", looks, streams).run())  # type: ignore[arg-type]
        for _ in range(10):
            await asyncio.sleep(0)
        assert opened.empty()
        for number in (1, 2):
            # A call is judged by a key.
            looks.moments.clear()
            looks.knows = True
            looks.on_identified()
            async with asyncio.timeout(20):
                while opened.qsize() < number or not sessions[number - 1].closed:
                    await asyncio.sleep(0.001)
            assert looks.moments
        watching.cancel()
        await asyncio.wait({watching})

    asyncio.run(run())
