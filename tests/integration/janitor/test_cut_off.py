"""A registration that was killed leaves triggers that gather: that is told of, and a sweep clears it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.integration.janitor.conftest import Ground, make_database
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.cli.status import read, shown
from anabranch.store.capture.backlog import captured_backlogs
from anabranch.store.catalog import gather, sums
from anabranch.store.catalog.cut_off import cut_off, dead_upto
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift
from anabranch.store.catalog.gather import add_tables, restart_captures
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.status import read_status
from anabranch.store.session.engine import Session, connect

OURS = "select count(*) from pg_trigger where tgname like '%%anabranch%%' and tgrelid = %s::regclass"
GATHERED = "select count(*) from anabranch.captured where database_id < 0"
NOW_MS = 1_800_000_000_000
MOST = 1_000


@pytest.fixture
def other(ground: Ground) -> Ground:
    """With a table that is not synced yet."""
    ground.conn.execute("create table app.loose (id int primary key); insert into app.loose values (0)")
    return ground


def while_reading(patch: pytest.MonkeyPatch, work: Callable[[], object]) -> list[object]:
    """Have ``work`` done when the rows have been read; gives what it gave."""
    scan, done = sums.scan_sums, list[object]()

    def scan_and_work(*arguments: Any) -> Any:
        found = scan(*arguments)
        done.append(work())
        return found

    patch.setattr(gather, "scan_sums", scan_and_work)
    return done


def killed(ground: Ground, table: str, register: Callable[..., object] = add_tables) -> None:
    """Have a registration's session end while it reads."""
    session = connect(ground.url, application_name="killed", autocommit=True)
    with pytest.MonkeyPatch.context() as patch:
        kill = "select pg_terminate_backend(%s, 5000)"
        while_reading(patch, lambda: ground.conn.execute(kill.encode(), (session.info.backend_pid,)))
        with pytest.raises(psycopg.OperationalError):
            register(session, "app", [table], now_ms=NOW_MS)


def backlog(conn: Session) -> int:
    return sum(one.changes for one in captured_backlogs(conn, {}, 0.0, MOST))


def test_it_is_told_of_and_a_sweep_clears_it_up(other: Ground) -> None:
    killed(other, "loose")
    other.conn.execute("insert into app.loose select generate_series(1, 30)")
    assert [(one.database, one.table) for one in cut_off(other.conn)] == [("app", "loose")]
    assert backlog(other.conn) == 30
    assert [database.cut_off for database in read_status(other.conn)[1]] == [("loose",)]
    assert any('table "loose" of "app" was cut off' in line.plain for line in shown(read(other.url, {}), 300))
    told = CliRunner().invoke(app, ["verify", "--db", "app", "--postgres-url", other.url])
    assert (told.exit_code, 'table "loose" of "app" was cut off' in told.output) == (0, True)

    other.configure(sweep_max_rows=7)
    swept = other.swept()
    assert (swept.removed["gathered"], swept.unfinished) == (30, False)
    assert other.number(OURS, "app.loose") == other.number(GATHERED) == backlog(other.conn) == 0
    assert cut_off(other.conn) == []
    assert [database.cut_off for database in read_status(other.conn)[1]] == [()]


@pytest.mark.slow
def test_one_that_runs_is_left_alone(other: Ground) -> None:
    make_database(other.conn, "second")

    def write_and_sweep() -> tuple[object, ...]:
        other.conn.execute("insert into app.loose values (1), (2)")
        swept = other.sweep()
        assert swept is not None
        return (other.number(GATHERED), [one.removed["gathered"] for one in swept], backlog(other.conn))

    session = connect(other.url, application_name="registers", autocommit=True)
    with session, pytest.MonkeyPatch.context() as patch:
        done = while_reading(patch, write_and_sweep)
        assert [added.rows for added in add_tables(session, "app", ["loose"], now_ms=NOW_MS)] == [3]
    assert done == [(2, [0, 0], 0)]
    assert drift(other.conn, load_database(other.conn, "app")) == []


def test_triggers_of_a_synced_table_rest_again(other: Ground) -> None:
    capture_off(other.conn, "app", "todo")
    killed(other, "todo", restart_captures)
    other.conn.execute("insert into app.todo values ('gathered')")
    assert other.number(GATHERED) == 1
    assert other.swept().removed["gathered"] == 1
    database = load_database(other.conn, "app")
    assert database.uncaptured == {"todo"}
    assert drift(other.conn, database) == []
    other.conn.execute("insert into app.todo values ('not captured')")
    assert other.number("select count(*) from anabranch.captured") == 0
    [added] = restart_captures(other.conn, "app", ["todo"], now_ms=NOW_MS)
    assert added.rows == 2


def test_what_a_dropped_table_left_goes(other: Ground) -> None:
    killed(other, "loose")
    other.conn.execute("insert into app.loose values (1)")
    other.conn.execute("drop table app.loose")
    assert other.number(GATHERED) == 1
    assert cut_off(other.conn) == []
    assert other.swept().removed["gathered"] == 1
    assert other.number(GATHERED) == 0


def test_a_table_that_somebody_holds_waits_for_a_later_sweep(other: Ground) -> None:
    killed(other, "loose")
    with connect(other.url, application_name="holds") as holder:
        holder.execute("insert into app.loose values (1)")
        holder.commit()
        holder.execute("select from app.loose")
        swept = other.swept()
        assert (swept.removed["gathered"], swept.unfinished) == (1, True)
        assert [one.table for one in cut_off(other.conn)] == ["loose"]
    assert not other.swept().unfinished
    assert other.number(OURS, "app.loose") == 0


def test_no_number_is_dead_while_a_registration_runs(other: Ground) -> None:
    session = connect(other.url, application_name="registers", autocommit=True)
    with session, pytest.MonkeyPatch.context() as patch:
        done = while_reading(patch, lambda: dead_upto(other.conn))
        add_tables(session, "app", ["loose"], now_ms=NOW_MS)
    assert done == [0]
    assert dead_upto(other.conn) >= load_database(other.conn, "app").tables["loose"].id
