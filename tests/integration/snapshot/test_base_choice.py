"""Which published base a pull is served from, or why from none: its age, its files, its proof."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.pulled import Pulled, rows
from tests.integration.snapshot.test_pull_base import SETTINGS, allow, from_postgres

from anabranch.store.catalog.registration import add_table
from anabranch.store.retention.floor import databases
from anabranch.store.retention.status import look
from anabranch.testkit.base_writer import BaseWriter
from anabranch.testkit.ingest_rig import failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return SETTINGS


def proofs(place: Any) -> int:
    """How often the process has read rows of the place's bases to prove them."""
    log = place.rig.log().splitlines()
    return sum("proved a published base" in line and place.name in line for line in log)


def damage(file: Path) -> None:
    """The first half of the data turned over, size and footer as they were."""
    content = file.read_bytes()
    file.write_bytes(bytes(b ^ 0xFF if 4 <= i < len(content) // 2 else b for i, b in enumerate(content)))


@pytest.mark.slow
def test_a_base_that_is_not_good_for_a_pull_is_left_and_why_is_counted(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    made = rows(50)
    writer.insert("item", made)

    def pull(reader: Reader | None = None) -> Pulled:
        pulled = Pulled().all((reader or place.make_reader()).pull([("item", b"")]))
        assert pulled.done["item"].rows_done == len(pulled.rows["item"]) == len(made)
        return pulled

    pull()
    assert from_postgres(place, "none") == 1
    manifest = lake.publish()
    pull()
    assert from_parquet() == 1
    # The node has seen, or acknowledged, what the base does not show.
    head = writer.update("item", (made[0][0],), {"n": 5})
    seen, acknowledging = place.make_reader(), place.make_reader()
    seen.seen = seen.get(manifest.to_position).state.settled
    pull(seen)
    acknowledging.get(manifest.to_position)
    acknowledging.acknowledged = head
    pull(acknowledging)
    assert from_postgres(place, "node") == 2
    # The part that it lacks is older than the policy allows; that part, and not the base itself.
    allow(place, 1)
    pull()
    assert from_parquet() == 2
    place.conn.execute("update anabranch.groups set position = position - 61000 where position = %s", (head,))
    place.conn.execute(
        "update anabranch.compactions set to_position = to_position - 70000, from_position = from_position - 70000"
    )
    place.conn.execute("update anabranch.groups set position = position - 70000 where position = %s",
                       (manifest.to_position,))  # fmt: skip
    pull()
    assert from_postgres(place, "old") == 1
    allow(place, 2)
    pull()
    assert from_parquet() == 3
    # A column more: another schema version.
    place.conn.execute("update anabranch.databases set schema_version = schema_version + 1 where name = %s",
                       (place.name,))  # fmt: skip
    pull()
    assert from_postgres(place, "schema") == 1
    place.conn.execute("update anabranch.databases set schema_version = schema_version - 1 where name = %s",
                       (place.name,))  # fmt: skip
    # The log no longer goes back to it.
    place.conn.execute("update anabranch.databases set floor_ms = %s where name = %s",
                       (manifest.to_position - 69_999, place.name))  # fmt: skip
    pull()
    assert from_postgres(place, "floor") == 1
    assert from_parquet() == 3


@pytest.mark.slow
def test_a_table_that_no_base_has_yet_sends_pulls_to_postgres_until_one_has(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    """It was registered after the last run, and a run follows only where a group does."""
    made = rows(1_500, 20_000)
    writer.insert("item", made)
    manifest = lake.publish()
    stream = place.make_reader().pull()
    begun = next(stream)
    stream.cancel()
    assert from_parquet() == 1
    place.conn.execute(f"create table {place.schema}.later (id text primary key)".encode())
    place.conn.execute(f"insert into {place.schema}.later select n::text from generate_series(1, 7) n".encode())
    add_table(place.conn, place.name, "later")
    for _ in range(2):
        pulled = Pulled().all(place.make_reader().pull())
        assert {name: one.rows_done for name, one in pulled.done.items()} == {"item": 1_500, "later": 7}
    assert (from_parquet(), from_postgres(place, "schema")) == (1, 2)
    with pytest.raises(grpc.RpcError) as caught:
        next(place.make_reader().pull([("item", begun.resume)]))
    assert failed(caught.value).reason == "INVALID_TOKEN"
    # The floor is held by the same as before, and nothing waits for the table.
    [kept] = databases(place.conn, place.name)
    found = look(place.conn, kept, time.time_ns() // 1_000_000 + 40 * DAY_MS)
    assert {bound.hold.name for bound in found.bounds} == {"WINDOW", "HEAD", "COMPACTION"}
    assert found.target == manifest.to_position
    place.make_writer().insert("later", [("8",)])
    lake.publish()
    pulled = Pulled().all(place.make_reader().pull())
    assert {name: one.rows_done for name, one in pulled.done.items()} == {"item": 1_500, "later": 8}
    assert from_parquet() == 2


def test_a_file_that_is_missing_or_changed_sends_pulls_to_postgres_and_is_told(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    made = rows(2_000)
    writer.insert("item", made)
    lake.publish(buckets=2)

    def pull() -> None:
        assert sorted(Pulled().all(place.make_reader().pull()).rows["item"]) == sorted(made)

    def broken() -> float:
        return float(place.rig.metric("anabranch_base_broken", database=place.name))

    (first, second) = lake.files("item")
    whole = first.read_bytes(), second.read_bytes()
    first.unlink()
    pull()
    assert (from_parquet(), from_postgres(place, "broken"), broken()) == (0, 1, 1)
    first.write_bytes(whole[0])
    pull()
    assert (from_parquet(), broken()) == (1, 0)
    damage(second)
    pull()
    assert (from_parquet(), from_postgres(place, "broken"), broken()) == (1, 2, 1)
    second.write_bytes(whole[1])
    pull()
    assert (from_parquet(), broken()) == (2, 0)
    manifest = next((lake.root).rglob("_manifests/*.json"))
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "to_position": content["to_position"] + 1}))
    pull()
    assert (from_parquet(), from_postgres(place, "broken"), broken()) == (2, 3, 1)
    assert "the published base is not as proven" in place.rig.log()


@pytest.mark.slow
def test_a_file_that_goes_while_it_is_read_ends_the_pull_and_the_next_one_is_postgres(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    made = sorted(rows(1_500, 20_000))
    writer.insert("item", made)
    lake.publish(buckets=3)
    stream = place.make_reader().pull()
    next(stream)
    for file in lake.files("item"):
        file.unlink()
    with pytest.raises(grpc.RpcError) as caught:
        Pulled().all(stream)
    assert failed(caught.value).reason == "INVALID_TOKEN"
    assert from_parquet() == 1
    assert Pulled().all(place.make_reader().pull()).done["item"].rows_done == 1_500
    assert from_postgres(place, "broken") == 1


@pytest.mark.slow
def test_a_base_that_broke_is_no_matter_once_a_newer_one_is_proven(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    """And files that went of an older one say nothing of the newest."""
    writer.insert("item", rows(1_500, 20_000))
    lake.publish(buckets=3)
    reader = place.make_reader()
    stream = reader.pull()
    resume = next(stream).resume
    # Far more than the transport takes in ahead of its reader: this one is under way as long as nobody reads on.
    slow = place.make_reader().pull()
    next(slow)
    stream.cancel()
    old = lake.files("item")

    def broken() -> float:
        return float(place.rig.metric("anabranch_base_broken", database=place.name))

    whole = old[0].read_bytes()
    old[0].unlink()
    Pulled().all(place.make_reader().pull())
    assert (from_postgres(place, "broken"), broken()) == (1, 1)
    old[0].write_bytes(whole)
    writer.insert("item", rows(1))
    lake.publish(buckets=3)
    begun = from_parquet()
    Pulled().all(place.make_reader().pull())
    assert (from_parquet(), broken()) == (begun + 1, 0)
    for file in old:
        file.unlink()
    for going_on in (slow, reader.pull([("item", resume)])):
        with pytest.raises(grpc.RpcError) as caught:
            Pulled().all(going_on)
        assert failed(caught.value).reason == "INVALID_TOKEN"
        assert broken() == 0
    Pulled().all(place.make_reader().pull())
    assert from_parquet() == begun + 2
    # A proven base stays proven.
    assert proofs(place) == 2


@pytest.mark.slow
def test_readers_that_come_at_once_wait_for_one_proof(
    place: Any, lake: BaseWriter, writer: LogWriter, from_parquet: Callable[[], float]
) -> None:
    writer.insert("item", rows(5_000))
    lake.publish()
    streams = [place.make_reader().pull() for _ in range(4)]
    assert [Pulled().all(stream).done["item"].rows_done for stream in streams] == [5_000] * 4
    assert from_parquet() == 4
    assert proofs(place) == 1
