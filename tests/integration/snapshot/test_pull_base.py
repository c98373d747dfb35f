"""Pulls from Parquet: the same rows as from Postgres, whose tables nobody touches, or Postgres itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tests.integration.snapshot.conftest import PULL_SOURCES
from tests.integration.snapshot.pulled import MIB, Pulled, apply, pull_and_cut, rows
from tests.integration.snapshot.test_types import ODD_TABLE, make_every_type, pulled_cells, require_same
from ulid import ULID

from anabranch.columnar.base_reader import RowPlace
from anabranch.columnar.chunks import from_ipc
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table
from anabranch.store.cells.binary_cells import quote
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.seal import open_content, seal_content
from anabranch.store.session.engine import connect
from anabranch.testkit.base_writer import BaseWriter, FileRows
from anabranch.testkit.ingest_rig import Device, IngestRig, failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import until
from anabranch.v1 import errors_pb2
from anabranch_snapshot.pulls.resume_tokens import BasePlace, PullProgress, from_token, to_token

SETTINGS = {
    "ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024),
    "ANABRANCH_BASE_RETRY_MS": "0",
    "ANABRANCH_BASE_PROOF_WAIT_MS": "60000",
}


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return SETTINGS


def from_postgres(place: Any, why: str) -> float:
    """How many pulls of this place came from Postgres, for that reason."""
    return float(place.rig.metric(PULL_SOURCES, database=place.name, source="postgres", why=why))


def allow(place: Any, minutes: int) -> None:
    """Set the policy, but not by the way that makes another schema version of it."""
    policy = json.dumps({"pull_base_max_age_minutes": minutes})
    place.conn.execute("update anabranch.databases set policy = %s where name = %s", (policy, place.name))


@pytest.mark.slow
def test_a_base_is_pulled_while_nobody_may_touch_the_table_and_the_log_is_followed_from_there(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    made = rows(3_000)
    as_of = writer.insert("item", made)
    lake.publish(buckets=3)
    writer.update("item", (made[0][0],), {"n": -1})
    writer.delete("item", (made[1][0],))
    writer.insert("item", rows(2))
    reader = place.make_reader()
    with connect(place.rig.url, application_name="test") as other:
        other.execute(f"lock table {place.schema}.item in access exclusive mode".encode())
        pulled = Pulled().all(reader.pull())
    assert sorted(pulled.rows["item"]) == sorted(made)
    assert {response.as_of.server_timestamp_ms for response in pulled.responses} == {as_of}
    assert pulled.done["item"].rows_done == 3_000
    assert pulled.responses[0].state.settled.server_timestamp_ms > as_of
    assert from_parquet() == 1
    groups = whole_groups(reader.pages())
    assert pulled.done["item"].sum == next(g for g in groups if g.position == as_of).sums[0]
    # The history has the position that the reader has seen: it is sealed with the chain that it had there.
    reader.seen = pulled.responses[-1].as_of
    held = {row[0]: row for row in pulled.rows["item"]}
    for group in whole_groups(reader.pages(as_of)):
        apply(held, group)
    assert held == {row[0]: row for row in place.conn.execute(f"select * from {place.schema}.item".encode())}


def test_tables_that_the_service_may_not_read_are_pulled_all_the_same(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    place.add_table("create table {schema}.a (id text primary key, item text references {schema}.item)", "a")
    place.make_writer().insert("item", rows(5))
    lake.publish()
    place.conn.execute(f"alter table {place.schema}.item rename to hidden".encode())
    try:
        pulled = Pulled().all(place.make_reader().pull())
    finally:
        place.conn.execute(f"alter table {place.schema}.hidden rename to item".encode())
    assert {name: len(found) for name, found in pulled.rows.items()} == {"item": 5, "a": 0}
    assert pulled.done["a"].sum.count == 0
    assert from_parquet() == 1


@pytest.mark.slow
def test_every_type_comes_back_bit_for_bit_from_parquet(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    writer.insert("item", rows(1))
    place.conn.execute("drop schema if exists app cascade")
    table, expected = make_every_type(place)
    lake.publish()
    found = pulled_cells(place.make_reader(), table)
    assert from_parquet() == 1
    require_same(table, found, expected)
    # And as a pull from Postgres has it, types of columns included.
    allow(place, 0)
    require_same(table, pulled_cells(place.make_reader(), table), found)
    assert from_parquet() == 1


def test_odd_names_are_columns_of_files_like_any_others(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    writer.insert("item", rows(1))
    names = ["anabranch", "a", "a.b", 'q"q', "Mixed Case", "%s", "tab\t", "deleted", "anabranch.exact"]
    columns = ", ".join(f"{quote(name)} numeric(9,3)" for name in names)
    relation = f"{place.schema}.{quote(ODD_TABLE)}"
    place.conn.execute(f"create table {relation} (id timestamp primary key, {columns})".encode())
    values = ", ".join(str(i + 0.5) for i in range(len(names)))
    place.conn.execute(f"insert into {relation} values ('infinity', {values}), ('294270-1-1', {values})".encode())
    add_table(place.conn, place.name, ODD_TABLE)
    wanted = pulled_cells(place.make_reader(), load_database(place.conn, place.name).tables[ODD_TABLE])
    lake.publish()
    table = load_database(place.conn, place.name).tables[ODD_TABLE]
    found = pulled_cells(place.make_reader(), table)
    assert from_parquet() == 1
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    assert found[0][1:] == [f"{i + 0.5:.3f}" for i in range(len(names))]


def test_l10_a_pull_from_parquet_that_is_cut_again_and_again_ends_complete(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    made = rows(4_000, 200)
    as_of = writer.insert("item", made)
    changed = [(made[i][0], "changed", i, None) for i in range(0, 900, 3)]
    gone = [(made[i][0], None, None, None) for i in range(1, 900, 3)]
    whole, left = made[:2_000], made[2_000:]
    files = [
        FileRows(whole, 1),
        FileRows(left, 1, bucket=1),
        FileRows(changed, as_of, delta=True),
        FileRows(gone, as_of, True, True),
    ]
    lake.publish({"item": files}, buckets=2)
    reader, pulled, resume = place.make_reader(), Pulled(), b""
    for cut in range(200):
        response = pull_and_cut(reader, pulled, resume)
        if response.done:
            break
        resume = response.resume
        # A write and a base that come meanwhile are nothing to it.
        writer.update("item", (made[0][0],), {"n": cut})
        if cut == 3:
            lake.publish(buckets=2)
    assert response.done
    assert cut >= 4
    assert from_parquet() == cut + 1
    assert {response.as_of.server_timestamp_ms for response in pulled.responses} == {as_of}
    dropped = {row[0] for row in gone}
    server = {row[0]: row for row in [*made, *changed] if row[0] not in dropped}
    found = pulled.rows["item"]
    assert len(found) == len(server) == response.rows_done
    assert {row[0]: row for row in found} == server
    # One that goes on from rows of Postgres stays with Postgres.
    allow(place, 0)
    stream = reader.pull()
    first = next(stream)
    stream.cancel()
    allow(place, 360)
    assert Pulled().all(reader.pull([("item", first.resume)])).done["item"].rows_done == 4_000
    assert from_postgres(place, "resumed") == 1


@pytest.mark.slow
def test_a_client_that_takes_nothing_gives_its_turn_back_and_goes_on_later(
    place: Any, lake: BaseWriter, writer: LogWriter, tmp_path: Path
) -> None:
    made = rows(1_500, 20_000)
    writer.insert("item", made)
    lake.publish(buckets=3)
    environment = {
        "ANABRANCH_PULL_SESSIONS": "1",
        "ANABRANCH_PULL_WAITING": "1",
        "ANABRANCH_PULL_STALL_MS": "3000",
        "ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024),
        "ANABRANCH_BASE_PROOF_WAIT_MS": "60000",
    }
    with SnapshotRig(place.rig.url, tmp_path, environment=environment) as narrow:
        for minutes in (360, 0):
            # From Parquet, and then from Postgres.
            allow(place, minutes)
            stalled, reader = narrow.reader(place.name), narrow.reader(place.name)
            stream, pulled = stalled.pull(timeout_s=None), Pulled()
            pulled.take(next(stream))
            first = next(reader.pull(timeout_s=60.0))
            assert first.rows_done
            reader.close()
            with pytest.raises(grpc.RpcError) as caught:
                pulled.all(stream)
            assert failed(caught.value).reason == "UNAVAILABLE"
            assert 0 < len(pulled.rows["item"]) < 1_500
            resume = pulled.responses[-1].resume
            pulled.all(stalled.pull([("item", resume)], timeout_s=60.0))
            assert sorted(row[0] for row in pulled.rows["item"]) == sorted(row[0] for row in made)
            stalled.close()
        sources = [narrow.metric(PULL_SOURCES, database=place.name, source=one) for one in ("parquet", "postgres")]
    assert sources == [3, 3]


def test_a_token_of_another_form_is_none_that_was_given(place: Any) -> None:
    """An older or newer release's, say."""
    database = load_database(place.conn, place.name)
    table, key = database.tables["item"], database.seal_key
    place_of = PullProgress(None, 7, 3, BasePlace("run", RowPlace(2, 5)))
    assert from_token(database, table, to_token(database, table, place_of)) == place_of
    keyed = PullProgress(("k",), 7, 3, SeenGroup(5, b"chain"))
    assert from_token(database, table, to_token(database, table, keyed)) == keyed
    # A release that knows of no places, or of no moments, opens what is sealed as "resume".
    old, new = f"resume\0{database.epoch}", f"resume-key\0{database.epoch}"
    assert open_content(key, old, to_token(database, table, place_of)) is None
    assert open_content(key, old, to_token(database, table, keyed)) is None
    contents: list[Any] = [[table.id, None, 7, 3, "run", 2, 5], [table.id, None, 7], [table.id], [], {}, 7, None]
    for purpose, content in [*((new, content) for content in contents), (old, [table.id, ["k"], 7, 3])]:
        token = seal_content(key, purpose, json.dumps(content).encode())
        with pytest.raises(CallError) as caught:
            from_token(database, table, token)
        assert caught.value.reason == errors_pb2.REASON_INVALID_TOKEN


