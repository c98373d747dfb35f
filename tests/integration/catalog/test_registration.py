from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg
import pytest

from anabranch.store.catalog import sums
from anabranch.store.catalog.databases import Database, aload_database, load_database, load_databases, schema_versions
from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import RegistrationLimits, add_table, create_database, remove_table
from anabranch.store.session.channels import CATALOG_CHANNEL
from anabranch.store.session.engine import Session, aconnect, connect
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.values import Cell, Table
from anabranch.values.canonical import RowEncoder, table_sum

SOON = RegistrationLimits(lock_timeout_ms=150)


def kept_sum(conn: Session, table: str) -> tuple[int, int, int]:
    """Position, count and sum as they are kept."""
    row = conn.execute(
        "select s.position, s.row_count, s.row_hash from anabranch.table_sums s"
        " join anabranch.synced_tables t on t.id = s.table_id where t.name = %s",
        (table,),
    ).fetchone()
    assert row is not None
    position, count, total = row
    assert len(total) == 16
    return position, count, int.from_bytes(total, "big")


def expected_sum(table: Table, rows: list[list[Cell]]) -> tuple[int, int]:
    return table_sum(RowEncoder(table), rows)


def test_a_database_is_read_back_as_it_was_made(conn: Session) -> None:
    made = create_database(conn, "flights", "app", {"order": "edit", "park_ms": 5_000}, now_ms=1_700_000_000_000)
    assert (made.name, made.schema_name, made.floor_ms, made.schema_version) == ("flights", "app", 0, 1)
    assert (made.policy.order, made.policy.park_ms, made.policy.retention_days) == ("edit", 5_000, 30)
    assert len(made.seal_key) == 32
    assert made.seal_key.hex() not in repr(made)
    assert conn.execute("select created_ms from anabranch.databases").fetchone() == (1_700_000_000_000,)
    other = create_database(conn, "other", "public")
    assert other.epoch != made.epoch
    assert other.seal_key != made.seal_key
    assert load_databases(conn) == {"flights": made, "other": other}


def test_the_first_sum_is_that_of_the_rows(conn: Session) -> None:
    create_database(conn, "d", "app")
    conn.execute("""
        create type app.mood as enum ('sad', 'glad');
        create table app.t (
            id text, n bigint, f double precision, d numeric, b bytea, j jsonb, u uuid, day date, at timestamptz,
            of time, tags text[], m app.mood, host inet, ok boolean, primary key (n, id));
        insert into app.t values
            ('007', 9007199254740993, '-0', '1.10', '\\x00ff', '{"a": null}', 'AAAAAAAA-0000-4000-8000-000000000001',
             '0044-03-15 BC', '2024-01-01 00:00:00.000001+00', '24:00', '{a,NULL,"NULL",""}', 'glad', '10.0.0.1', true),
            ('7', -1, 'nan', 'NaN', '', 'null', null, 'infinity', '-infinity', null, '{}', null, null, false);
    """)
    added = add_table(conn, "d", "t")
    assert added.rows == 2
    assert added.table.key_columns == ("n", "id")
    rows: list[list[Cell]] = [
        [
            "007", 9007199254740993, -0.0, "1.10", b"\x00\xff", '{"a": null}', "aaaaaaaa-0000-4000-8000-000000000001",
            -735160, 1_704_067_200_000_001, 86_400_000_000, ("a", None, "NULL", ""), "glad", "10.0.0.1", True,
        ],
        [
            "7", -1, float("nan"), "NaN", b"", "null", None, 2**31 - 1, -(2**63), None, (), None, None, False,
        ],
    ]  # fmt: skip
    assert kept_sum(conn, "t")[1:] == expected_sum(added.table, rows)


