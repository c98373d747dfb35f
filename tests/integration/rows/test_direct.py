"""Sessions whose statements go through libpq itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from anabranch.store.session.binary import Cursor, run
from anabranch.store.session.direct import DirectConnection
from anabranch.store.session.engine import Session, SessionOptions, connect, connect_as
from anabranch.store.session.errors import Remedy, read_error
from anabranch.store.session.plans import forget_plans
from anabranch.testkit.waiting import until
from anabranch.values.postgres_binary import int8, text

ECHO = b"select $1::int8"
DIVIDE = b"select 1 / $1::int8"
INSERT = b"insert into app.kept values ($1::int8)"
MIB = 2**20


def _together(conn: DirectConnection, *statements: tuple[bytes, int]) -> list[Cursor]:
    """Put in one send."""
    with conn.pipeline():
        return [run(conn, statement, [int8(number)]) for statement, number in statements]


@pytest.fixture
def direct(database_url: str) -> Iterator[DirectConnection]:
    """A session in a transaction of its own, on a database with table app.kept (id, its key)."""
    conn = connect_as(DirectConnection, database_url, application_name="test-direct")
    conn.prepared_most = 20
    conn.execute("create schema app")
    conn.execute("create table app.kept (id int8 primary key check (id < 1000))")
    conn.commit()
    yield conn
    conn.close()


def _prepared(conn: Session) -> list[str]:
    return [text for (text,) in conn.execute("select statement from pg_prepared_statements order by name")]


def test_statements_of_a_pipeline_go_out_together_and_their_answers_come_in_order(direct: DirectConnection) -> None:
    with direct.pipeline():
        answers = [run(direct, ECHO, [int8(i)]) for i in range(5)]
        named = direct.execute("select %(b)s::text || %(a)s, '%%'", {"a": "x", "b": "y"})
        several = direct.execute("select %s::int + n from generate_series(1, 3) n", (10,))
    assert [answer.fetchall() for answer in answers] == [[(i,)] for i in range(5)]
    assert named.fetchone() == ("yx", "%")
    assert named.fetchone() is None
    assert several.fetchone() == (11,)
    assert list(several) == [(12,), (13,)]
    assert several.rowcount == 3


def test_a_question_inside_a_pipeline_waits_and_more_may_follow(direct: DirectConnection) -> None:
    with direct.pipeline():
        first = run(direct, ECHO, [int8(1)]).fetchall()
        # The driver's own statements find the connection free.
        assert direct.execute("select 2").fetchone() == (2,)
        second = run(direct, ECHO, [int8(3)])
        direct.flush()
        third = run(direct, ECHO, [int8(4)])
    assert (first, second.fetchall(), third.fetchall()) == ([(1,)], [(3,)], [(4,)])


def test_a_transaction_begins_by_itself_and_ends_by_commit_or_rollback(
    direct: DirectConnection, database_url: str
) -> None:
    with connect(database_url, application_name="test", autocommit=True) as other:
        count = "select count(*) from app.kept"
        run(direct, INSERT, [int8(1)])
        assert direct.pgconn.transaction_status == TransactionStatus.INTRANS
        assert other.execute(count).fetchone() == (0,)
        direct.commit()
        assert other.execute(count).fetchone() == (1,)
        run(direct, INSERT, [int8(2)])
        direct.rollback()
        assert other.execute(count).fetchone() == (1,)
        assert direct.pgconn.transaction_status == TransactionStatus.IDLE
        direct.autocommit = True
        run(direct, INSERT, [int8(3)])
        assert other.execute(count).fetchone() == (2,)


REFUSED: list[tuple[bytes, list[Any]]] = [
    (DIVIDE, [int8(0)]),
    (INSERT, [int8(5000)]),
    (INSERT, [int8(7)]),
    (b"select * from app.missing where id = $1::int8", [int8(0)]),
    (b"select $1::text::int8", [text("x")]),
    (b"selec $1", [int8(0)]),
]


@pytest.mark.parametrize(("statement", "parameters"), REFUSED)
def test_errors_are_those_of_every_session(
    direct: DirectConnection, database_url: str, statement: bytes, parameters: list[Any]
) -> None:
    run(direct, INSERT, [int8(7)])
    direct.commit()
    with connect(database_url, application_name="test") as plain:
        with pytest.raises(psycopg.Error) as there:
            run(plain, statement, parameters)
        with pytest.raises(psycopg.Error) as here:
            run(direct, statement, parameters)
    assert type(here.value) is type(there.value)
    assert str(here.value) == str(there.value)
    assert read_error(here.value) == read_error(there.value)
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        run(direct, ECHO, [int8(1)])
    direct.rollback()
    assert run(direct, ECHO, [int8(1)]).fetchall() == [(1,)]


def test_a_failed_statement_skips_those_up_to_its_sync(direct: DirectConnection) -> None:
    run(direct, b"savepoint here", ())
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(psycopg.errors.DivisionByZero))
        stack.enter_context(direct.pipeline())
        before = run(direct, ECHO, [int8(1)])
        failing = run(direct, DIVIDE, [int8(0)])
        behind = run(direct, INSERT, [int8(1)])
    assert before.fetchall() == [(1,)]
    for answer in (failing, behind):
        with pytest.raises(psycopg.errors.PipelineAborted):
            answer.fetchall()
    with direct.pipeline():
        run(direct, b"rollback to savepoint here", ())
        after = run(direct, b"select count(*) from app.kept where id > $1::int8", [int8(0)])
    assert after.fetchall() == [(0,)]
    direct.commit()


def test_an_error_of_the_body_is_the_one_that_is_raised(direct: DirectConnection) -> None:

    def body() -> None:
        with direct.pipeline():
            run(direct, DIVIDE, [int8(0)])
            raise ValueError("of the body")

    with pytest.raises(ValueError, match="of the body"):
        body()
    direct.rollback()
    assert run(direct, ECHO, [int8(1)]).fetchall() == [(1,)]


def test_what_is_larger_than_all_buffers_passes_both_ways(direct: DirectConnection) -> None:
    large = "x" * (8 * MIB)
    with direct.pipeline():
        answers = [run(direct, b"select $1::text", [text(large)]) for _ in range(4)]
    assert [len(row[0]) for answer in answers for row in answer] == [8 * MIB] * 4


def test_statements_are_prepared_once_and_the_oldest_forgotten(direct: DirectConnection) -> None:
    for i in range(3):
        run(direct, ECHO, [int8(i)])
    assert _prepared(direct).count(ECHO.decode()) == 1
    for i in range(40):
        run(direct, b"select $1::int8 + %d" % i, [int8(i)])
    assert len(_prepared(direct)) == 20
    assert ECHO.decode() not in _prepared(direct)
    assert run(direct, ECHO, [int8(5)]).fetchall() == [(5,)]


def test_one_that_could_not_be_prepared_is_prepared_when_it_comes_again(direct: DirectConnection) -> None:
    late = b"select id from app.late where id = $1::int8"
    with pytest.raises(psycopg.errors.DivisionByZero):
        _together(direct, (DIVIDE, 0), (late, 1))
    direct.rollback()
    with pytest.raises(psycopg.errors.UndefinedTable):
        run(direct, late, [int8(1)])
    direct.rollback()
    direct.execute("create table app.late (id int8)")
    assert run(direct, late, [int8(1)]).fetchall() == []


def test_a_plan_that_an_altered_table_made_useless_fails_once(direct: DirectConnection, database_url: str) -> None:
    read = b"select * from app.kept where id > $1::int8"
    run(direct, read, [int8(0)])
    direct.commit()
    with connect(database_url, application_name="test", autocommit=True) as other:
        other.execute("alter table app.kept add column more text")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        run(direct, read, [int8(0)])
    direct.rollback()
    assert run(direct, read, [int8(0)]).fetchall() == []


def test_plans_are_forgotten_where_they_are_told_to_be(direct: DirectConnection, database_url: str) -> None:
    read = b"select * from app.kept where id > $1::int8"
    run(direct, read, [int8(0)])
    direct.commit()
    with connect(database_url, application_name="test", autocommit=True) as other:
        other.execute("alter table app.kept add column more text")
    run(direct, ECHO, [int8(1)])
    forget_plans(direct)
    assert run(direct, read, [int8(0)]).fetchall() == []
    assert set(_prepared(direct)) == {read.decode()}


def test_forgetting_in_a_failed_transaction_waits_for_the_next_one(direct: DirectConnection) -> None:
    run(direct, ECHO, [int8(1)])
    run(direct, b"savepoint here", ())
    with pytest.raises(psycopg.errors.DivisionByZero):
        run(direct, DIVIDE, [int8(0)])
    forget_plans(direct)
    run(direct, b"rollback to savepoint here", ())
    assert run(direct, ECHO, [int8(2)]).fetchall() == [(2,)]
    assert _prepared(direct) == [ECHO.decode()]


def test_time_limits_and_cancellation_end_a_statement(direct: DirectConnection, database_url: str) -> None:
    sleep = b"select pg_sleep($1::int8)"
    direct.execute("set statement_timeout = 100")
    with pytest.raises(psycopg.errors.QueryCanceled):
        run(direct, sleep, [int8(30)])
    direct.rollback()
    direct.execute("set local statement_timeout = 0")
    with connect(database_url, application_name="test", autocommit=True) as other:
        asleep = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'"

        def end_it() -> None:
            until(lambda: other.execute(asleep).fetchone() == (1,), why="the statement sleeps")
            direct.cancel_safe()

        cancel = threading.Thread(target=end_it)
        cancel.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            run(direct, sleep, [int8(30)])
        cancel.join()
    direct.rollback()
    assert run(direct, ECHO, [int8(1)]).fetchall() == [(1,)]


def test_an_interrupted_wait_ends_the_statement_and_the_session(
    direct: DirectConnection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(BaseException):
        pass

    pid = direct.info.backend_pid
    with connect(database_url, application_name="test", autocommit=True) as other:

        def interrupt(_: Any) -> int:
            # Postgres ignores the cancellation of a statement that it has not begun with.
            asleep = "select count(*) from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
            until(lambda: other.execute(asleep, (pid,)).fetchone() == (1,), why="the statement sleeps")
            raise Interrupted

        monkeypatch.setattr(direct, "await_server", interrupt)
        with pytest.raises(Interrupted):
            run(direct, b"select pg_sleep($1::int8)", [int8(60)])
        assert direct.closed
        alive = "select count(*) from pg_stat_activity where pid = %s"
        until(lambda: other.execute(alive, (pid,)).fetchone() == (0,), why="the session has ended")


def test_a_lost_session_is_what_it_is_everywhere(direct: DirectConnection, database_url: str) -> None:
    with connect(database_url, application_name="test", autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s)", (direct.info.backend_pid,))
        until(
            lambda: (
                other.execute("select count(*) from pg_stat_activity where application_name = 'test-direct'").fetchone()
                == (0,)
            ),
            why="the session has ended",
        )
    with pytest.raises(psycopg.OperationalError) as lost:
        _together(direct, (ECHO, 1), (ECHO, 2))
    assert read_error(lost.value).remedy is Remedy.RETRY
    assert direct.closed
    for use in (lambda: run(direct, ECHO, [int8(1)]), direct.commit, lambda: direct.execute("select 1")):
        with pytest.raises(psycopg.OperationalError):
            use()


def test_a_session_that_was_given_up_is_closed_at_its_next_use(direct: DirectConnection) -> None:
    direct.given_up = "another server has taken its place"
    with pytest.raises(psycopg.OperationalError, match="another server"):
        run(direct, ECHO, [int8(1)])
    assert direct.closed


def test_a_server_that_is_silent_for_too_long_is_given_up(database_url: str) -> None:
    options = SessionOptions(silence_ms=300)
    with connect_as(DirectConnection, database_url, application_name="test", options=options) as conn:
        with pytest.raises(psycopg.OperationalError, match="has not answered"):
            run(conn, b"select pg_sleep($1::int8)", [int8(20)])
        assert conn.closed


def test_notifications_are_heard_that_came_with_an_answer(direct: DirectConnection, database_url: str) -> None:
    direct.autocommit = True
    direct.execute("listen here")
    heard: list[str] = []
    direct.add_notify_handler(lambda notify: heard.append(notify.payload))
    with connect(database_url, application_name="test", autocommit=True) as other:
        other.execute("select pg_notify('here', 'one')")
        run(direct, ECHO, [int8(1)])
        until(lambda: len(run(direct, ECHO, [int8(1)]).fetchall()) == len(heard), why="the notification has come")
    assert heard == ["one"]


def test_a_placeholder_of_another_form_is_refused(direct: DirectConnection) -> None:
    for query, given in (("select %b", (1,)), ("select %s, %(a)s", {"a": 1}), ("select 5 % 2, %s", (1,))):
        with pytest.raises(psycopg.ProgrammingError):
            direct.execute(query, given)
    assert direct.execute("select %s::int", (1,)).fetchone() == (1,)


def _hear(listener: DirectConnection, enough: Callable[[], bool]) -> None:
    for _ in range(20):
        listener.await_notifications(1.0)
        if enough():
            return


def test_notifications_reach_the_handlers_whenever_they_come(database_url: str) -> None:
    heard: list[str] = []
    with (
        connect_as(DirectConnection, database_url, application_name="test-direct", autocommit=True) as listener,
        connect(database_url, application_name="somebody", autocommit=True) as somebody,
    ):
        listener.add_notify_handler(lambda notify: heard.append(notify.payload))
        listener.execute("listen news")
        listener.await_notifications(0.0)
        assert heard == []
        somebody.execute("notify news, 'beside a statement'")
        run(listener, ECHO, [int8(1)]).fetchall()
        somebody.execute("notify news, 'while it waits'")
        _hear(listener, lambda: len(heard) == 2)
        assert heard == ["beside a statement", "while it waits"]


def test_who_waits_for_notifications_learns_that_the_session_is_lost(database_url: str) -> None:
    with connect(database_url, application_name="somebody", autocommit=True) as somebody:
        listener = connect_as(DirectConnection, database_url, application_name="test-direct", autocommit=True)
        listener.execute("listen news")
        somebody.execute("select pg_terminate_backend(%s)", (listener.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            _hear(listener, lambda: False)
        assert listener.closed
