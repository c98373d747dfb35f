"""Whole tables of one moment: resumed where they broke, and in constant memory."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest
from tests.integration.snapshot.pulled import MIB, Pulled, apply, pull_and_cut, rows
from ulid import ULID

from anabranch import limits
from anabranch.columnar.chunks import from_ipc
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table
from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import FailedCallError, failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2
from anabranch.values.arrow import arrow_schema

STALL_MS = 3_000


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_PULL_STALL_MS": str(STALL_MS),
        "ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024),
        "ANABRANCH_PULL_LOCK_TIMEOUT_MS": "5000",
    }


@pytest.mark.slow
def test_all_tables_of_one_moment_in_the_order_of_their_foreign_keys(place: Any, writer: LogWriter) -> None:
    place.add_table("create table {schema}.a (id text primary key, item text references {schema}.item)", "a")
    writer = place.make_writer()
    made = rows(2_000)
    head = writer.insert("item", made)
    place.conn.execute(f"insert into {place.schema}.a values ('1', %s)".encode(), (made[0][0],))
    reader = place.make_reader()
    pulled = Pulled().all(reader.pull())
    assert list(pulled.rows) == ["item", "a"]
    assert pulled.rows["item"] == sorted(made)
    assert {response.as_of.server_timestamp_ms for response in pulled.responses} == {head}
    assert pulled.responses[0].state.settled == pulled.responses[0].as_of == reader.get(head).state.settled
    assert pulled.done["item"].rows_done == 2_000
    assert pulled.done["item"].sum == whole_groups(reader.pages())[-1].sums[0]
    assert len(pulled.responses) > 4


@pytest.mark.slow
def test_describe_says_what_there_is(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(3))
    place.add_table(
        """create table {schema}."Order" ("select" bigint, "7.5" integer not null default 1, a text[],
           g bigint generated always as ("7.5" * 2) stored, item text references {schema}.item,
           primary key ("7.5", "select"))""",
        "Order",
    )
    described = reader.describe()
    item, order = described.tables
    assert (item.name, order.name) == ("item", "Order")
    assert item.estimated_rows == 3
    assert list(order.key_columns) == ["7.5", "select"]
    select, seven, array, generated, _ = order.columns
    assert (select.name, select.postgres_type, select.not_null) == ("select", "bigint", True)
    assert (seven.has_default, seven.policy) == (True, "lww")
    assert (array.kind, array.element_kind) == (12, 4)
    assert generated.generated
    assert described.policy.park_ms == 30_000
    assert described.limits.max_batch_rows > 0
    assert described.state.schema_version == load_database(place.conn, place.name).schema_version
    # Registered a moment ago, seen at once; gone, gone at once.
    place.add_table("create table {schema}.later (id text primary key)", "later")
    assert [table.name for table in reader.describe().tables] == ["item", "later", "Order"]


def test_rows_committed_while_it_runs_are_not_in_it_and_follow_in_the_log(place: Any, writer: LogWriter) -> None:
    """Promise 5 for a reader that pulls under load: pull at ``as_of``, then the log, gives the server's rows."""
    writer.insert("item", rows(3_000))
    stop, failures = threading.Event(), []

    def write() -> None:
        try:
            while not stop.is_set():
                (made,) = rows(1)
                writer.insert("item", [made])
                writer.update("item", (made[0],), {"n": 7})
                if made[3] > b"a":
                    writer.delete("item", (made[0],))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        held: list[tuple[int, dict[str, Any]]] = []
        for _ in range(5):
            reader = place.make_reader()
            pulled = Pulled().all(reader.pull())
            as_of = pulled.done["item"].as_of.server_timestamp_ms
            held.append((as_of, {row[0]: row for row in pulled.rows["item"]}))
            assert pulled.done["item"].sum.count == len(pulled.rows["item"])
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert len({as_of for as_of, _ in held}) == 5
    server = {row[0]: row for row in place.conn.execute(f"select * from {place.schema}.item".encode())}
    for as_of, mine in held:
        for group in whole_groups(place.make_reader().pages(as_of)):
            apply(mine, group)
        assert mine == server


@pytest.mark.slow
def test_l10_a_pull_that_is_cut_again_and_again_ends_complete_while_rows_change(place: Any, writer: LogWriter) -> None:
    made = sorted(rows(4_000, 200))
    writer.insert("item", made)
    reader = place.make_reader()
    pulled = Pulled()
    resume = b""
    for cut in range(100):
        response = pull_and_cut(reader, pulled, resume)
        if response.done:
            break
        resume = response.resume
        # A row that was sent already, one that was not, and one that is new at the end.
        writer.update("item", (made[0][0],), {"n": cut})
        writer.delete("item", (made[-1 - cut][0],))
        writer.insert("item", rows(1))
    assert response.done
    assert cut >= 3
    keys = [row[0] for row in pulled.rows["item"]]
    assert keys == sorted(set(keys))
    assert response.rows_done == len(keys)
    moments = [response.as_of.server_timestamp_ms for response in pulled.responses]
    assert moments == sorted(moments)
    assert len(set(moments)) == cut + 1
    held = {row[0]: row for row in pulled.rows["item"]}
    for group in whole_groups(reader.pages(moments[0])):
        follow(held, group, moments[-1])
    server = {row[0]: row for row in place.conn.execute(f"select * from {place.schema}.item".encode())}
    assert held == server


