"""Batches are taken fairly between principals: whatever one of them has queued, one batch of another has its verdict
within two groups of its arrival."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import pytest
from tests.integration.resolver import commits

from anabranch.clock import Clock
from anabranch.store.inbox.take import FEW, TAKE
from anabranch.store.session.engine import Session
from anabranch.testkit.resolver_rig import Made, ResolverRig, RigNode
from anabranch_conflict_resolver.group import cuts
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits

QUEUED = 50_000
HUGE = "1e131071"
MB = 2**20
_COPY = """
copy anabranch.inbox (database_id, batch_id, node_id, principal, basis, payload, payload_sha256, arrived_ms) from stdin
"""


def queue(node: RigNode, batches: Sequence[Made]) -> None:
    """Put many batches into the inbox at once."""
    with node.rig.conn.cursor() as cursor, cursor.copy(_COPY) as copy:
        for made in batches:
            digest = sha256(made.payload).digest()
            now_ms = time.time_ns() // 1_000_000
            copy.write_row(
                (node.rig.database.id, made.id, node.id, node.principal, made.basis, made.payload, digest, now_ms)
            )


def groups_until(rig: ResolverRig, batch_id: str, most: int) -> int:
    """How many groups were committed until the batch had its verdict."""
    for number in range(1, 100):
        rig.group(most)
        if rig.outcome(batch_id) != "PENDING":
            return number
    raise AssertionError("a hundred groups passed it over")


@pytest.fixture
def sessions(migrated_url: str) -> Iterator[Session]:
    """A session that groups may be committed on."""
    session = commits.session(migrated_url)
    yield session
    session.close()


def small_groups(conn: Session, most_bytes: int) -> Callable[[int, int, int], int]:
    """Commits groups of few bytes."""
    cache, limits = Cache(), GroupLimits(most_bytes)

    def commit(database_id: int, most: int, offset_ms: int) -> int:
        now_ms = Clock(offset_ms).now_ms()
        outcome = commit_group(
            conn, cache, database_id, most=most, now_ms=now_ms, clock_offset_ms=offset_ms, limits=limits
        )
        return outcome.taken + outcome.drained

    return commit


@pytest.mark.slow
def test_fifty_thousand_of_one_principal_delay_one_of_another_by_less_than_two_groups(rig: ResolverRig) -> None:
    busy, calm = rig.node("busy"), rig.node("calm")
    queue(busy, [busy.make(("insert", "todo", [{"id": f"b{n}"}])) for n in range(QUEUED)])
    rig.group(2_000)
    rig.group(2_000)
    own = calm.insert("todo", {"id": "c"})
    assert groups_until(rig, own, 2_000) <= 2
    assert len(rig.waiting()) > QUEUED * 8 // 10


@pytest.mark.slow
def test_the_look_costs_by_what_is_taken_and_not_by_what_waits(rig: ResolverRig, sessions: Session) -> None:
    """Buffers that the statement touches, by the plan that resolvers have kept since the inbox was empty."""

    def touched() -> tuple[int, int]:
        parameters = {"db": rig.database.id, "most": 200, "bytes": 8 * MB, "now": 1, "start": "user-busy", "few": FEW}
        [(plan,)] = sessions.execute(f"explain (analyze, buffers, format json) {TAKE}", parameters).fetchall()
        sessions.rollback()
        [top] = plan if isinstance(plan, list) else json.loads(plan)
        return top["Plan"]["Actual Rows"], top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"]

    busy, calm = rig.node("busy"), rig.node("calm")
    queue(busy, [busy.make(("insert", "todo", [{"id": f"b{n}"}])) for n in range(400)])
    calm.insert("todo", {"id": "c"})
    few = touched()
    queue(busy, [busy.make(("insert", "todo", [{"id": f"a{n}"}])) for n in range(QUEUED)])
    many = touched()
    print(f"rows and buffers: {few} of 401, {many} of {QUEUED + 401}")
    assert few[0] == many[0] == 200
    assert many[1] < 2 * few[1]


@pytest.mark.parametrize("size", [9_000, 2_500])
def test_batches_that_fill_a_group_by_their_bytes_take_turns(make_rig: Any, sessions: Session, size: int) -> None:
    """The firsts of those who have queued before are older than the one that comes: by arrival they would fill each
    group."""
    rig: ResolverRig = make_rig()
    rig.commit = small_groups(sessions, 8_000)
    many = [rig.node(f"busy{n}", "user-busy" if size > 8_000 else "") for n in range(4)]
    calm = rig.node("calm")
    for number in range(8):
        for node in many:
            node.insert("todo", {"id": f"{node.name}-{number}", "title": "x" * size})
    rig.group()
    own = calm.insert("todo", {"id": "c"})
    assert groups_until(rig, own, 1_000) <= 2
    rig.drain()
    assert len(rig.rows("todo")) == 33


def test_groups_cut_by_what_their_values_become_leave_nobody_out(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts, "GROWN_BYTES", MB)
    rig: ResolverRig = make_rig("create table t (id int primary key, v numeric)", {"t": None})
    busy, calm = rig.node("busy"), rig.node("calm")
    for number in range(30):
        busy.insert("t", *({"id": 10 * number + j, "v": HUGE} for j in range(6)))
    own = calm.insert("t", {"id": -1, "v": HUGE})
    assert groups_until(rig, own, 1_000) <= 2
    assert rig.sql("select batches from anabranch.groups order by position desc limit 1") == [(1,)]


def test_a_row_that_a_group_may_touch_once_goes_round(make_rig: Any) -> None:
    """A foreign key that is not valid: a group touches a row of the table once."""
    rig: ResolverRig = make_rig(
        "create table author (id text primary key); insert into author values ('a');"
        "create table book (id text primary key, author_id text, title text);"
        "alter table book add constraint book_author foreign key (author_id) references author (id) not valid;",
        {"author": None, "book": None},
    )
    busy, calm = rig.node("busy"), rig.node("calm")
    busy.insert("book", {"id": "x"})
    rig.group()
    for node in (busy, calm):
        node.see()
    for number in range(30):
        busy.update("book", {"id": "x", "title": f"{number}"})
    own = calm.update("book", {"id": "x", "author_id": "a"})
    assert groups_until(rig, own, 1_000) <= 2


def test_batches_that_are_tried_alone_alternate_with_those_of_others(rig: ResolverRig) -> None:
    """One of another comes before each group: so both always have batches that wait, and neither may be left out."""
    busy, calm, third = rig.node("busy"), rig.node("calm"), rig.node("third")
    alone = [busy.insert("todo", {"id": f"b{number}"}) for number in range(30)]
    rig.sql("update anabranch.inbox set attempts = 1, failure = '57014'")
    own = [calm.insert("todo", {"id": "c"}), third.insert("todo", {"id": "t"})]
    rig.group()
    rig.group()
    assert [rig.outcome(one) for one in own] == [["APPLIED"]] * 2
    tried = []
    for number in range(16):
        own.append(calm.insert("todo", {"id": f"c{number}"}))
        rig.group()
        # Each has its verdict within two groups of its arrival.
        assert [rig.outcome(one) for one in own[:-1]] == [["APPLIED"]] * (len(own) - 1)
        tried.append(sum(rig.outcome(one) != "PENDING" for one in alone))
    assert tried == [2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]


def test_a_batch_that_fails_alone_again_lets_others_go_on(make_rig: Any) -> None:
    """Its group is rolled back: that others were passed over is known all the same."""
    rig: ResolverRig = make_rig(
        "create table todo (id text primary key);"
        "create function slow() returns trigger language plpgsql as $$"
        " begin if new.id like 'b%' then raise query_canceled; end if; return new; end $$;"
        "create trigger slow before insert on todo for each row execute function slow();",
        {"todo": None},
    )
    busy, calm = rig.node("busy"), rig.node("calm")
    for number in range(5):
        busy.insert("todo", {"id": f"b{number}"})
    rig.sql("update anabranch.inbox set attempts = 1, failure = '57014'")
    own = calm.insert("todo", {"id": "c"})
    with pytest.raises(Exception, match="query_canceled"):
        rig.group()
    rig.group()
    assert rig.outcome(own) == ["APPLIED"]


def test_batches_that_fall_due_together_take_turns(rig: ResolverRig) -> None:
    """All rested, those of one principal first: more than a group takes."""
    busy, calm, third = rig.node("busy"), rig.node("calm"), rig.node("third")
    queue(busy, [busy.make(("insert", "todo", [{"id": f"b{n}"}])) for n in range(300)])
    rig.sql("update anabranch.inbox set park_deadline_ms = 1")
    own = [calm.insert("todo", {"id": "c"}), third.insert("todo", {"id": "t"})]
    rig.sql("update anabranch.inbox set park_deadline_ms = 2 where park_deadline_ms is null")
    ready = rig.node("ready").insert("todo", {"id": "r"})
    rig.group(most=30)
    assert [rig.outcome(one) for one in (*own, ready)] == [["APPLIED"]] * 3
    assert rig.group(most=30) == 30
    rig.drain()
    assert len(rig.rows("todo")) == 303


def test_what_is_due_is_found_by_its_principal_also_by_a_plan_of_an_empty_inbox(
    rig: ResolverRig, sessions: Session
) -> None:
    parameters = {"db": rig.database.id, "most": 100, "bytes": 8 * MB, "now": 9, "start": "", "few": FEW}
    assert sessions.execute(TAKE, parameters).fetchall() == []
    sessions.commit()
    busy, calm = rig.node("busy"), rig.node("calm")
    queue(busy, [busy.make(("insert", "todo", [{"id": f"b{n}"}])) for n in range(3_000)])
    calm.insert("todo", {"id": "c"})
    rig.sql("update anabranch.inbox set park_deadline_ms = case principal when 'user-busy' then 1 else 2 end")
    [(plan,)] = sessions.execute(f"explain (analyze, buffers, format json) {TAKE}", parameters).fetchall()
    sessions.rollback()
    [top] = plan if isinstance(plan, list) else json.loads(plan)
    assert top["Plan"]["Actual Rows"] == 100
    assert "inbox_parked_of" in json.dumps(plan)
    assert top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"] < 4_000
