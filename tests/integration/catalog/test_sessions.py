from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import AsyncConnectionPool

from anabranch.store import migrate
from anabranch.store.log.history import read_history
from anabranch.store.log.pull_reader import PullOptions, PullSource
from anabranch.store.session import patience
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncSession, Session, SessionOptions, aconnect, async_pool, connect
from anabranch.store.session.patience import doubt_older
from anabranch.store.session.settings import BY_SESSION, FIXED, HARMLESS, LATER

ODD = {
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-5",
    "bytea_output": "escape",
    "xmlbinary": "hex",
    "xmloption": "document",
    "array_nulls": "off",
    "lc_monetary": "POSIX",
    "lc_numeric": "POSIX",
    "lc_time": "POSIX",
    "search_path": "somewhere",
    "row_security": "off",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "transform_null_equals": "on",
    "gin_fuzzy_search_limit": "1",
    "quote_all_identifiers": "on",
    "check_function_bodies": "off",
    "default_table_access_method": "another_heap",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "synchronous_commit": "off",
    "idle_session_timeout": "300000",
    "exit_on_error": "on",
    "tcp_user_timeout": "12345",
    "tcp_keepalives_idle": "77",
    "tcp_keepalives_interval": "7",
    "tcp_keepalives_count": "9",
    "log_parameter_max_length_on_error": "100",
    "jit": "on",
    "transaction_timeout": "60000",
    "restrict_nonsystem_relation_kind": "view",
    "session_replication_role": "replica",
    "zero_damaged_pages": "on",
    "ignore_checksum_failure": "on",
}
"""Settings that a database and a role may have, unlike those that sessions need."""


@pytest.fixture
def odd_url(database_url: str) -> str:
    """A database whose own defaults, and whose role's in it, are all unlike what sessions need."""
    assert ODD.keys() == FIXED.keys() | LATER.keys()
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("create access method another_heap type table handler heap_tableam_handler")
        there = {name for (name,) in conn.execute("select name from pg_settings")}
        for setting, value in ODD.items():
            if setting not in there:
                assert setting in LATER, f"{setting} is not known to every release"
                continue
            pair = {"value": sql.Literal(value), "setting": sql.Identifier(setting)}
            for whose in ("database {name}", "role {role} in database {name}"):
                names = {"name": sql.Identifier(conn.info.dbname), "role": sql.Identifier(conn.info.user)}
                whom = sql.SQL(whose).format(**names)
                conn.execute(sql.SQL("alter {whom} set {setting} = {value}").format(whom=whom, **pair))
    return database_url


def test_every_setting_of_the_server_is_ours_or_known_to_be_harmless(database_url: str) -> None:
    """The settings that a new release of Postgres brings are looked at before it is supported."""
    with psycopg.connect(database_url) as conn:
        rows = conn.execute("""
            select name from pg_settings
            where context in ('user', 'superuser', 'backend', 'superuser-backend') and name not like '%.%'
        """).fetchall()
    there = {name for (name,) in rows}
    harmless = [name for names in HARMLESS.values() for name in names]
    assert len(harmless) == len(set(harmless))
    kinds = [FIXED.keys(), LATER.keys(), BY_SESSION, set(harmless)]
    assert sum(map(len, kinds)) == len(set().union(*kinds)), "a setting is of two kinds"
    assert there - set().union(*kinds) == set()
    assert FIXED.keys() <= there


