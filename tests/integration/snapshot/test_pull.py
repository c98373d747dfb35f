"""Whole tables of one moment: resumed where they broke, in constant memory, and never kept open for nobody."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest
from ulid import ULID

from anabranch.columnar.arrow_types import arrow_schema
from anabranch.columnar.chunks import from_ipc
from anabranch.store.catalog import load_database
from anabranch.store.engine import connect
from anabranch.store.registration import add_table
from anabranch.testkit.ingest_rig import Failed, failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.v1 import change_pb2, snapshot_pb2

MIB = 1024 * 1024
STALL_MS = 3_000
OPEN = """select count(*) from pg_stat_activity
          where application_name = 'anabranch-snapshot-pull' and datname = current_database()
            and xact_start is not null"""


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_PULL_STALL_MS": str(STALL_MS),
        "ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024),
        "ANABRANCH_PULL_LOCK_TIMEOUT_MS": "5000",
    }


def rows(count: int, size: int = 20) -> list[tuple[Any, ...]]:
    return [(str(ULID()), f"title {i}", i, bytes([i % 256]) * size) for i in range(count)]


class Pulled:
    """What a pull brought: rows by table, its chunks' tables and parts in order, and the last response."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.responses: list[snapshot_pb2.PullResponse] = []
        self._ipc = b""

    def take(self, response: snapshot_pb2.PullResponse) -> None:
        self._ipc += response.arrow_ipc
        if response.arrow_ipc_incomplete:
            return
        found = self.rows.setdefault(response.table, [])
        if self._ipc:
            columns = [column.to_pylist() for column in from_ipc(self._ipc).columns]
            found.extend(zip(*columns, strict=True))
        self._ipc = b""
        response.arrow_ipc = b""
        self.responses.append(response)

    def all(self, stream: Any) -> Pulled:
        for response in stream:
            assert response.ByteSize() < 4 * MIB
            self.take(response)
        return self

    @property
    def done(self) -> dict[str, snapshot_pb2.PullResponse]:
        return {response.table: response for response in self.responses if response.done}


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


def apply(held: dict[str, Any], group: change_pb2.LoggedGroup) -> None:
    for batch in group.batches:
        for data in batch.effects:
            effect = change_pb2.Effect.FromString(data)
            key = effect.values[0].string_value
            if effect.type == change_pb2.EFFECT_TYPE_DELETE:
                del held[key]
                continue
            row = list(held.get(key, (None,) * 4))
            for name, value in zip(effect.columns, effect.values, strict=True):
                row[("id", "title", "n", "data").index(name)] = getattr(value, str(value.WhichOneof("kind")))
            held[key] = tuple(row)


def pull_and_cut(reader: Reader, pulled: Pulled, resume: bytes) -> snapshot_pb2.PullResponse:
    """Go on with a pull of ``item`` for two responses, and break it off; gives the last one."""
    stream = reader.pull([("item", resume)])
    response: snapshot_pb2.PullResponse
    for response in itertools.islice(stream, 2):
        pulled.take(response)
        if response.done:
            break
    stream.cancel()
    return response


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
        wait_for(lambda: place.conn.execute(waiting).fetchone()[0] > 0)
        other.commit()
        thread.join(20)
    assert result[0].rows["item"] == [("a", "after", 1, None)]


def test_o13_a_truncate_of_a_table_that_is_yet_to_be_read_waits(place: Any, writer: LogWriter, reader: Reader) -> None:
    place.add_table("create table {schema}.later (id text primary key references {schema}.item)", "later")
    # Far more than the transport takes in ahead of its reader: the pull is under way as long as nobody reads on.
    writer.insert("item", rows(1_600, 50_000))
    stream = reader.pull()
    next(stream)
    with connect(place.rig.url, application_name="test", autocommit=True) as other:
        other.execute("set lock_timeout = 200")
        with pytest.raises(Exception, match="lock timeout"):
            other.execute(f"truncate {place.schema}.later".encode())
    stream.cancel()


@pytest.fixture(scope="module")
def narrow(module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnapshotRig]:
    """A process with little patience and room for one pull."""
    environment = {
        "ANABRANCH_PULL_SESSIONS": "1",
        "ANABRANCH_PULL_WAITING": "1",
        "ANABRANCH_PULL_LOCK_TIMEOUT_MS": "100",
    }
    with SnapshotRig(module_url, tmp_path_factory.mktemp("narrow"), environment=environment) as one:
        yield one


