from __future__ import annotations

import asyncio
import socket

import psycopg
import pytest
from psycopg import sql

from anabranch.store.engine import FIXED_SETTINGS, Session, SessionOptions, aconnect, async_pool, connect, core_engine

ODD = {
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-5",
    "bytea_output": "escape",
    "xmlbinary": "hex",
    "search_path": "somewhere",
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "standard_conforming_strings": "off",
    "jit": "on",
}


@pytest.fixture
def odd_url(database_url: str) -> str:
    """A database whose own defaults are all unlike what sessions need."""
    assert ODD.keys() == FIXED_SETTINGS.keys()
    with psycopg.connect(database_url, autocommit=True) as conn:
        name = sql.Identifier(conn.info.dbname)
        for setting, value in ODD.items():
            statement = sql.SQL("alter database {} set {} = {}")
            conn.execute(statement.format(name, sql.Identifier(setting), sql.Literal(value)))
    return database_url


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
    for name, value in FIXED_SETTINGS.items():
        assert settings[name].removesuffix(", MDY").removesuffix(", DMY").replace(" ", "") == value.replace(" ", ""), (
            name
        )


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
        core_engine(odd_url, application_name="core").connect() as core,
        connect(odd_url, application_name="t") as conn,
    ):
        assert tuple(core.exec_driver_sql(PRINTED).one()) == conn.execute(PRINTED).fetchone()
        assert core.exec_driver_sql("show application_name").scalar() == "core"
