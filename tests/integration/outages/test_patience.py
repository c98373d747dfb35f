"""One session with a server that is silent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import Session, SessionOptions, aconnect, connect
from anabranch.store.session.patience import DOUBT_S, SilentServerError, doubt_older, give_up_older

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outages"), pytest.mark.timeout(120)]

BUSY_S = 10.0
ASLEEP = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"
OPTIONS = SessionOptions(silence_ms=1_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("silent")) as postgres:
        try:
            yield postgres
        finally:
            postgres.thaw()


@contextlib.contextmanager
def frozen(server: EmbeddedPostgres) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


def opened(server: EmbeddedPostgres, options: SessionOptions = OPTIONS) -> Session:
    return connect(server.url, application_name="test", autocommit=True, options=options)


def test_a_statement_that_is_never_answered_ends_and_so_does_its_session(server: EmbeddedPostgres) -> None:
    conn = opened(server)
    with frozen(server):
        began = time.monotonic()
        with pytest.raises(SilentServerError) as caught:
            conn.execute("select 1")
        assert 1.0 <= time.monotonic() - began < 1.0 + BUSY_S
    assert conn.closed
    assert is_unavailable(caught.value)


@pytest.mark.parametrize("pipelined", [False, True])
def test_inside_a_transaction_as_well(server: EmbeddedPostgres, pipelined: bool) -> None:
    conn = opened(server)

    def work() -> None:
        with conn.transaction(), conn.pipeline() if pipelined else contextlib.nullcontext():
            conn.execute("select 1").fetchall()
            with frozen(server):
                conn.execute("select 2").fetchall()

    with pytest.raises(psycopg.OperationalError):
        work()
    assert conn.closed


def test_a_slow_statement_and_a_long_wait_for_notifications_are_no_silence(server: EmbeddedPostgres) -> None:
    """The limit of a session that is not told otherwise is beyond the server's own."""
    conn = opened(server, SessionOptions(statement_timeout_ms=1_500))
    with pytest.raises(psycopg.errors.QueryCanceled):
        conn.execute("select pg_sleep(30)")
    assert not conn.closed
    conn.close()
    conn = opened(server)
    conn.execute("listen nobody")
    assert list(conn.notifies(timeout=2.5)) == []
    assert conn.execute("select 1").fetchone() == (1,)
    conn.close()


def test_who_waits_in_a_session_that_is_given_up_is_told_at_once(server: EmbeddedPostgres) -> None:
    waits, idle = opened(server, SessionOptions()), opened(server, SessionOptions())
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            waits.execute("select pg_sleep(60)")
        except psycopg.Error as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with opened(server) as other:
        while other.execute(ASLEEP).fetchone() != (1,):
            time.sleep(0.02)
        moment = time.monotonic()
        give_up_older(other.opened_s, "another one is there")  # type: ignore[attr-defined]
        thread.join(BUSY_S)
        assert time.monotonic() - moment < BUSY_S
        assert [str(error) for error in failed] == ["another one is there"]
        with pytest.raises(SilentServerError, match="another one is there"):
            idle.execute("select 1")
        assert waits.closed
        assert idle.closed
        assert other.execute("select 1").fetchone() == (1,), "younger ones go on"


def test_a_session_that_is_doubted_is_trusted_once_it_answers(server: EmbeddedPostgres) -> None:
    conn = opened(server, SessionOptions())
    doubt_older(time.monotonic())
    assert conn.execute("select 1").fetchone() == (1,)
    conn.execute(f"select pg_sleep({DOUBT_S + 1})")
    doubt_older(time.monotonic())
    with frozen(server), pytest.raises(SilentServerError):
        conn.execute("select 1")
    assert conn.closed


def test_a_session_that_only_listens_is_closed_once_it_is_doubted(server: EmbeddedPostgres) -> None:
    async def run() -> None:
        conn = await aconnect(server.url, application_name="test", autocommit=True, options=OPTIONS)
        await conn.execute("listen nothing")

        async def listen() -> None:
            async for _ in conn.notifies(timeout=60):
                pass

        listening = asyncio.create_task(listen())
        # It waits by then.
        await asyncio.sleep(0)
        doubt_older(time.monotonic())
        with pytest.raises(SilentServerError):
            await asyncio.wait_for(listening, 20)
        assert conn.closed

    asyncio.run(run())


def test_a_task_that_is_cancelled_while_nothing_answers_is_cancelled_soon(server: EmbeddedPostgres) -> None:
    async def run() -> float:
        conn = await aconnect(server.url, application_name="test", autocommit=True)
        with frozen(server):
            began = time.monotonic()
            # By the deadline of a call, as it were: then it is not the session's end that is told.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await conn.execute("select 1")
            took_s = time.monotonic() - began
        assert conn.closed
        return took_s

    assert asyncio.run(run()) < DOUBT_S + BUSY_S
