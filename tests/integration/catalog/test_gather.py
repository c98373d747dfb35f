"""Tables that others write to are registered while they do: nobody waits for the reading of the rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.store.capture import triggers
from anabranch.store.capture.rows import decode
from anabranch.store.catalog import gather, sums
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift, stopped_tables
from anabranch.store.catalog.gather import add_tables, restart_captures
from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import RegistrationLimits, add_table, create_database, remove_table
from anabranch.store.catalog.sums import scan_rows
from anabranch.store.session.engine import Session, connect
from anabranch.store.session.own_locks import TRY_CLAIM
from anabranch.values.canonical import RowEncoder, table_sum

NOW_MS = 1_800_000_000_000
SOON = RegistrationLimits(lock_timeout_ms=600)
OURS = "select count(*) from pg_trigger where tgrelid = %s::regclass and tgname like '%%anabranch%%'"


@pytest.fixture
def tables(conn: Session) -> Session:
    conn.execute("create table app.t (id text primary key, n int); create table app.u (id text primary key)")
    conn.execute("insert into app.t select 'r' || i, i from generate_series(1, 300) i; insert into app.u values ('u')")
    create_database(conn, "d", "app")
    return conn


@pytest.fixture
def writer(migrated_url: str) -> Any:
    with connect(migrated_url, application_name="writer", autocommit=True) as session:
        session.execute("set lock_timeout = '50ms'")
        yield session


def agrees(conn: Session, name: str) -> None:
    """The kept sum, with what is captured and not drained added, is that of the rows."""
    database = load_database(conn, "d")
    table = database.tables[name]
    with conn.transaction():
        rows = [row for chunk in scan_rows(conn, "app", table) for row in chunk]
    kept = conn.execute(
        "select row_count, row_hash from anabranch.table_sums where table_id = %s", (table.id,)
    ).fetchone()
    count, total = table_sum(RowEncoder(table), rows)
    assert conn.execute("select count(*) from anabranch.captured").fetchone() == (0,)
    assert kept is not None
    assert (kept[0], int.from_bytes(kept[1], "big")) == (count, total)


def while_reading(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], *, first: bool = False) -> list[object]:
    """Have ``work`` done in the middle of the reading of the rows; gives what it gave."""
    scan, done = sums.scan_sums, list[object]()

    def scan_and_work(*arguments: Any) -> Any:
        if first:
            done.append(work())
        found = scan(*arguments)
        if not first:
            done.append(work())
        return found

    monkeypatch.setattr(gather, "scan_sums", scan_and_work)
    return done


@pytest.mark.parametrize("first", [True, False], ids=["before the rows", "after them"])
def test_what_is_written_meanwhile_is_in_the_sum_and_nobody_waits(
    tables: Session, writer: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    slow = connect(migrated_url, application_name="slow")

    def write() -> None:
        for statement in (
            "insert into app.t select 'new' || i, i from generate_series(1, 5000) i",
            "update app.t set n = n + 1 where n < 100",
            "delete from app.t where id in ('r1', 'new7')",
            "update app.t set id = 'moved' where id = 'r5'",
            "begin; insert into app.t values ('undone', 1); rollback",
        ):
            writer.execute(statement.encode())
        slow.execute("update app.t set n = -1 where id = 'r200'")
        # It ends when the rows have been read, and something of it was gathered before.
        writer.execute("select 1")

    done = while_reading(monkeypatch, write, first=first)
    add = gather._add

    def add_and_end(*arguments: Any) -> int:
        slow.commit()
        return add(*arguments)

    monkeypatch.setattr(gather, "_add", add_and_end)
    [added] = add_tables(tables, "d", ["t"], now_ms=NOW_MS)
    assert len(done) == 1
    assert added.rows == 5_298
    agrees(tables, "t")
    writer.execute("insert into app.t values ('captured', 1)")
    number = load_database(tables, "d").tables["t"].id
    assert tables.execute("select database_id, table_id, type from anabranch.captured").fetchall() == [
        (load_database(tables, "d").id, number, 1)
    ]
    assert drift(tables, load_database(tables, "d")) == []
    slow.close()


def test_a_truncate_meanwhile_is_in_the_sum(
    tables: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the reading, as for any reader, and comes before the rest is added."""
    add, writer = gather._add, connect(migrated_url, application_name="writer", autocommit=True)

    def truncate_and_add(*arguments: Any) -> int:
        if tables.info.transaction_status.name == "IDLE":
            writer.execute("truncate app.t")
            writer.execute("insert into app.t values ('only', 1)")
        return add(*arguments)

    monkeypatch.setattr(gather, "_add", truncate_and_add)
    [added] = add_tables(tables, "d", ["t"], now_ms=NOW_MS)
    assert added.rows == 1
    agrees(tables, "t")
    writer.close()


