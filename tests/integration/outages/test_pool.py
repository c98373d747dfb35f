"""A pool of sessions while Postgres is stopped, and after."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import pytest

from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool, async_pool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CALLERS = 150
BACK_S = 5.0


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("stopped")) as server:
        try:
            yield server
        finally:
            server.thaw()


async def call(pool: AsyncPool, served: list[float], stop: asyncio.Event) -> None:
    """Ask for a session again and again, whatever comes of it."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(2), pool.connection() as conn:
                await conn.execute("select 1")
            served.append(time.monotonic())
            await asyncio.sleep(0.02)
        except Exception as error:
            if not (isinstance(error, TimeoutError) or is_unavailable(error)):
                raise
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("stopped_s", [1, 12, pytest.param(120, marks=pytest.mark.long)])
def test_a_pool_comes_back_with_its_server_while_many_go_on_calling(
    postgres: EmbeddedPostgres, stopped_s: float
) -> None:
    """Those that waited too long are still counted among the waiting, and everybody else is refused for their sake: so
    who opens sessions anew may not be a caller."""

    async def run() -> float:
        pool = async_pool(
            postgres.url,
            application_name="test",
            min_size=2,
            max_size=8,
            autocommit=True,
            timeout_s=10.0,
        )
        served: list[float] = []
        stop = asyncio.Event()
        await pool.open(wait=True, timeout=20)
        callers = [asyncio.create_task(call(pool, served, stop)) for _ in range(CALLERS)]
        try:
            while len(served) < CALLERS:
                await asyncio.sleep(0.05)
            postgres.freeze()
            await asyncio.sleep(stopped_s)
            postgres.thaw()
            thawed = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    while not [moment for moment in served[-50:] if moment > thawed + 0.5]:
                        await asyncio.sleep(0.05)
            return next((moment for moment in served if moment > thawed), float("inf")) - thawed
        finally:
            stop.set()
            await asyncio.gather(*callers)
            await pool.close()

    assert asyncio.run(run()) < BACK_S