def test_what_only_a_superuser_may_put_right_is_told(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        name = sql.Identifier(conn.info.dbname)
        role = sql.Identifier(f"plain_{conn.info.dbname}")
        conn.execute(sql.SQL("create role {} login password 'plain'").format(role))
        url = psycopg.conninfo.make_conninfo(database_url, user=f"plain_{conn.info.dbname}", password="plain")
        try:
            connect(url, application_name="test").close()
            conn.execute(sql.SQL("alter database {} set session_replication_role = replica").format(name))
            with pytest.raises(psycopg.OperationalError, match="session_replication_role") as caught:
                connect(url, application_name="test")
            assert is_unavailable(caught.value), "it is waited for whoever resets it"
            conn.execute(sql.SQL("alter database {} reset session_replication_role").format(name))
            connect(url, application_name="test").close()
        finally:
            conn.execute(sql.SQL("drop role {}").format(role))


def shown(conn: Session) -> dict[str, str]:
    rows = conn.execute("select name, setting from pg_settings").fetchall()
    return dict(rows)


PRINTED = """
select '2024-03-01 12:00:00+01'::timestamptz::text, '1 day 2 hours'::interval::text, 0.1::float8::text,
       '\\x00ff'::bytea::text, 'a\\b', to_regclass('t') is null
"""


def test_a_session_prints_alike_whatever_the_database_is_set_to(odd_url: str) -> None:
    with psycopg.connect(odd_url) as plain:
        plain.execute("set transaction read write")
        unlike = plain.execute("select '2024-03-01 12:00:00+01'::timestamptz::text").fetchone()
    with connect(odd_url, application_name="test") as conn:
        expected = ("2024-03-01 11:00:00+00", "1 day 02:00:00", "0.1", "\\x00ff", "a\\b", True)
        assert conn.execute(PRINTED).fetchone() == expected
        conn.rollback()
        assert conn.execute(PRINTED).fetchone() == expected
        settings = shown(conn)
    assert unlike != (expected[0],)
    for name, (value, _) in {**FIXED, **LATER}.items():
        if name in settings and not name.startswith("tcp_keepalives"):
            said = settings[name].removesuffix(", MDY").removesuffix(", DMY").replace(" ", "")
            assert said == value.replace(" ", ""), name


def test_limits_and_the_name_reach_the_server(database_url: str) -> None:
    options = SessionOptions(
        statement_timeout_ms=1_001,
        lock_timeout_ms=1_002,
        idle_in_transaction_session_timeout_ms=1_003,
        client_connection_check_interval_ms=1_004,
        settings={"work_mem": "4321kB", "anabranch.odd": "back\\slash and blanks"},
    )
    with connect(database_url, application_name="anabranch test", options=options) as conn:
        settings = shown(conn)
        odd = conn.execute("select current_setting('anabranch.odd')").fetchone()
    assert settings["statement_timeout"] == "1001"
    assert settings["lock_timeout"] == "1002"
    assert settings["idle_in_transaction_session_timeout"] == "1003"
    assert settings["client_connection_check_interval"] == "1004"
    assert settings["application_name"] == "anabranch test"
    assert settings["work_mem"] == "4321"
    assert odd == ("back\\slash and blanks",)


def test_options_of_the_url_are_kept_and_ours_win(database_url: str) -> None:
    url = f"{database_url}?options=-c%20work_mem%3D1234kB%20-c%20DateStyle%3DGerman"
    with connect(url, application_name="test") as conn:
        settings = shown(conn)
    assert settings["work_mem"] == "1234"
    assert settings["DateStyle"].startswith("ISO")


@pytest.mark.slow
def test_a_statement_without_end_is_ended(database_url: str) -> None:
    options = SessionOptions(statement_timeout_ms=50)
    with (
        connect(database_url, application_name="test", options=options) as conn,
        pytest.raises(psycopg.errors.QueryCanceled),
    ):
        conn.execute("select pg_sleep(60)")


def test_a_session_notices_by_itself_that_its_server_is_gone(database_url: str) -> None:
    with connect(database_url, application_name="test") as conn, socket.socket(fileno=conn.fileno()) as own:
        try:
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle, interval, count = (
                own.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + interval * count <= 15
            assert 0 < own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 15_000
        finally:
            own.detach()
    with connect(f"{database_url}?keepalives_idle=77", application_name="test") as conn:
        assert conn.info.get_parameters()["keepalives_idle"] == "77"


@pytest.mark.parametrize("kind", ["aconnect", "pool"])
def test_asyncio_has_the_same_sessions(odd_url: str, kind: str) -> None:
    async def printed() -> object:
        if kind == "aconnect":
            async with await aconnect(odd_url, application_name="test") as conn:
                return await (await conn.execute(PRINTED)).fetchone()
        pool = async_pool(odd_url, application_name="test", max_size=2)
        await pool.open(wait=True, timeout=10)
        try:
            async with pool.connection() as conn:
                return await (await conn.execute(PRINTED)).fetchone()
        finally:
            await pool.close()

    with connect(odd_url, application_name="test") as conn:
        assert asyncio.run(printed()) == conn.execute(PRINTED).fetchone()


def test_so_has_sqlalchemy(odd_url: str) -> None:
    with (
        migrate._transaction(odd_url) as core,
        connect(odd_url, application_name="t") as conn,
    ):
        assert tuple(core.exec_driver_sql(PRINTED).one()) == conn.execute(PRINTED).fetchone()
        assert core.exec_driver_sql("show application_name").scalar() == "anabranch-migrate"


def test_so_have_the_sessions_that_read_as_arrow(odd_url: str) -> None:
    source = PullSource(odd_url, PullOptions(1_000, 60_000, 60_000, 65_536))
    try:
        with source.session() as conn, conn.cursor() as cursor, connect(odd_url, application_name="test") as plain:
            cursor.execute("select name, setting from pg_catalog.pg_settings")
            arrow, ours = dict(cursor.fetchall()), shown(plain)
    finally:
        source.close()
    names = (FIXED.keys() | LATER.keys()) & ours.keys() - {"tcp_user_timeout"}
    assert {name: arrow[name] for name in names} == {name: ours[name] for name in names}


def test_a_pool_asks_a_session_that_has_just_answered_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    check = AsyncConnectionPool.check_connection

    async def counted(conn: AsyncSession) -> None:
        asked.append(conn.info.backend_pid)
        await check(conn)

    monkeypatch.setattr(AsyncConnectionPool, "check_connection", staticmethod(counted))

    async def run() -> None:
        pool = async_pool(database_url, application_name="test", max_size=1, autocommit=True)
        await pool.open(wait=True)

        async def session() -> int:
            async with pool.connection() as conn:
                [(pid,)] = await (await conn.execute("select pg_backend_pid()")).fetchall()
                return int(pid)

        first = await session()
        asked.clear()
        assert [await session() for _ in range(3)] == [first] * 3
        assert not asked
        doubt_older(time.monotonic())
        assert await session() == first
        assert asked == [first]
        # A server that ends a session says so, and it is asked at once.
        with connect(database_url, application_name="test", autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 10000)", (first,))
        assert await session() != first
        assert asked[:2] == [first, first]
        # A session that has been silent for a while is asked.
        monkeypatch.setattr(patience, "FRESH_S", 0.0)
        asked.clear()
        await session()
        assert asked
        await pool.close()

    asyncio.run(run())


def _in_mode(conn: psycopg.AsyncConnection[Any]) -> None:
    conn.pgconn.enter_pipeline_mode()


def _with_the_rest(conn: psycopg.AsyncConnection[Any]) -> None:
    conn._pipeline = psycopg.AsyncPipeline(conn)


@pytest.mark.parametrize("leave", [_in_mode, _with_the_rest])
def test_a_session_that_is_given_back_in_a_pipeline_is_not_given_out(
    database_url: str, leave: Callable[[psycopg.AsyncConnection[Any]], None]
) -> None:
    async def run() -> None:
        pool = async_pool(database_url, application_name="test", max_size=1, autocommit=True)
        await pool.open(wait=True)
        try:
            async with pool.connection() as conn:
                before = conn.info.backend_pid
                leave(conn)
            async with pool.connection() as conn:
                assert conn.info.backend_pid != before
                assert (await (await conn.execute("select 1")).fetchall()) == [(1,)]
        finally:
            await pool.close()

    asyncio.run(run())


def test_a_history_that_is_read_in_a_pipeline_is_not_taken_for_a_missing_database(migrated_url: str) -> None:
    async def run() -> None:
        async with await aconnect(migrated_url, application_name="test", autocommit=True) as conn, conn.pipeline():
            await read_history(conn, 1, [])

    with pytest.raises(psycopg.OperationalError, match="in a pipeline"):
        asyncio.run(run())
