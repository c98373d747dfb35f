"""Restricted tables as a whole: pulls, comparisons, and what Describe says of them."""

from __future__ import annotations

import queue
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.audience_device import held
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
from tests.integration.snapshot.pulled import Pulled, jobs_of

from anabranch.ranges import WHOLE, KeyRange, RangeSums
from anabranch.store.catalog.registration import add_table
from anabranch.testkit.ingest_rig import failed
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import snapshot_pb2, value_pb2
from anabranch.values.messages import column_reader


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {"ANABRANCH_JWT_HS256_SECRET": SECRET, "ANABRANCH_PULL_BATCH_BYTES": "4096"}


@pytest.mark.slow
def test_a_pull_has_own_rows_with_their_audiences(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(("1", "a", "one"), ("2", "b", "two"), ("3", None, "nobody's"), ("4", "a", "four"))
    head = jobs.insert("item", [("i", "open", 1, None)])
    pulled = Pulled().all(viewer(restricted, "x", "a", "c").pull())
    assert jobs_of(pulled) == jobs.seen_by(team("a"))
    assert {tuple(row[-1]) for row in pulled.rows["job"]} == {(team("a"),)}
    done = pulled.done["job"]
    assert (done.rows_done, done.as_of.server_timestamp_ms) == (2, head)
    assert list(done.audiences.values) == [team("a"), team("c")]
    assert not done.HasField("sum")
    assert [(one.table, one.audience, one.count, one.hash) for one in done.sums] == [
        ("job", team("a"), *jobs.sum_of(team("a")))
    ]
    assert pulled.done["item"].sum.count == 1
    assert not pulled.done["item"].HasField("audiences")
    nobody = Pulled().all(viewer(restricted, "n").pull([("job", b"")]))
    assert nobody.rows == {"job": []}
    assert nobody.done["job"].HasField("audiences")


def test_a_pull_of_some_audiences(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(("1", "a", "one"), ("2", "b", "two"), ("3", "c", "three"))
    reader = viewer(restricted, "x", "a", "b")
    pulled = Pulled().all(reader.pull([("job", b"")], audiences=[team("b"), team("c")]))
    assert jobs_of(pulled) == jobs.seen_by(team("b"))
    assert list(pulled.done["job"].audiences.values) == [team("a"), team("b")]
    reader.held = held(choice=[team("a")])
    assert jobs_of(Pulled().all(reader.pull())) == jobs.seen_by(team("a"))


@pytest.mark.slow
def test_audiences_of_a_list(place: Any) -> None:
    place.conn.execute(f"create table {place.schema}.paper (id text primary key, whose text[])".encode())
    add_table(place.conn, place.name, "paper", audience="whose")
    set_rules(place, {"teams": "team"})
    odd = ['q"uote', "back\\slash", "com,ma", "{brace}"]
    insert = f"insert into {place.schema}.paper values (%s, %s)".encode()
    for key, whose in (("1", [team("a"), team("b"), None, ""]), ("2", [team("c")]), ("3", None), ("4", [team(odd[0])])):
        place.conn.execute(insert, (key, whose))
    pulled = Pulled().all(viewer(place, "x", "b", *odd).pull([("paper", b"")]))
    assert [(row[0], list(row[-1])) for row in pulled.rows["paper"]] == [
        ("1", [team("a"), team("b")]),
        ("4", [team(odd[0])]),
    ]


def test_a_pull_goes_on_with_the_audiences_that_it_began_with(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(*((f"k{i:04}", "ab"[i % 2], "x" * 100) for i in range(300)))
    reader = viewer(restricted, "x", "a")
    pulled = Pulled()
    stream = reader.pull([("job", b"")])
    for response in stream:
        pulled.take(response)
        if response.resume:
            break
    stream.cancel()
    resume = pulled.responses[-1].resume
    assert not pulled.done
    other = viewer(restricted, "x", "b")
    for another, audiences in ((other, []), (viewer(restricted, "x", "a", "b"), []), (reader, [team("z")])):
        with pytest.raises(grpc.RpcError) as refused:
            list(another.pull([("job", resume)], audiences=audiences))
        assert failed(refused.value).reason == "INVALID_TOKEN"
    pulled.all(reader.pull([("job", resume)]))
    assert jobs_of(pulled) == jobs.seen_by(team("a"))
    assert pulled.done["job"].rows_done == 150


def test_a_pull_by_memberships_is_of_one_moment(place: Any) -> None:
    restrict(place, claimed={}, queries=[BY_TITLE])
    jobs = AudienceWriter(place.rig.url, place.name)
    learned(place, "p", team("b"))
    jobs.put(("1", "a", "new"), ("2", "b", "two"))
    pulled = Pulled().all(place.make_reader(subject="p").pull())
    assert jobs_of(pulled) == jobs.seen_by(team("b"))
    # One whom nobody knows yet.
    pulled = Pulled().all(place.make_reader(subject="new").pull())
    assert jobs_of(pulled) == jobs.seen_by(team("a"))
    assert list(pulled.done["job"].audiences.values) == [team("a")]
    jobs.close()


def test_describe_does_not_count_rows_of_a_restricted_table(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(("1", "a", "one"))
    jobs.insert("item", [("i", "open", 1, None)])
    described = {table.name: table for table in viewer(restricted, "x", "a").describe().tables}
    assert (described["job"].restricted, described["job"].estimated_rows) == (True, 0)
    assert (described["item"].restricted, described["item"].estimated_rows) == (False, 1)


class Comparison:
    """One call of Compare."""

    def __init__(self, reader: Reader) -> None:
        self.asked: queue.SimpleQueue[snapshot_pb2.CompareRequest | None] = queue.SimpleQueue()
        self.call: Any = reader.compare("job", iter(self.asked.get, None))

    def answer(self) -> list[snapshot_pb2.CompareResponse]:
        found = []
        for response in self.call:
            found.append(response)
            if response.done:
                break
        return found


@pytest.mark.parametrize("undrained", [False, True])
def test_a_comparison_is_of_own_rows(restricted: Any, jobs: AudienceWriter, undrained: bool) -> None:
    jobs.put(*((f"{i}", "ab"[i % 2], "x") for i in range(20)))
    if undrained:
        restricted.conn.execute("select set_config('anabranch.resolver', '', false)")
        schema = restricted.schema
        for statement in (
            f"update {schema}.job set title = 'undrained' where id = '2'",
            f"update {schema}.job set team = 'a' where id = '1'",
            f"update {schema}.job set team = 'b' where id = '4'",
            f"delete from {schema}.job where id = '6'",
            f"insert into {schema}.job values ('new', 'a', 'undrained')",
        ):
            restricted.conn.execute(statement.encode())
        table = (jobs.table("job").id,)
        waiting = restricted.conn.execute("select count(*) from anabranch.captured where table_id = %s", table)
        assert waiting.fetchone() == (5,)
    one = Comparison(viewer(restricted, "x", "a"))
    opening, *parts = one.answer()
    assert not opening.HasField("sum")
    expected = RangeSums()
    mine = jobs.seen_by(team("a"))
    expected.add(jobs.encoder, mine.values())
    got = {KeyRange(s.range.bits, s.range.prefix): (s.count, s.hash) for p in parts for s in p.sums}
    assert got == {part: (found.rows, found.hash.to_bytes(16, "big")) for part, found in expected.parts(WHOLE).items()}
    assert (parts[0].sum.count, parts[0].sum.hash) == jobs.sum_of(team("a"))
    one.asked.put(snapshot_pb2.CompareRequest(read=[snapshot_pb2.KeyRange(bits=0, prefix=0)]))
    readers = [column_reader(column) for column in jobs.table("job").columns]
    rows = [
        tuple(read(value) for read, value in zip(readers, value_pb2.Row.FromString(data).values, strict=True))
        for response in one.answer()
        for data in response.rows
    ]
    assert sorted(rows, key=str) == sorted(mine.values(), key=str)
    one.asked.put(None)


def test_where_a_role_is_named_its_policies_decide_a_pull_too(restricted: Any, jobs: AudienceWriter) -> None:
    role = f"anabranch_test_{restricted.name}"
    schema, conn = restricted.schema, restricted.conn
    jobs.put(("1", "a", "seen"), ("2", "a", "hidden from x"), ("3", "b", "of others"))
    conn.execute(f"create role {role}".encode())
    try:
        conn.execute(
            f"alter table {schema}.job enable row level security; grant usage on schema {schema} to {role};"
            f"grant select on {schema}.job to {role};"
            f"create policy p on {schema}.job to {role} using"
            " (title <> 'hidden from ' || (current_setting('request.jwt.claims')::json ->> 'sub'))".encode()
        )
        set_rules(restricted, {"teams": "team"}, rls=role)
        assert jobs_of(Pulled().all(viewer(restricted, "x", "a").pull())).keys() == {"1"}
        both = Pulled().all(viewer(restricted, "y", "a").pull())
        assert jobs_of(both).keys() == {"1", "2"}
        # A table that is read behind such a one is read as the service again.
        assert "item" in both.done
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}".encode())