def follow(held: dict[str, Any], group: change_pb2.LoggedGroup, latest: int) -> None:
    """As the contract says: between the parts' moments an effect may be about a row that is not there."""
    for batch in group.batches:
        for data in list(batch.effects):
            effect = change_pb2.Effect.FromString(data)
            known = effect.values[0].string_value in held
            if not known and effect.type != change_pb2.EFFECT_TYPE_INSERT:
                assert group.position <= latest
                continue
            apply(held, change_pb2.LoggedGroup(batches=[change_pb2.LoggedBatch(effects=[data])]))


KEYS: list[tuple[str, str, str]] = [
    ("bigint", "i", "-(2^40)::bigint + i"),
    ("boolean, b bigint", "i % 2 = 0, i", ""),
    ("text", "'it''s \"' || i || '\\{,'", ""),
    ("uuid", "md5(i::text)::uuid", ""),
    ("bytea", "decode(md5(i::text), 'hex')", ""),
    ("timestamptz", "timestamptz 'epoch' - i * interval '1.000001 s'", ""),
    ("date", "date '1970-01-01' - i", ""),
    ("character varying(40)", "'ü' || i", ""),
]


@pytest.mark.parametrize("key", KEYS, ids=[key[0] for key in KEYS])
def test_every_type_of_key_can_be_resumed_after(place: Any, reader: Reader, key: tuple[str, str, str]) -> None:
    kind, value, _ = key
    columns = "a, b" if "," in kind else "a"
    place.conn.execute(f"create table {place.schema}.k (a {kind}, v text, primary key ({columns}))".encode())
    place.conn.execute(
        f"insert into {place.schema}.k select {value}, repeat('x', 100) from generate_series(1, 3000) i".encode()
    )
    add_table(place.conn, place.name, "k")
    whole = Pulled().all(reader.pull([("k", b"")]))
    assert len(whole.rows["k"]) == 3_000
    middle = whole.responses[len(whole.responses) // 2]
    rest = Pulled().all(reader.pull([("k", middle.resume)]))
    assert rest.rows["k"] == whole.rows["k"][middle.rows_done :]
    assert rest.done["k"].rows_done == 3_000


def test_o13_a_truncate_that_commits_meanwhile_does_not_read_as_an_empty_table(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    """A snapshot from before the TRUNCATE, read after it, would show no row at all."""
    writer.insert("item", rows(10))
    with connect(place.rig.url, application_name="test") as other:
        other.execute(f"truncate {place.schema}.item".encode())
        other.execute(f"insert into {place.schema}.item values ('a', 'after', 1, null)".encode())
        other.execute("delete from anabranch.captured")
        result: list[Pulled] = []
        thread = threading.Thread(target=lambda: result.append(Pulled().all(reader.pull())))
        thread.start()
        waiting = "select count(*) from pg_locks where not granted and mode = 'AccessShareLock'"
        until(lambda: place.conn.execute(waiting).fetchone()[0] > 0, 10)
        other.commit()
        thread.join(20)
    assert result[0].rows["item"] == [("a", "after", 1, None)]


@pytest.mark.slow
def test_o13_a_truncate_of_a_table_that_is_yet_to_be_read_ends_the_pull(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    """It does not wait, and the table does not read as an empty one."""
    place.add_table("create table {schema}.later (id text primary key references {schema}.item)", "later")
    # Far more than the transport takes in ahead of its reader: the pull is under way as long as nobody reads on.
    writer.insert("item", rows(1_600, 50_000))
    writer.conn.execute(f"insert into {place.schema}.later select id from {place.schema}.item limit 3".encode())
    stream = reader.pull()
    pulled = Pulled()
    pulled.take(next(stream))
    with connect(place.rig.url, application_name="test", autocommit=True) as other:
        other.execute("set lock_timeout = 5000")
        other.execute(f"truncate {place.schema}.later".encode())
    with pytest.raises(grpc.RpcError) as caught:
        pulled.all(stream)
    assert failed(caught.value).reason == "UNAVAILABLE"
    assert list(pulled.done) == []


def test_a_row_of_9_mb_passes_in_parts_through_a_default_channel(place: Any, writer: LogWriter, reader: Reader) -> None:
    made = sorted([*rows(3), (str(ULID()), "large", 1, bytes(range(256)) * 36_000)])
    writer.insert("item", made)
    stream = list(reader.pull())
    assert any(response.arrow_ipc_incomplete for response in stream)
    assert all(response.ByteSize() < 4 * MIB for response in stream)
    assert Pulled().all(stream).rows["item"] == made


@pytest.mark.slow
def test_memory_is_flat_over_300_000_rows(place: Any, reader: Reader) -> None:
    place.conn.execute(
        f"""insert into {place.schema}.item
            select lpad(i::text, 26, '0'), 'title of ' || i, i, decode(md5(i::text), 'hex')
            from generate_series(1, 300000) i""".encode()
    )
    process = psutil.Process(place.rig.children[0].pid)
    rows_done, most = 0, 0
    for _ in range(2):
        # The first time allocators grow to what they need; it counts, too.
        before = process.memory_info().rss
        for response in reader.pull():
            rows_done = max(rows_done, response.rows_done)
            most = max(most, process.memory_info().rss - before)
    assert rows_done == 300_000
    assert most < 24 * MIB


def test_tokens_and_tables_that_are_no_good_are_told(place: Any, writer: LogWriter, reader: Reader) -> None:
    place.add_table("create table {schema}.other (id text primary key)", "other")
    writer.insert("item", rows(2_000))
    token = next(reader.pull()).resume

    def reason(*required: tuple[str, bytes]) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            next(reader.pull(required))
        return str(failed(caught.value).reason)

    assert reason(("nowhere", b"")) == "UNKNOWN_TABLE"
    assert reason(("item", b""), ("item", b"")) == "INVALID_REQUEST"
    assert reason(("item", b"garbage")) == "INVALID_TOKEN"
    assert reason(("other", token)) == "INVALID_TOKEN"
    # The log was cut above the moment of the first part: nothing could make the parts one.
    place.conn.execute(
        "update anabranch.databases set floor_ms = %s where name = %s", (writer.insert("item", rows(1)), place.name)
    )
    assert reason(("item", token)) == "INVALID_TOKEN"
    reader.db_name = "nowhere"
    assert reason() == "UNKNOWN_DATABASE"
    with pytest.raises(FailedCallError) as caught:
        reader.describe()
    assert caught.value.reason == "UNKNOWN_DATABASE"


def test_chunks_have_the_declared_schema(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(10))
    chunk = next(reader.pull())
    assert from_ipc(chunk.arrow_ipc).schema == arrow_schema(writer.table("item"))
    assert pa.ipc.open_stream(chunk.arrow_ipc).schema == arrow_schema(writer.table("item"))


def test_describe_says_what_is_sure_to_be_refused(place: Any, reader: Reader) -> None:
    for statement in (
        "create type {schema}.mood as enum ('sad', 'ok')",
        "create domain {schema}.short as varchar(3) not null",
        "create domain {schema}.shorter as {schema}.short check (length(value) < 3)",
    ):
        place.conn.execute(statement.format(schema=place.schema).encode())
    place.add_table(
        """create table {schema}.s (id text primary key, a text, b text not null, c text not null default 'c',
           nr serial, no bigint generated always as identity, g text not null generated always as ('g') stored,
           m {schema}.mood, ms {schema}.mood[], d {schema}.short, dd {schema}.shorter, nums numeric(5,2)[])""",
        "s",
    )

    def columns() -> dict[str, Any]:
        (table,) = [table for table in reader.describe().tables if table.name == "s"]
        return {column.name: column for column in table.columns}

    told = columns()
    assert [name for name, column in told.items() if column.refuses_null] == ["id", "b", "c", "nr"]
    labels = {name: tuple(c.enum_labels) for name, c in told.items() if c.enum_labels}
    assert labels == {"m": ("sad", "ok"), "ms": ("sad", "ok")}
    under = {name: c.base_type for name, c in told.items() if c.base_type}
    assert under == dict.fromkeys(("d", "dd"), "character varying(3)")
    assert told["nums"].postgres_type == "numeric(5,2)[]"
    limits_told = reader.describe().limits
    assert limits_told.max_value_bytes == limits.MAX_VALUE_BYTES
    assert limits_told.max_key_bytes == limits.MAX_KEY_BYTES
    # The description is of this moment, whatever was registered.
    place.conn.execute(f"alter type {place.schema}.mood add value 'glad'".encode())
    place.conn.execute(f"alter table {place.schema}.s alter b drop not null".encode())
    told = columns()
    assert (list(told["m"].enum_labels), told["b"].refuses_null) == (["sad", "ok", "glad"], False)
    place.conn.execute(
        f"create function {place.schema}.f() returns trigger language plpgsql as "
        f"$$ begin return new; end $$; create trigger f before update on {place.schema}.s "
        f"for each row execute function {place.schema}.f()".encode()
    )
    assert not any(column.refuses_null for column in columns().values())
    place.conn.execute(f"alter table {place.schema}.s disable trigger f".encode())
    assert columns()["c"].refuses_null