def test_a_pull_that_can_not_go_on_from_its_base_is_told_to_begin_anew(
    place: Any, lake: BaseWriter, writer: LogWriter
) -> None:
    writer.insert("item", rows(3_000, 100))
    manifest = lake.publish()
    reader = place.make_reader()
    stream = reader.pull()
    resume = next(stream).resume
    stream.cancel()
    last = writer.insert("item", rows(1))
    place.conn.execute("update anabranch.databases set floor_ms = %s where name = %s", (last, place.name))
    assert last > manifest.to_position
    with pytest.raises(grpc.RpcError) as caught:
        next(reader.pull([("item", resume)]))
    assert failed(caught.value).reason == "INVALID_TOKEN"
    assert Pulled().all(reader.pull()).done["item"].rows_done == 3_001


def test_the_log_is_kept_from_the_base_on_for_who_has_pulled_it(
    place: Any, lake: BaseWriter, writer: LogWriter, reader: Reader
) -> None:
    as_of = writer.insert("item", rows(10))
    lake.publish()
    writer.insert("item", rows(10))
    next(reader.pull())
    stored = "select acknowledged from anabranch.nodes where node_id = %s"
    assert place.conn.execute(stored, (reader.node.id,)).fetchone() == (as_of,)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["parquet", "postgres"])