def test_capture_is_turned_on_without_waiting_and_the_devices_go_on(
    tables: Session, writer: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_table(tables, "d", "t")
    capture_off(tables, "d", "t")
    writer.execute("insert into app.t select 'loaded' || i, i from generate_series(1, 500) i")
    before = load_database(tables, "d")

    def write() -> bool:
        # A group: it writes to the table, and moves the sum that the log carries.
        with writer.transaction():
            claimed = writer.execute(TRY_CLAIM, (before.id,)).fetchone()
            writer.execute(triggers.MARK_RESOLVER)
            writer.execute("insert into app.t values ('by a device', 7)")
            row = before.tables["t"]
            [(count, total)] = writer.execute(
                "select row_count, row_hash from anabranch.table_sums where table_id = %s", (row.id,)
            ).fetchall()
            moved = int.from_bytes(total, "big") + RowEncoder(row).hash(["by a device", 7])
            writer.execute(
                "update anabranch.table_sums set row_count = %s, row_hash = %s where table_id = %s",
                (count + 1, (moved % 2**128).to_bytes(16, "big"), row.id),
            )
        writer.execute("update app.t set n = -n where id like 'loaded%'")
        assert stopped_tables(drift(writer, load_database(writer, "d"))) == {}
        return claimed == (True,)

    done = while_reading(monkeypatch, write)
    [added] = restart_captures(tables, "d", ["t"], now_ms=NOW_MS)
    assert done == [True]
    assert added.rows == 801
    agrees(tables, "t")
    after = load_database(tables, "d")
    assert after.uncaptured == frozenset()
    assert after.tables["t"].id != before.tables["t"].id
    assert drift(tables, after) == []
    writer.execute("update app.t set n = 0 where id = 'by a device'")
    assert tables.execute("select count(*) from anabranch.captured").fetchone() == (1,)


class Crash(BaseException):
    """The end of the process."""


def test_one_that_fails_leaves_nothing(tables: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise Crash

    while_reading(monkeypatch, fail)
    with pytest.raises(Crash):
        add_tables(tables, "d", ["u", "t"], now_ms=NOW_MS)
    for table in ("app.t", "app.u"):
        assert tables.execute(OURS, (table,)).fetchone() == (0,)
    assert load_database(tables, "d").tables == {}
    monkeypatch.undo()
    assert [added.rows for added in add_tables(tables, "d", ["u", "t"], now_ms=NOW_MS)] == [1, 300]


def test_where_turning_on_fails_it_is_off_as_before(
    tables: Session, writer: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_table(tables, "d", "t")
    capture_off(tables, "d", "t")

    def fail() -> None:
        writer.execute("insert into app.t values ('x', 1)")
        raise Crash

    while_reading(monkeypatch, fail)
    with pytest.raises(Crash):
        restart_captures(tables, "d", ["t"], now_ms=NOW_MS)
    database = load_database(tables, "d")
    assert database.uncaptured == {"t"}
    assert drift(tables, database) == []
    writer.execute("insert into app.t values ('y', 1)")
    assert tables.execute("select count(*) from anabranch.captured").fetchone() == (0,)
    monkeypatch.undo()
    restart_captures(tables, "d", ["t"], now_ms=NOW_MS)
    agrees(tables, "t")


@pytest.mark.parametrize("next_one", ["online", "at once", "removal"])
def test_what_a_killed_one_left_is_cleared_up(
    tables: Session, writer: Session, monkeypatch: pytest.MonkeyPatch, next_one: str
) -> None:
    def crash() -> None:
        writer.execute("insert into app.t values ('gathered', 1)")
        raise Crash

    if next_one == "removal":
        add_table(tables, "d", "t")
    with monkeypatch.context() as patch:
        while_reading(patch, crash)
        patch.setattr(gather, "_undo", lambda *_: None)
        register = restart_captures if next_one == "removal" else add_tables
        with pytest.raises(Crash):
            register(tables, "d", ["t"], now_ms=NOW_MS)
    assert tables.execute("select count(*) from anabranch.captured").fetchone() == (1,)
    if next_one == "online":
        add_tables(tables, "d", ["t"], now_ms=NOW_MS)
    elif next_one == "at once":
        add_table(tables, "d", "t")
    else:
        remove_table(tables, "d", "t")
        assert tables.execute(OURS, ("app.t",)).fetchone() == (0,)
        assert tables.execute("select count(*) from anabranch.captured").fetchone() == (0,)
        return
    agrees(tables, "t")


@pytest.mark.parametrize(
    "change", ["alter table app.t add column more int", "drop trigger anabranch_update on app.t", "drop table app.t"]
)
def test_a_table_that_is_changed_meanwhile_is_refused(
    tables: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    add = gather._add
    with connect(migrated_url, application_name="changes", autocommit=True) as other:
        changed: list[int] = []

        def change_and_add(*arguments: Any) -> int:
            if not changed:
                changed.append(1)
                other.execute(change.encode())
            return add(*arguments)

        monkeypatch.setattr(gather, "_add", change_and_add)
        with pytest.raises(RegistrationError) as caught:
            add_tables(tables, "d", ["t"], now_ms=NOW_MS, limits=SOON)
    assert caught.value.reasons in ([TableRefusal.BUSY], [TableRefusal.UNKNOWN_TABLE])
    assert load_database(tables, "d").tables == {}
    assert tables.execute("select count(*) from anabranch.captured").fetchone() == (0,)


def test_two_at_once_are_one_and_a_refusal(tables: Session, writer: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def too() -> list[TableRefusal]:
        with pytest.raises(RegistrationError) as caught:
            add_tables(writer, "d", ["t"], now_ms=NOW_MS, limits=SOON)
        return caught.value.reasons

    done = while_reading(monkeypatch, too)
    add_tables(tables, "d", ["t"], now_ms=NOW_MS)
    assert done == [[TableRefusal.BUSY]]
    agrees(tables, "t")


def test_somebody_who_holds_the_table_is_waited_for_in_short_attempts(
    tables: Session, writer: Session, migrated_url: str
) -> None:
    with connect(migrated_url, application_name="holds") as holder:
        holder.execute("update app.t set n = 0")
        began = time.monotonic()
        with pytest.raises(RegistrationError) as caught:
            add_tables(tables, "d", ["t"], now_ms=NOW_MS, limits=SOON)
        assert caught.value.reasons == [TableRefusal.BUSY]
        assert time.monotonic() - began < 10
        assert tables.execute(OURS, ("app.t",)).fetchone() == (0,)


def test_where_one_table_cannot_be_undone_the_others_are(tables: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise Crash

    undo = gather._undo

    def undo_but_the_first(conn: Any, one: Any, limits: Any) -> None:
        if one.table.name == "u":
            raise psycopg.errors.InsufficientPrivilege("not today")
        undo(conn, one, limits)

    while_reading(monkeypatch, fail)
    monkeypatch.setattr(gather, "_undo", undo_but_the_first)
    with pytest.raises(Crash) as caught:
        add_tables(tables, "d", ["u", "t"], now_ms=NOW_MS)
    assert tables.execute(OURS, ("app.t",)).fetchone() == (0,)
    [note] = caught.value.__notes__
    assert 'table "u" goes on gathering' in note


def test_a_writer_that_is_faster_than_the_adding_is_caught_up_with_in_the_end(
    tables: Session, writer: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes a whole chunk while one is added, again and again, until it has to wait."""
    calls = 0

    def decode_and_write(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        assert calls < 2_000, "the adding has no end"
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            writer.execute(f"insert into app.t select 'w{calls}-' || i, i from generate_series(1, 10) i".encode())
        return decode(*arguments)

    for name, value in {"_CHUNK": 10, "_CHUNKS": 3, "_FEW": 5, "_PASSES": 4}.items():
        monkeypatch.setattr(gather, name, value)
    writer.execute("set lock_timeout = '1ms'")
    first = b"insert into app.t select 'x' || i, i from generate_series(1, 10) i"
    while_reading(monkeypatch, lambda: writer.execute(first))
    monkeypatch.setattr(gather, "decode", decode_and_write)
    [added] = add_tables(tables, "d", ["t"], now_ms=NOW_MS)
    assert added.rows > 310
    agrees(tables, "t")


def test_a_table_that_is_being_registered_anew_is_not_adopted(
    tables: Session, writer: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum that adoption sets would be added to the registration's."""
    add_table(tables, "d", "t")
    capture_off(tables, "d", "t")
    writer.execute("update app.t set n = -n where n < 10")

    def adopt() -> tuple[int, bool]:
        done = CliRunner().invoke(app, ["verify", "--db", "d", "--adopt", "--postgres-url", migrated_url])
        return done.exit_code, "is being registered anew: try again after that (BUSY)" in done.output

    done = while_reading(monkeypatch, adopt)
    restart_captures(tables, "d", ["t"], now_ms=NOW_MS)
    assert done == [(2, True)]
    agrees(tables, "t")
