"""A batch that kills a resolver is tried alone, and set aside the third time; those beside it are not blamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.store.inbox.undertaken import OWNER, OWNER_LOCK_CLASS, show_alive
from anabranch.store.session.engine import Session
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.blame.evidence import FAILURES_AT_MOST
from anabranch_conflict_resolver.group import cache

GONE = (OWNER + 1) % 2**31
MARKS = "select owner, batches from anabranch.undertaken"
ATTEMPTS = "select batch_id, attempts, failure from anabranch.inbox order by 1"


def left_behind(rig: ResolverRig, *ids: str, owner: int = GONE) -> None:
    """A mark of a process that tried these batches."""
    rig.sql(
        "insert into anabranch.undertaken values (%s, %s, %s)"
        " on conflict (database_id) do update set owner = excluded.owner, batches = excluded.batches",
        [rig.database.id, owner, list(ids)],
    )


def rested(rig: ResolverRig) -> None:
    rig.sql("update anabranch.inbox set park_deadline_ms = 0 where park_deadline_ms is not null")


@pytest.mark.slow
def test_who_was_in_work_beside_others_is_tried_in_small_groups_and_not_blamed(rig: ResolverRig) -> None:
    nodes = [rig.node(f"{i}") for i in range(3)]
    sent = [nodes[i % 3].insert("todo", {"id": f"{i:03}"}) for i in range(130)]
    later = nodes[0].insert("todo", {"id": "later"})
    left_behind(rig, *sent)
    rig.drain()
    assert [rig.outcome(one) for one in (*sent, later)] == [["APPLIED"]] * 131
    assert rig.sql(MARKS) == []
    sizes = [batches for (batches,) in rig.sql("select batches from anabranch.groups order by position")]
    assert max(sizes[:65]) <= 2, "130 batches in groups of 2"


def test_a_few_are_each_tried_alone(rig: ResolverRig) -> None:
    node = rig.node("a")
    sent = [node.insert("todo", {"id": f"{i}"}) for i in range(5)]
    left_behind(rig, *sent)
    rig.group()
    assert {row[1:] for row in rig.sql(ATTEMPTS)} == {(0, "killed 5")}
    rig.drain()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 5
    assert rig.sql("select count(*) from anabranch.groups") == [(5,)]


def test_the_third_time_that_a_batch_was_alone_it_is_rejected_by_name(
    rig: ResolverRig, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = rig.node("a"), rig.node("b")
    bad = a.insert("todo", {"id": "bad"})
    for n in range(1, FAILURES_AT_MOST + 1):
        left_behind(rig, bad)
        rig.group()
        assert rig.sql(ATTEMPTS) == [(bad, n, "killed")]
        good = b.insert("todo", {"id": f"{n}"})
        rig.group()
        assert rig.outcome(good) == ["APPLIED"], "it rests, and others go on"
    rested(rig)
    rig.group()
    assert rig.outcome(bad) == "INTERNAL"
    verdict = rig.verdict(bad)
    assert verdict is not None
    assert "killed" in verdict.message
    assert rig.sql(MARKS) == []
    assert capsys.readouterr().out.count("killed while it tried a batch alone") == FAILURES_AT_MOST


def test_a_process_that_lives_deals_with_its_lost_session_itself(rig: ResolverRig) -> None:
    made = rig.node("a").insert("todo", {"id": "1"})
    with rig.session() as somebody:
        somebody.autocommit = True
        somebody.execute("select pg_advisory_lock_shared(%s, %s)", (OWNER_LOCK_CLASS, GONE))
        left_behind(rig, made)
        rig.group()
    assert rig.outcome(made) == ["APPLIED"]


def test_a_mark_of_ones_own_counts_against_nobody(rig: ResolverRig) -> None:
    made = rig.node("a").insert("todo", {"id": "1"})
    left_behind(rig, made, owner=OWNER)
    rig.group()
    assert rig.outcome(made) == ["APPLIED"]
    assert rig.sql(MARKS) == []
    left_behind(rig, made, owner=OWNER)
    rig.group()
    assert rig.sql(MARKS) == []


def test_a_listener_shows_that_its_process_lives(rig: ResolverRig) -> None:
    held = f"select count(*) from pg_locks where classid = {OWNER_LOCK_CLASS} and objid = {OWNER}"
    with rig.session() as one, rig.session() as another:
        show_alive(one)
        show_alive(another)
        assert rig.sql(held) == [(2,)]


def test_captured_changes_go_alone_before_a_suspect_is_tried(rig: ResolverRig) -> None:
    """They may be what kills: no mark names the batch meanwhile."""
    made = rig.node("a").insert("todo", {"id": "1"})
    rig.sql("update anabranch.inbox set failure = 'killed 2'")
    rig.sql("insert into app.todo values ('sql')")
    assert rig.commit is not None
    rig.commit(rig.database.id, 100, 0)
    assert rig.outcome(made) == "PENDING"
    rig.drain()
    assert rig.outcome(made) == ["APPLIED"]


def test_a_group_is_written_down_while_the_process_is_young_and_not_later(
    rig: ResolverRig, worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.sql(
        "create table public.marks (n bigint); grant insert on public.marks to public;"
        " create function public.note() returns trigger language plpgsql as"
        " $$ begin insert into public.marks values (1); return null; end $$;"
        "create trigger note after insert or update on anabranch.undertaken for each row execute function public.note()"
    )
    node = rig.node("a")
    node.insert("todo", {"id": "1"})
    worker = worker_of(rig)
    rig.until_left()
    until(lambda: rig.sql(MARKS) == [], 10, "the mark stays")
    assert rig.sql("select count(*) from public.marks") == [(1,)]
    monkeypatch.setattr(cache, "CAREFUL_S", 0.0)
    node.insert("todo", {"id": "2"})
    worker._wakeups.wake(rig.database.id)
    rig.until_left()
    assert rig.sql("select count(*) from public.marks") == [(1,)]


LOCK = 4_242
STOPS = f"""
create table todo (id text primary key, title text);
create function stops() returns trigger language plpgsql set lock_timeout = '60s' as $$
begin
    if new.title = 'bad' then perform pg_advisory_xact_lock({LOCK}); end if;
    return new;