def watch_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each fetch of a scan asks for."""
    asked: list[int] = []
    fetch = sums._fetch

    def fetch_and_tell(session: Session, rows: int) -> list[tuple[object, ...]]:
        asked.append(rows)
        return fetch(session, rows)

    monkeypatch.setattr(sums, "_fetch", fetch_and_tell)
    return asked


def test_many_rows_come_in_chunks_and_sum_to_the_same(conn: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id bigint primary key, v text)")
    conn.execute("insert into app.t select g, repeat('x', g % 50) from generate_series(1, 5000) g")
    asked = watch_chunks(monkeypatch)
    monkeypatch.setattr(sums, "_MOST_BYTES", 50_000)
    added = add_table(conn, "d", "t")
    assert added.rows == 5_000
    assert len(asked) > 4
    assert max(asked) < 2_000
    assert kept_sum(conn, "t")[1:] == expected_sum(added.table, [[g, "x" * (g % 50)] for g in range(1, 5_001)])


def test_a_wide_table_comes_in_small_chunks(conn: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id bigint primary key, v text)")
    conn.execute("insert into app.t select g, repeat('x', 200000) from generate_series(1, 200) g")
    asked = watch_chunks(monkeypatch)
    add_table(conn, "d", "t")
    assert asked[0] == sums._FIRST_CHUNK
    assert max(asked[1:]) * 200_000 <= sums._MOST_BYTES


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run ``work`` beside; what it returns or raises is the list's only item once the thread has ended."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def wait_until_blocked(conn: Session, application_name: str) -> None:
    """Until a session of that name waits for a lock; half a minute at most, slept through in the server."""
    for _ in range(600):
        row = conn.execute(
            "select count(*) from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
            " and datname = current_database()",
            (application_name,),
        ).fetchone()
        if row == (1,):
            return
        conn.execute("select pg_sleep(0.05)")
    raise AssertionError(f"{application_name} never waited for a lock")


def test_a_write_under_way_is_in_the_sum(conn: Session, migrated_url: str) -> None:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id bigint primary key); insert into app.t values (1)")

    def register() -> object:
        with connect(migrated_url, application_name="registering", autocommit=True) as session:
            return add_table(session, "d", "t")

    with connect(migrated_url, application_name="writer") as writer:
        writer.execute("insert into app.t values (2)")
        thread, result = in_background(register)
        wait_until_blocked(conn, "registering")
        writer.commit()
    thread.join(30)
    assert [getattr(r, "rows", r) for r in result] == [2]
    table = load_database(conn, "d").tables["t"]
    assert kept_sum(conn, "t")[1:] == expected_sum(table, [[1], [2]])


def test_nobody_writes_between_the_sum_and_the_registration(conn: Session, migrated_url: str) -> None:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id bigint primary key); insert into app.t values (1)")

    def write() -> None:
        with connect(migrated_url, application_name="late writer", autocommit=True) as session:
            session.execute("insert into app.t values (2)")

    with connect(migrated_url, application_name="registering") as session, session.transaction():
        add_table(session, "d", "t")
        thread, result = in_background(write)
        wait_until_blocked(conn, "late writer")
        assert session.execute("select count(*) from app.t").fetchone() == (1,)
    thread.join(30)
    assert result == [None]
    assert kept_sum(conn, "t")[1] == 1


def test_a_table_that_somebody_writes_to_for_long_is_busy(conn: Session, migrated_url: str) -> None:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id bigint primary key)")
    with connect(migrated_url, application_name="writer") as writer:
        writer.execute("insert into app.t values (2)")
        with pytest.raises(RegistrationError) as caught:
            add_table(conn, "d", "t", limits=SOON)
    assert caught.value.reasons == [TableRefusal.BUSY]
    assert add_table(conn, "d", "t", limits=SOON).rows == 1
    assert conn.execute("show lock_timeout").fetchone() == ("10s",)


@pytest.mark.parametrize("change", [add_table, remove_table])
def test_the_catalog_does_not_change_inside_a_group(
    conn: Session, migrated_url: str, change: Callable[..., object]
) -> None:
    database = create_database(conn, "d", "app")
    conn.execute("create table app.t (id bigint primary key)")
    if change is remove_table:
        add_table(conn, "d", "t")
    with connect(migrated_url, application_name="resolver") as resolver:
        wait_for_claim(resolver, database.id)
        with pytest.raises(RegistrationError) as caught:
            change(conn, "d", "t", limits=SOON)
        assert caught.value.reasons == [TableRefusal.BUSY]
    change(conn, "d", "t", limits=SOON)


def test_the_first_position_is_the_head(conn: Session) -> None:
    database = create_database(conn, "d", "app")
    other = create_database(conn, "other", "public")
    conn.execute("create table app.early (id text primary key); create table app.late (id text primary key)")
    add_table(conn, "d", "early")
    for number, position in ((database.id, 1_000), (database.id, 2_000), (other.id, 9_000)):
        conn.execute("insert into anabranch.groups values (%s, %s, 1, 1, '\\x00', '{}', true)", (number, position))
    add_table(conn, "d", "late")
    assert load_database(conn, "d").first_positions == {"early": 0, "late": 2_000}
    assert kept_sum(conn, "early")[0] == 0
    assert kept_sum(conn, "late")[0] == 2_000


def notified(conn: Session) -> list[tuple[str, str]]:
    return [(n.channel, n.payload) for n in conn.notifies(timeout=5, stop_after=1)]


def test_every_change_has_a_version_and_is_told_when_it_is_committed(conn: Session, migrated_url: str) -> None:
    conn.execute(f"listen {CATALOG_CHANNEL}".encode())
    with connect(migrated_url, application_name="admin", autocommit=True) as admin:
        database = create_database(admin, "d", "app")
        told = (CATALOG_CHANNEL, str(database.id))
        assert notified(conn) == [told]
        admin.execute("create table app.t (id text primary key)")
        add_table(admin, "d", "t")
        assert notified(conn) == [told]
        assert schema_versions(conn) == {"d": 2}
        with pytest.raises(RegistrationError):
            add_table(admin, "d", "t")
        remove_table(admin, "d", "t")
        assert notified(conn) == [told]
        assert schema_versions(conn) == {"d": 3}
        with pytest.raises(RegistrationError) as caught:
            remove_table(admin, "d", "t")
    assert caught.value.reasons == [TableRefusal.NOT_SYNCED]
    assert schema_versions(conn) == {"d": 3}


def test_a_removed_table_starts_anew(conn: Session) -> None:
    create_database(conn, "d", "app")
    conn.execute("create table app.t (id text primary key); create table app.u (id text primary key)")
    first, other = add_table(conn, "d", "t").table, add_table(conn, "d", "u").table
    for table in (first, other):
        conn.execute(
            "insert into anabranch.row_versions (table_id, key, last_position, last_node, last_batch)"
            " values (%s, 'k', 1, 'n', 'b')",
            (table.id,),
        )
    remove_table(conn, "d", "t")
    assert conn.execute("select table_id from anabranch.row_versions").fetchall() == [(other.id,)]
    assert conn.execute("select table_id from anabranch.table_sums").fetchall() == [(other.id,)]
    assert conn.execute("select count(*) from app.t").fetchone() == (0,)
    conn.execute("insert into app.t values ('k')")
    again = add_table(conn, "d", "t")
    assert (again.rows, again.table.name, again.table.id != first.id) == (1, "t", True)


ODD_NAMES = [
    "Order",
    "select",
    "7.5",
    'q"q',
    "two words",
    "seq",
    "deleted",
    "☃ 🛫",
    "'; drop schema app; --",
    "%s",
    "a\\b",
]


def test_names_that_need_quoting_work(conn: Session) -> None:
    create_database(conn, "d", "app")
    quoted = [name.replace('"', '""') for name in ODD_NAMES]
    columns = ", ".join(f'"{name}" text' for name in quoted)
    for name in quoted:
        conn.execute(f'create table app."{name}" (id text primary key, {columns})'.encode())
        conn.execute(f"insert into app.\"{name}\" values ('1', 'x')".encode())
    for name in ODD_NAMES:
        added = add_table(conn, "d", name, {"columns": {name: "reject"}})
        assert added.table.column_names == ("id", *ODD_NAMES)
        rows: list[list[Cell]] = [["1", "x", *[None] * (len(ODD_NAMES) - 1)]]
        assert kept_sum(conn, name)[1:] == expected_sum(added.table, rows)
    database = load_database(conn, "d")
    assert set(database.tables) == set(ODD_NAMES)
    assert all(database.table_policy(name).columns == {name: "reject"} for name in ODD_NAMES)
    assert set(database.constraints) == set(ODD_NAMES)


def test_an_odd_schema_works(conn: Session) -> None:
    conn.execute('create schema "Odd ""schema"; create table "Odd ""schema".t (id text primary key)')
    create_database(conn, "d", 'Odd "schema')
    assert add_table(conn, "d", "t").rows == 0


def flights(conn: Session) -> Database:
    create_database(conn, "d", "app", {"order": "edit"})
    conn.execute("""
        create table app.flights (id text primary key);
        create table app.airports (id text primary key);
        create table app.planes (id text primary key, home text references app.airports);
        alter table app.flights add plane text references app.planes;
        create table app.left_hand (id text primary key, r text);
        create table app.right_hand (id text primary key, l text references app.left_hand);
        alter table app.left_hand add foreign key (r) references app.right_hand deferrable;
    """)
    for name in ("flights", "planes", "airports", "left_hand", "right_hand"):
        add_table(conn, "d", name, {"order": "server"} if name == "planes" else None)
    return load_database(conn, "d")


def test_tables_come_in_the_order_of_their_foreign_keys(conn: Session) -> None:
    database = flights(conn)
    assert database.table_order == ("airports", "left_hand", "right_hand", "planes", "flights")
    assert database.order.cycles == (("left_hand", "right_hand"),)
    assert database.table_policy("planes").order == "server"
    assert database.table_policy("flights").order == "edit"
    assert database.tables_by_id == {table.id: table for table in database.tables.values()}
    with pytest.raises(KeyError):
        database.table_policy("nope")


def test_what_is_odd_but_no_reason_is_told(conn: Session) -> None:
    create_database(conn, "d", "app")
    conn.execute(
        "create table app.p (id text primary key); create table app.t (id text primary key, p text references app.p)"
    )
    (warning,) = add_table(conn, "d", "t").warnings
    assert 'points to "p", which is not synced' in warning
    assert add_table(conn, "d", "p").warnings == ()
    conn.execute(
        "create table app.a (id text primary key, b text); create table app.b (id text primary key, a text"
        " references app.a); alter table app.a add foreign key (b) references app.b"
    )
    add_table(conn, "d", "a")
    (warning,) = add_table(conn, "d", "b").warnings
    assert "a circle through a, b" in warning


def test_asyncio_reads_the_same(conn: Session, migrated_url: str) -> None:
    database = flights(conn)

    async def read() -> Database:
        async with await aconnect(migrated_url, application_name="test") as session:
            return await aload_database(session, "d")

    assert asyncio.run(read()) == database


def test_reading_leaves_no_transaction_open(conn: Session, migrated_url: str) -> None:
    create_database(conn, "d", "app")
    with connect(migrated_url, application_name="test") as session:
        load_databases(session)
        assert session.info.transaction_status is psycopg.pq.TransactionStatus.IDLE


def test_keys_that_look_alike_stay_two(conn: Session) -> None:
    create_database(conn, "d", "app")
    conn.execute(
        "create table app.t (uuid_login uuid, a text, b int, primary key (a, b));"
        "insert into app.t values (null, '007', 7), (null, '7', 7)"
    )
    added = add_table(conn, "d", "t")
    assert added.table.key_columns == ("a", "b")
    assert kept_sum(conn, "t")[1:] == expected_sum(added.table, [[None, "007", 7], [None, "7", 7]])


def test_a_stored_generated_column_is_summed_and_never_written(conn: Session) -> None:
    create_database(conn, "d", "app")
    conn.execute(
        "create table app.t (id text primary key, n int, twice int generated always as (n * 2) stored);"
        "insert into app.t values ('a', 21)"
    )
    added = add_table(conn, "d", "t")
    assert [c.generated for c in added.table.columns] == [False, False, True]
    assert kept_sum(conn, "t")[1:] == expected_sum(added.table, [["a", 21, 42]])