def test_what_a_node_writes_during_its_first_pull_takes_nothing_from_the_pulls_hold_on_the_log(
    place: Any, lake: BaseWriter, writer: LogWriter, tmp_path: Path, source: str, from_parquet: Callable[[], float]
) -> None:
    """And the pull goes on from where it stands, also with a verdict that lies beyond what it shows."""
    as_of = writer.insert("item", rows(3_000, 100))
    if source == "parquet":
        lake.publish()
    subject = f"user-{ULID()}"
    reader = place.make_reader(subject=subject)
    with IngestRig(place.rig.url, tmp_path) as ingest:
        device = Device(ingest.addresses[0], reader.key, place.name, reader.node.id)
        stored = "select acknowledged from anabranch.nodes where node_id = %s"

        def acknowledged() -> int:
            found = place.conn.execute(stored, (reader.node.id,)).fetchone()
            return 0 if found is None else int(found[0])

        stream = reader.pull()
        first = next(stream)
        until(lambda: acknowledged() == as_of, 10)
        stream.cancel()
        head = writer.insert("item", rows(1))
        # Nobody decides here: it is answered that they wait. The first call has no token yet, the second has one.
        for _ in range(2):
            settled = device.send(device.payload(), timeout_s=1.0).state.settled
            assert settled.server_timestamp_ms == head
        assert acknowledged() == as_of
    reader.seen = settled
    pulled = Pulled()
    pulled.take(first)
    pulled.all(reader.pull([("item", first.resume)]))
    # From Postgres also the row that came meanwhile, where its key lies behind what the first part brought.
    assert pulled.done["item"].rows_done - 3_000 in ((0,) if source == "parquet" else (0, 1))
    assert from_parquet() == (2 if source == "parquet" else 0)


@pytest.mark.slow
def test_the_servers_memory_does_not_follow_the_tables_size(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    made = rows(600, 100_000)
    writer.insert("item", made)
    lake.publish(buckets=4)
    (pid,) = [child.pid for child in place.rig.children]
    process = psutil.Process(pid)

    def pull() -> int:
        most = count = 0
        for response in place.make_reader().pull():
            most = max(most, process.memory_info().rss)
            count += len(from_ipc(response.arrow_ipc)) if response.arrow_ipc else 0
        assert count == 600
        return most

    # The first one proves the base, too.
    first = pull()
    assert max(pull() for _ in range(3)) < first + 40 * MIB
    assert from_parquet() == 4