def test_a_lock_that_is_not_to_be_had_is_told_as_unavailable(
    narrow: SnapshotRig, place: Any, writer: LogWriter
) -> None:
    reader = narrow.reader(place.name)
    with connect(place.rig.url, application_name="test") as other:
        other.execute(f"lock table {place.schema}.item in access exclusive mode".encode())
        with pytest.raises(grpc.RpcError) as caught:
            next(reader.pull())
        assert failed(caught.value).reason == "UNAVAILABLE"
    assert Pulled().all(reader.pull()).done["item"].rows_done == 0
    reader.close()


def test_l06_a_stalled_client_does_not_hold_its_transaction_and_can_go_on(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    made = sorted(rows(400, 50_000))
    writer.insert("item", made)
    pulled = Pulled()
    stream = reader.pull(timeout_s=None)
    pulled.take(next(stream))
    assert place.conn.execute(OPEN).fetchone() == (1,)
    started = time.monotonic()
    wait_for(lambda: place.conn.execute(OPEN).fetchone() == (0,))
    assert time.monotonic() - started < STALL_MS / 1000 + 3
    with pytest.raises(grpc.RpcError) as caught:
        pulled.all(stream)
    assert failed(caught.value).reason == "UNAVAILABLE"
    assert 0 < len(pulled.rows["item"]) < 400
    pulled.all(reader.pull([("item", pulled.responses[-1].resume)]))
    assert [row[:3] for row in pulled.rows["item"]] == [row[:3] for row in made]


def test_sessions_that_postgres_ends_cost_a_resumption_and_nothing_else(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    made = sorted(rows(400, 50_000))
    writer.insert("item", made)
    pulled = Pulled()
    stream = reader.pull()
    pulled.take(next(stream))
    # The one that is kept for later pulls as well.
    (ended,) = place.conn.execute(
        """select count(pg_terminate_backend(pid)) from pg_stat_activity
           where application_name = 'anabranch-snapshot-pull' and datname = current_database()"""
    ).fetchone()
    assert ended >= 2
    with pytest.raises(grpc.RpcError) as caught:
        pulled.all(stream)
    assert failed(caught.value).reason == "UNAVAILABLE"
    pulled.all(reader.pull([("item", pulled.responses[-1].resume)]))
    assert [row[:3] for row in pulled.rows["item"]] == [row[:3] for row in made]


def test_a_pull_whose_client_went_away_ends_at_once(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(400, 50_000))
    stream = reader.pull()
    next(stream)
    stream.cancel()
    wait_for(lambda: place.conn.execute(OPEN).fetchone() == (0,), STALL_MS / 1000 * 0.8)


def test_a_row_of_9_mb_passes_in_parts_through_a_default_channel(place: Any, writer: LogWriter, reader: Reader) -> None:
    made = sorted([*rows(3), (str(ULID()), "large", 1, bytes(range(256)) * 36_000)])
    writer.insert("item", made)
    stream = list(reader.pull())
    assert any(response.arrow_ipc_incomplete for response in stream)
    assert all(response.ByteSize() < 4 * MIB for response in stream)
    assert Pulled().all(stream).rows["item"] == made


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
    with pytest.raises(Failed) as caught:
        reader.describe()
    assert caught.value.reason == "UNKNOWN_DATABASE"


def test_while_a_pull_runs_the_log_is_kept_from_its_moment_on(place: Any, writer: LogWriter, reader: Reader) -> None:
    head = writer.insert("item", rows(500, 20_000))
    stream = reader.pull()
    next(stream)
    query = "select acknowledged from anabranch.nodes where node_id = %s"
    wait_for(lambda: place.conn.execute(query, (reader.node.id,)).fetchone() == (head,))
    stream.cancel()


def test_only_so_many_read_at_once_and_only_so_many_wait(narrow: SnapshotRig, place: Any, writer: LogWriter) -> None:
    writer.insert("item", rows(400, 50_000))
    reader = narrow.reader(place.name)
    first = reader.pull()
    next(first)
    second = reader.pull()
    wait_for(lambda: narrow.metric("anabranch_pulls", state="waiting") == 1)
    assert narrow.metric("anabranch_pulls", state="reading") == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(reader.pull())
    assert failed(caught.value).reason == "OVERLOADED"
    first.cancel()
    assert Pulled().all(second).done["item"].rows_done == 400
    reader.close()


def test_chunks_have_the_declared_schema(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(10))
    chunk = next(reader.pull())
    assert from_ipc(chunk.arrow_ipc).schema == arrow_schema(writer.table("item"))
    assert pa.ipc.open_stream(chunk.arrow_ipc).schema == arrow_schema(writer.table("item"))


def wait_for(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
