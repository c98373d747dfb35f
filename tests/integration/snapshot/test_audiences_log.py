"""The log of a database with a restricted table: what pages have for whom."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.audience_device import Device, held
from tests.integration.snapshot.audience_writer import (
    BY_TITLE,
    JOB,
    JOB_AUDIENCE,
    SECRET,
    AudienceWriter,
    learned,
    restrict,
    set_rules,
    team,
    viewer,
)
from ulid import ULID

from anabranch.store.audiences.set_expression import set_audience
from anabranch.store.catalog.registration import add_table, remove_table
from anabranch.testkit.ingest_rig import FailedCallError, failed
from anabranch.testkit.snapshot_reader import whole_groups
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2, value_pb2


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {"ANABRANCH_JWT_HS256_SECRET": SECRET}


def effects(answer: change_pb2.GetResponse) -> list[tuple[int, str, list[str]]]:
    """Type, key and audiences of each effect in a page."""
    found: list[tuple[int, str, list[str]]] = []
    for group in answer.page.groups:
        for batch in group.batches:
            for i, data in enumerate(batch.effects):
                one = change_pb2.Effect.FromString(data)
                whose = list(batch.audiences[i].values) if batch.audiences else []
                found.append((one.type, one.values[0].string_value, whose))
    return found


INSERT, UPDATE, DELETE = (
    change_pb2.EFFECT_TYPE_INSERT,
    change_pb2.EFFECT_TYPE_UPDATE,
    change_pb2.EFFECT_TYPE_DELETE,
)


@pytest.mark.slow
def test_everybody_gets_the_rows_of_their_teams(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(("1", "a", "one"), ("2", "b", "two"), ("3", None, "nobody's"))
    head = jobs.put(("1", "b", "moved"), ("2", "b", "changed"))
    a, b, both = (viewer(restricted, name, *teams) for name, *teams in (("x", "a"), ("y", "b"), ("z", "a", "b")))
    assert effects(a.get()) == [(INSERT, "1", [team("a")]), (DELETE, "1", [])]
    assert sorted(effects(b.get())) == [
        (INSERT, "2", [team("b")]),
        (UPDATE, "1", [team("b")]),
        (UPDATE, "2", [team("b")]),
    ]
    assert len(effects(both.get())) == 4
    nobody = viewer(restricted, "n").get()
    assert not nobody.page.groups
    assert nobody.page.reached.server_timestamp_ms == nobody.state.settled.server_timestamp_ms == head
    # Names and values of the others are nowhere in the bytes.
    assert b"two" not in a.get().SerializeToString()
    assert b"nobody" not in both.get().SerializeToString()


def test_sums_are_those_of_own_audiences(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(("1", "a", "one"), ("2", "b", "two"))
    jobs.put(("3", "a", "three"))
    jobs.insert("item", [("i", "open", 1, None)])
    answer = viewer(restricted, "x", "a", "c").get()
    found = {(one.table, one.audience): (one.count, one.hash) for one in answer.sums}
    assert found.keys() == {("item", ""), ("job", team("a"))}
    assert found["job", team("a")] == jobs.sum_of(team("a"))
    told = [(one.table, one.audience, one.count) for group in answer.page.groups for one in group.sums]
    assert told == [("job", team("a"), 1), ("job", team("a"), 2), ("item", "", 1)]


@pytest.mark.slow
def test_a_page_says_all_audiences_unless_the_node_holds_just_these(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(("1", "a", "one"))
    reader = viewer(restricted, "x", "a", "b")
    assert list(reader.get().page.audiences.values) == [team("a"), team("b")]
    reader.held = held(team("a"), team("b"))
    assert not reader.get().page.HasField("audiences")
    reader.held = held(team("a"), choice=[team("a"), team("z")])
    assert not reader.get().page.HasField("audiences")
    reader.held = held(team("a"), team("b"), choice=[team("b"), team("z")])
    answer = reader.get()
    assert list(answer.page.audiences.values) == [team("b")]
    assert effects(answer) == []
    stream = reader.subscribe()
    assert list(next(stream).page.audiences.values) == [team("b")]
    stream.cancel()
    # Not even that there are none is left out where the node holds some.
    nobody = viewer(restricted, "n")
    nobody.held = held(team("a"))
    assert nobody.get().page.HasField("audiences")
    nobody.held = held()
    assert not nobody.get().page.HasField("audiences")


def test_a_conflict_is_for_those_who_saw_the_row(restricted: Any, jobs: AudienceWriter) -> None:
    value = value_pb2.Value(string_value="a secret title").SerializeToString()
    jobs.put(("1", "a", "one"))
    jobs.put(("1", "a", "two"), losers=[("1", "title", value)])
    seen = viewer(restricted, "x", "a").get()
    (loser,) = [one for group in seen.page.groups for batch in group.batches for one in batch.losers]
    assert loser.value.string_value == "a secret title"
    assert b"a secret title" not in viewer(restricted, "y", "b").get().SerializeToString()


def test_its_own_batch_comes_to_its_node_in_any_case(restricted: Any, jobs: AudienceWriter) -> None:
    node = str(ULID())
    jobs.put(("1", "a", "one"), node=node)
    answer = viewer(restricted, "x", "b", node=node).get()
    (batch,) = answer.page.groups[0].batches
    assert batch.node.id == node
    assert not batch.effects
    assert not viewer(restricted, "x", "b").get().page.groups


@pytest.mark.slow
def test_parts_of_groups_and_effects(restricted: Any, jobs: AudienceWriter) -> None:
    large = "x" * 5_000
    jobs.put(("1", "a", large), ("2", "b", large), ("3", "a", "small"), one_batch=True)
    jobs.put(("1", "b", large + "y"), ("2", "a", large), one_batch=True)
    for name, *teams in (("x", "a"), ("y", "b"), ("z", "a", "b"), ("n",)):
        device = Device(viewer(restricted, name, *teams))
        device.catch_up(1024)
        assert device.seen == jobs.seen_by(*map(team, teams))
        groups = whole_groups(list(device.reader.pages(0, 1024)))
        assert [len(batch.effects) for group in groups for batch in group.batches] == [
            len(batch.effects) for group in device.reader.get().page.groups for batch in group.batches
        ]


def test_a_page_token_is_for_those_audiences(restricted: Any, jobs: AudienceWriter) -> None:
    jobs.put(*((str(i), "a", "x" * 1_000) for i in range(5)), one_batch=True)
    reader, other = viewer(restricted, "x", "a"), viewer(restricted, "x", "b")
    token = reader.get(max_bytes=1024).next_page_token
    assert reader.get(token=token).page.groups
    with pytest.raises(FailedCallError) as refused:
        other.get(token=token)
    assert refused.value.reason == "INVALID_TOKEN"
    reader.held = held(choice=[])
    with pytest.raises(FailedCallError) as refused:
        reader.get(token=token)
    assert refused.value.reason == "INVALID_TOKEN"


def test_memberships_change_with_the_log(place: Any) -> None:
    restrict(place, claimed={}, queries=[BY_TITLE])
    jobs = AudienceWriter(place.rig.url, place.name)
    learned(place, "p")
    reader = place.make_reader(subject="p")
    first = jobs.put(("1", "a", "one"))
    gained = jobs.put(("2", "b", "p"), members={"p": ([team("b")], [])})
    jobs.put(("3", "b", "three"), ("1", "a", "again"))
    lost = jobs.put(("2", "b", "q"), members={"p": ([], [team("b")])})
    jobs.put(("3", "b", "unseen"))
    groups = reader.get().page.groups
    assert groups[0].position == gained
    assert list(groups[0].audience_change.gained) == [team("b")]
    assert groups[-1].position == lost
    assert list(groups[-1].audience_change.lost) == [team("b")]
    # The row that was there when it came to the team is not in the log, but in what it pulls.
    assert effects(reader.get()) == [(INSERT, "3", [team("b")])]
    # At each position it has what it had then.
    for position, expected in ((first, []), (gained, [team("b")]), (lost, [])):
        reader.held = held("something")
        assert list(reader.get(position).page.audiences.values) == expected
    jobs.close()


def test_a_principal_that_nobody_knows_is_learned(place: Any) -> None:
    restrict(place, claimed={}, queries=[BY_TITLE])
    jobs = AudienceWriter(place.rig.url, place.name)
    jobs.put(("1", "a", "new"), ("2", "b", "old"))
    reader = place.make_reader(subject="new")
    answer = reader.get()
    assert list(answer.page.audiences.values) == [team("a")]
    assert [key for _, key, _ in effects(answer)] == ["1"]
    kept = place.conn.execute("select memberships from anabranch.principals where principal = 'new'").fetchall()
    assert kept == [([team("a")],)]
    stream = place.make_reader(subject="old").subscribe()
    assert list(next(stream).page.audiences.values) == [team("b")]
    stream.cancel()
    jobs.close()


def test_a_table_that_becomes_restricted_is_so_at_once(place: Any, until_served: Callable[..., Any]) -> None:
    place.conn.execute(JOB.format(schema=place.schema).encode())
    add_table(place.conn, place.name, "job")
    open_writer = AudienceWriter(place.rig.url, place.name)
    open_writer.insert("job", [("1", "a", "said while it was open")])
    reader = place.make_reader()
    stream = reader.subscribe()
    assert b"said while" in next(stream).SerializeToString()
    set_audience(place.conn, place.name, "job", JOB_AUDIENCE)
    jobs = AudienceWriter(place.rig.url, place.name)
    jobs.put(("2", "b", "a secret"))
    got: list[bytes] = []
    with pytest.raises(grpc.RpcError, match="just changed"):
        got.extend(response.SerializeToString() for response in stream)
    assert b"a secret" not in b"".join(got)
    answer = until_served(reader.get)
    assert b"said while" not in answer.SerializeToString()
    assert b"a secret" not in answer.SerializeToString()
    assert answer.sums[0].table == "item"
    open_writer.close()
    jobs.close()


@pytest.mark.parametrize("end", ["open", "removed"])
def test_the_log_of_a_table_that_was_restricted_is_for_those_who_saw_it(
    restricted: Any, jobs: AudienceWriter, until_served: Callable[..., Any], end: str
) -> None:
    jobs.put(("1", "a", "a secret"))
    if end == "open":
        set_audience(restricted.conn, restricted.name, "job", None)
    else:
        remove_table(restricted.conn, restricted.name, "job")
    set_rules(restricted, {})
    assert b"a secret" not in until_served(restricted.make_reader().get).SerializeToString()


@pytest.fixture
def until_served() -> Callable[..., Any]:
    """Call again while tables or rules have just changed."""

    def call(work: Callable[[], Any]) -> Any:
        found: list[Any] = []

        def is_served() -> bool:
            try:
                found.append(work())
            except FailedCallError as error:
                if error.reason != "UNAVAILABLE":
                    raise
            return bool(found)

        until(is_served, why="never served")
        return found[0]

    return call


def test_other_rules_end_streams_and_hold_at_once(
    restricted: Any, jobs: AudienceWriter, until_served: Callable[..., Any]
) -> None:
    head = jobs.put(("1", "a", "one"))
    reader = viewer(restricted, "x", "a")
    stream = reader.subscribe(head)
    next(stream)
    set_rules(restricted, {"groups": "team"})
    with pytest.raises(grpc.RpcError, match="just changed"):
        list(stream)
    reader.held = held(team("a"))
    answer = until_served(lambda: reader.get(head))
    assert answer.page.HasField("audiences")
    assert not answer.page.audiences.values


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_devices_come_to_what_they_may_see(place: Any, seed: int) -> None:
    """Rows that come, move and go while memberships do; pages of any size; pulls of what is gained."""
    chance = random.Random(seed)
    restrict(place, queries=[BY_TITLE])
    jobs = AudienceWriter(place.rig.url, place.name)
    members: dict[str, set[str]] = {"p": set(), "q": set()}
    for name in members:
        learned(place, name)
    devices = [(Device(viewer(place, name, *teams)), name, teams) for name in members for teams in ([], ["a"])]
    for _ in range(8):
        for _ in range(chance.randint(1, 4)):
            changed = {}
            for name, has in members.items():
                if chance.random() < 0.3:
                    then = {team(one) for one in "abc" if chance.random() < 0.4}
                    changed[name] = (sorted(then - has), sorted(has - then))
                    members[name] = then
            changes: dict[str, Any] = {}
            for key in chance.sample("12345", chance.randint(1, 3)):
                gone = key in jobs.rows and chance.random() < 0.3
                title = chance.choice(["t", "u" * 2_000])
                changes[key] = key if gone else (key, chance.choice(["a", "b", "c", None]), title)
            jobs.put(*changes.values(), members=changed, one_batch=chance.random() < 0.5)
        for device, _, _ in devices:
            if chance.random() < 0.7:
                device.catch_up(chance.choice([0, 1024]))
    for device, name, teams in devices:
        device.catch_up()
        device.catch_up()
        expected = members[name] | set(map(team, teams))
        assert device.audiences == expected
        assert device.seen == jobs.seen_by(*expected)
    jobs.close()


def test_a_query_that_fails_is_said_to_newcomers_and_holds_up_nobody_else(place: Any) -> None:
    place.conn.execute(f"create table {place.schema}.membership (id text primary key, user_id text, n int)")
    add_table(place.conn, place.name, "membership")
    restrict(place, queries=["select 'team:' || (1 / n) from membership where user_id = :principal"])
    writer = AudienceWriter(place.rig.url, place.name)
    try:
        writer.put(("1", "1", "one"))
        learned(place, "known", team("1"))
        place.conn.execute(f"insert into {place.schema}.membership values ('1', 'new', 0), ('2', 'known', 0)")
        before = place.rig.metric("anabranch_membership_query_failures_total", database=place.name)
        with pytest.raises(FailedCallError) as refused:
            viewer(place, "new").get()
        assert refused.value.reason == "UNAVAILABLE"
        assert "a membership query" in str(refused.value)
        with pytest.raises(grpc.RpcError) as ended:
            list(viewer(place, "new").pull())
        assert failed(ended.value).reason == "UNAVAILABLE"
        assert place.rig.metric("anabranch_membership_query_failures_total", database=place.name) == before + 2
        assert len(viewer(place, "known").get().page.groups) == 1
        place.conn.execute(f"update {place.schema}.membership set n = 1")
        assert len(viewer(place, "new").get().page.groups) == 1
    finally:
        writer.close()
