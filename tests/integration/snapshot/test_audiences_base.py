"""Pulls of restricted tables from Parquet: a caller's rows as they were at the position of the base, or from Postgres
where it is not known what it saw there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.audience_device import Device
from tests.integration.snapshot.audience_writer import (
    BY_TITLE,
    SECRET,
    AudienceWriter,
    learned,
    restrict,
    set_rules,
    team,
    viewer,
)
from tests.integration.snapshot.conftest import PULL_SOURCES
from tests.integration.snapshot.pulled import Pulled, jobs_of

from anabranch.client import RemoteDb, SyncedDb
from anabranch.store.catalog.registration import add_table
from anabranch.testkit.base_writer import BaseWriter
from anabranch.testkit.ingest_rig import failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import until


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {
        "ANABRANCH_JWT_HS256_SECRET": SECRET,
        "ANABRANCH_PULL_BATCH_BYTES": "4096",
        "ANABRANCH_BASE_PROOF_WAIT_MS": "60000",
    }


@pytest.fixture
def from_postgres(place: Any) -> Callable[[], float]:
    """How many pulls of this place came from Postgres because a table is restricted."""
    return lambda: place.rig.metric(PULL_SOURCES, database=place.name, source="postgres", why="restricted")


@pytest.mark.slow
def test_a_base_gives_own_rows_as_they_were_and_the_log_is_followed_from_there(
    restricted: Any, jobs: AudienceWriter, lake: BaseWriter, from_parquet: Callable[[], float]
) -> None:
    jobs.put(("1", "a", "one"), ("2", "b", "two"), ("3", None, "nobody's"), ("4", "a", "four"))
    as_of = jobs.insert("item", [("i", "open", 1, None)])
    lake.publish()
    then = jobs.seen_by(team("a"), team("c"))
    jobs.put(("1", "b", "moved away"), ("2", "a", "moved here"), "4")
    reader = viewer(restricted, "x", "a", "c")
    pulled = Pulled().all(reader.pull())
    assert from_parquet() == 1
    assert jobs_of(pulled) == then
    assert {tuple(row[-1]) for row in pulled.rows["job"]} == {(team("a"),)}
    done = pulled.done["job"]
    assert (done.rows_done, done.as_of.server_timestamp_ms) == (2, as_of)
    assert list(done.audiences.values) == [team("a"), team("c")]
    assert done.without_sums
    assert not done.sums
    assert not done.HasField("sum")
    assert pulled.done["item"].sum.count == 1
    assert not pulled.done["item"].HasField("audiences")
    device = Device(reader)
    device.cursor, device.audiences = as_of, {team("a"), team("c")}
    for *row, whose in pulled.rows["job"]:
        device.rows[row[0]] = (tuple(row), frozenset(whose))
    device.catch_up()
    assert device.seen == jobs.seen_by(team("a"))


@pytest.mark.slow
def test_one_who_sees_little_of_a_base_has_it_from_the_tables(
    restricted: Any, jobs: AudienceWriter, lake: BaseWriter, from_postgres: Callable[[], float]
) -> None:
    """A base is read as a whole, and a table by an index."""
    jobs.put(*((f"{i:03}", "a" if i else "b", "x") for i in range(20)))
    lake.publish()
    assert jobs_of(Pulled().all(viewer(restricted, "x", "b").pull([("job", b"")]))) == jobs.seen_by(team("b"))
    nobody = Pulled().all(viewer(restricted, "n").pull([("job", b"")]))
    assert (nobody.rows, from_postgres()) == ({"job": []}, 2)
    assert nobody.done["job"].HasField("audiences")


def test_neither_tokens_nor_chunks_tell_of_others_rows(
    restricted: Any, jobs: AudienceWriter, lake: BaseWriter, from_parquet: Callable[[], float]
) -> None:
    jobs.put(*((f"{i:04}", "a" if i % 5 == 0 else "b", "x" * 100) for i in range(1_000)))
    lake.publish()
    pulled = Pulled().all(viewer(restricted, "x", "a").pull([("job", b"")]))
    assert from_parquet() == 1
    first, *others, last = pulled.responses
    assert not last.rows_done - others[-1].rows_done
    # Chunks are as large as those of a table of which all is one's own.
    counts = [b.rows_done - a.rows_done for a, b in itertools.pairwise([first, *others])]
    assert min([first.rows_done, *counts[:-1]]) > 15
    for response in pulled.responses:
        assert lake.published[-1].run_id.encode() not in response.resume


def test_a_pull_goes_on_in_the_base_with_the_audiences_that_it_began_with(
    restricted: Any, jobs: AudienceWriter, lake: BaseWriter
) -> None:
    jobs.put(*((f"{i:03}", "ab"[i % 2], "x" * 100) for i in range(300)))
    lake.publish(buckets=3)
    reader = viewer(restricted, "x", "a")
    pulled = Pulled()
    stream = reader.pull([("job", b"")])
    for response in itertools.islice(stream, 2):
        pulled.take(response)
    stream.cancel()
    assert not pulled.done
    resume = pulled.responses[-1].resume
    for another in (viewer(restricted, "x", "b"), viewer(restricted, "x", "a", "b")):
        with pytest.raises(grpc.RpcError) as refused:
            list(another.pull([("job", resume)]))
        assert failed(refused.value).reason == "INVALID_TOKEN"
    # Its rows are of the base, whatever happened since.
    then = jobs.seen_by(team("a"))
    jobs.put("000", ("002", "b", "moved"))
    pulled.all(reader.pull([("job", resume)]))
    assert jobs_of(pulled) == then
    assert pulled.done["job"].rows_done == len(pulled.rows["job"]) == 150


def test_some_audiences_are_pulled_from_the_tables(
    restricted: Any, jobs: AudienceWriter, lake: BaseWriter, from_postgres: Callable[[], float]
) -> None:
    """Rows that a device gains are those of the present."""
    jobs.put(("1", "a", "one"), ("2", "b", "two"))
    lake.publish()
    jobs.put(("2", "b", "changed"))
    reader = viewer(restricted, "x", "a", "b")
    assert jobs_of(Pulled().all(reader.pull([("job", b"")], audiences=[team("b")]))) == jobs.seen_by(team("b"))
    assert from_postgres() == 1


@pytest.fixture
def by_title(place: Any) -> Any:
    """A restricted table whose rows are seen by those whom their titles name."""
    restrict(place, claimed={}, queries=[BY_TITLE])
    jobs = AudienceWriter(place.rig.url, place.name)
    yield jobs
    jobs.close()


def known_since(place: Any, principal: str, position: int) -> None:
    place.conn.execute("update anabranch.principals set seen_ms = %s where principal = %s", (position, principal))


def test_of_one_who_was_known_the_base_shows_what_queries_gave_then(
    place: Any, by_title: AudienceWriter, lake: BaseWriter, from_parquet: Callable[[], float]
) -> None:
    known_since_ms = by_title.put(("1", "a", "one"), ("2", "b", "two"))
    learned(place, "p", team("a"))
    known_since(place, "p", known_since_ms)
    by_title.put(("3", "c", "three"))
    lake.publish()
    then = by_title.seen_by(team("a"))
    by_title.put(("4", "a", "later"), members={"p": ([team("b")], [])})
    pulled = Pulled().all(place.make_reader(subject="p").pull())
    assert from_parquet() == 1
    assert jobs_of(pulled) == then
    assert list(pulled.done["job"].audiences.values) == [team("a")], "what was gained since is gained by the log"


@pytest.mark.parametrize("why", ["learned later", "lost since", "never seen"])
def test_of_others_the_tables_are_read(
    place: Any, by_title: AudienceWriter, lake: BaseWriter, from_postgres: Callable[[], float], why: str
) -> None:
    position = by_title.put(("1", "a", "one"), ("2", "b", "p"))
    if why != "never seen":
        learned(place, "p", team("a"), team("b"))
        known_since(place, "p", position if why == "learned later" else position - 1)
    lake.publish()
    lost: dict[str, tuple[list[str], list[str]]] = {"p": ([], [team("a")])} if why == "lost since" else {}
    by_title.put(("3", "a", "three"), ("4", "b", "four"), members=lost)
    pulled = Pulled().all(place.make_reader(subject="p").pull())
    assert from_postgres() == 1
    seen = [team("b")] if why != "learned later" else [team("a"), team("b")]
    assert jobs_of(pulled) == by_title.seen_by(*seen)


@pytest.mark.slow
def test_a_pull_that_has_waited_for_its_turn_is_for_those_who_still_may(
    place: Any, by_title: AudienceWriter, lake: BaseWriter, tmp_path: Path
) -> None:
    position = by_title.put(("1", "a", "one"), ("2", "b", "p"))
    by_title.insert("item", [(str(i), "x" * 50_000, i, None) for i in range(400)])
    learned(place, "p", team("a"), team("b"))
    known_since(place, "p", position - 1)
    lake.publish()
    environment = {"ANABRANCH_PULL_SESSIONS": "1", "ANABRANCH_BASE_PROOF_WAIT_MS": "60000"}
    with SnapshotRig(place.rig.url, tmp_path, environment=environment) as rig:
        slow, waits = rig.reader(place.name), rig.reader(place.name, subject="p")
        stream = slow.pull([("item", b"")], timeout_s=None)
        next(stream)
        pull = waits.pull([("job", b"")])
        until(lambda: rig.metric("anabranch_pulls", state="waiting") == 1, 30)
        assert rig.metric(PULL_SOURCES, database=place.name, source="parquet") == 2
        by_title.put(("3", "b", "three"), members={"p": ([], [team("a")])})
        stream.cancel()
        with pytest.raises(grpc.RpcError) as refused:
            list(pull)
        assert failed(refused.value).reason == "UNAVAILABLE"
        assert jobs_of(Pulled().all(waits.pull([("job", b"")]))) == by_title.seen_by(team("b"))
        for one in (slow, waits):
            one.close()


def test_where_policies_decide_the_tables_are_read(
    restricted: Any, jobs: AudienceWriter, lake: BaseWriter, from_postgres: Callable[[], float]
) -> None:
    role = f"anabranch_test_{restricted.name}"
    schema, conn = restricted.schema, restricted.conn
    jobs.put(("1", "a", "one"))
    conn.execute(f"create role {role}".encode())
    try:
        conn.execute(f"grant usage on schema {schema} to {role}; grant select on {schema}.job to {role}".encode())
        set_rules(restricted, {"teams": "team"}, rls=role)
        lake.publish()
        assert jobs_of(Pulled().all(viewer(restricted, "x", "a").pull([("job", b"")]))).keys() == {"1"}
        assert from_postgres() == 1
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}".encode())


ODD = """
create table {schema}.odd (id int primary key, d double precision, n numeric, whose text[], at timestamptz, j jsonb)
"""
OF_ODD = (
    "array[case when d::text = '-0' then 'team:minus' else 'team:' || d::text end, 'team:' || n::text,"
    " case when at is null then 'team:null' end, j ->> 'team'] || whose"
)
ODD_ROWS = (
    (0.0, "1.0", None, "2026-01-01", None),
    (-0.0, "1.00", ["team:x", None, ""], None, '{"team": "team:j"}'),
    (float("nan"), None, ["team:x"], "1999-12-31", "{}"),
    (None, None, None, None, None),
    (1.5, "1.0", ["team:y"], "2026-01-01", None),
)


@pytest.mark.slow
def test_an_expression_over_columns_of_many_kinds_gives_what_it_gives_in_postgres(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    writer.insert("item", [("i", "open", 1, None)])
    place.conn.execute(ODD.format(schema=place.schema).encode())
    add_table(place.conn, place.name, "odd", audience=OF_ODD)
    set_rules(place, {"teams": "team"})
    insert = f"insert into {place.schema}.odd values (%s, %s, %s, %s, %s, %s)".encode()
    for i in range(40):
        place.conn.execute(insert, (i, *ODD_ROWS[i % len(ODD_ROWS)]))
    names = ["0", "minus", "1.0", "1.00", "x", "y", "j", "NaN", "null", "1.5", "other"]
    readers = {name: viewer(place, f"of {name}", name) for name in names}

    def of(reader: Reader) -> list[tuple[Any, ...]]:
        pulled = Pulled().all(reader.pull([("odd", b"")]))
        return sorted((row[0], tuple(row[-1])) for row in pulled.rows["odd"])

    from_tables = {name: of(reader) for name, reader in readers.items()}
    assert [len(found) for found in from_tables.values()] == [8, 8, 16, 8, 16, 8, 8, 8, 16, 8, 0]
    lake.publish(buckets=2)
    assert {name: of(reader) for name, reader in readers.items()} == from_tables
    assert from_parquet() == len(names)


def test_a_device_begins_with_a_base_and_its_sums_agree(
    restricted: Any, jobs: AudienceWriter, lake: BaseWriter, from_parquet: Callable[[], float], tmp_path: Path
) -> None:
    jobs.put(*((f"{i:03}", "abc"[i % 3], "x" * 100) for i in range(300)))
    lake.publish(buckets=3)
    jobs.put("000", ("001", "a", "moved here"), ("003", "b", "moved away"))
    reader = viewer(restricted, "x", "a", "c")
    remote = RemoteDb(
        snapshot=restricted.rig.addresses[0], ingest="127.0.0.1:9", resolver="127.0.0.1:9", token=reader.key
    )
    device = SyncedDb(tmp_path / "device.db", remote, restricted.name, "x")
    try:
        device.read()
        assert from_parquet() == 1
        mine = jobs.seen_by(team("a"), team("c"))
        assert {row[0]: tuple(row) for row in device.execute("select * from job")} == mine
        assert device.status().disagreeing == ()
        # Sums that came with no row since are compared, too.
        jobs.put(("300", "a", "later"))
        device.read()
        assert device.status().disagreeing == ()
        assert len(device.execute("select * from job").fetchall()) == len(mine) + 1
    finally:
        device.close()