end $$;
create trigger stops before insert on todo for each row execute function stops()
"""
WAITS = f"select count(*) from pg_locks where locktype = 'advisory' and objid = {LOCK} and not granted"


@pytest.fixture
def holder(migrated_url: str, make_rig: Any) -> Iterator[tuple[ResolverRig, Session]]:
    """A rig on which a group stops at a bad row, behind a lock that a session holds."""
    rig: ResolverRig = make_rig(STOPS)
    with rig.session() as session:
        session.autocommit = True
        session.execute("select pg_advisory_lock(%s)", (LOCK,))
        yield rig, session


def start(url: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "ANABRANCH_POSTGRES_URL": url,
        "ANABRANCH_POLL_INTERVAL_MS": "50",
        "ANABRANCH_REST_MS": "1",
        "ANABRANCH_GROUP_STATEMENT_TIMEOUT_MS": "60000",
    }
    with (folder / "resolver.log").open("ab") as log:
        command = [sys.executable, "-m", "anabranch_conflict_resolver"]
        return subprocess.Popen(command, env=environment, stderr=log, stdout=log)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_kills_the_process_each_time_ends_rejected_and_others_are_decided(
    holder: tuple[ResolverRig, Session], migrated_url: str, tmp_path: Path
) -> None:
    rig, _ = holder
    a, b = rig.node("a"), rig.node("b")
    good = [b.insert("todo", {"id": f"{i}", "title": "good"}) for i in range(10)]
    bad = a.insert("todo", {"id": "bad", "title": "bad"})
    good += [b.insert("todo", {"id": f"l{i}", "title": "good"}) for i in range(10)]
    kills = 0
    try:
        while rig.outcome(bad) == "PENDING":
            process = start(migrated_url, tmp_path)
            until(lambda: rig.sql(WAITS) != [(0,)] or rig.outcome(bad) != "PENDING", 30, "the bad row is not tried")
            if rig.outcome(bad) != "PENDING":
                break
            kill(process)
            kills += 1
            assert kills < 8
            until(lambda: rig.sql(WAITS) == [(0,)], 30, "its session goes on")
        rig.until_left()
    finally:
        kill(process)
        print((tmp_path / "resolver.log").read_text()[-5_000:])
    assert rig.outcome(bad) == "INTERNAL"
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 20
    assert kills == 1 + FAILURES_AT_MOST
    log = (tmp_path / "resolver.log").read_text()
    assert log.count("killed while it tried a batch alone") == FAILURES_AT_MOST
    assert "batch rejected after failing alone" in log
    rig.check()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_kills_that_are_nobodys_fault_blame_nobody(
    holder: tuple[ResolverRig, Session], migrated_url: str, tmp_path: Path
) -> None:
    """Each of these processes is killed in its first group, and the next one may go on; no batch is innocent to it."""
    rig, session = holder
    nodes = [rig.node(f"{i}") for i in range(4)]
    sent: list[str] = []
    for turn in range(FAILURES_AT_MOST + 1):
        sent += [nodes[i].insert("todo", {"id": f"{turn}-{i}", "title": "bad"}) for i in range(4)]
        process = start(migrated_url, tmp_path)
        until(lambda: rig.sql(WAITS) != [(0,)], 30, "none is tried")
        kill(process)
        until(lambda: rig.sql(WAITS) == [(0,)], 30, "its session goes on")
        if turn % 2:
            session.execute("select pg_advisory_unlock(%s)", (LOCK,))
            process = start(migrated_url, tmp_path)
            rig.until_left()
            kill(process)
            session.execute("select pg_advisory_lock(%s)", (LOCK,))
    print((tmp_path / "resolver.log").read_text()[-5_000:])
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * len(sent)
    rig.check()
