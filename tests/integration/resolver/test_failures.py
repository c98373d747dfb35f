"""Faults that no batch is to blame for: deadlocks, lost sessions, lost answers; and the batch that fails alone."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from anabranch.clock import Clock
from anabranch.merge import Batch
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox import take
from anabranch.store.inbox.claim import open_session, session_options
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.batch.decode import Decoded, Decoder
from anabranch_conflict_resolver.blame.evidence import FAILURES_AT_MOST
from anabranch_conflict_resolver.captured.backlog import drain_backlog
from anabranch_conflict_resolver.group import commit, rules
from anabranch_conflict_resolver.group.attempt import decide_group
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.outcome import GroupLimits

OPTIONS = session_options(statement_timeout_ms=5_000, lock_timeout_ms=250, idle_timeout_ms=2_000)

RAISE = """
create table t (id text primary key, a text);
create table tried (n bigint);
create sequence tries;
create function fail() returns trigger language plpgsql as $$
begin
    if new.a like 'raise %' then
        perform nextval('app.tries');
        raise exception 'no' using errcode = substr(new.a, 7);
    end if;
    return new;
end $$;
create trigger fail before insert on t for each row execute function fail();
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", ["40001", "40P01", "53100", "53200", "55000", "57014", "57P01", "58030", "XX000"])
def test_a_batch_that_fails_alone_three_times_while_others_pass_is_rejected_by_name(
    make_rig: Any, worker_of: Any, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rig: ResolverRig = make_rig(RAISE, {"t": None})
    a, b = rig.node("a"), rig.node("b")
    good = [b.insert("t", {"id": f"{i}"}) for i in range(20)]
    bad = a.insert("t", {"id": "bad", "a": f"raise {code}"})
    good += [b.insert("t", {"id": f"l{i}"}) for i in range(20)]
    worker_of(rig)
    rig.until_left()
    rig.check()
    assert rig.outcome(bad) == ("TOO_SLOW" if code == "57014" else "DATABASE_FAILURE")
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 40
    assert "batch rejected after failing alone" in capsys.readouterr().out
    [(tries,)] = rig.sql("select last_value from app.tries")
    assert tries >= 3


SLOW = """
create table t (id text primary key, a text);
create function slow() returns trigger language plpgsql as
    $$ begin if new.a = 'slow' then perform pg_sleep(2); end if; return new; end $$;
create trigger slow before insert on t for each row execute function slow()
"""


@pytest.mark.slow
def test_a_batch_that_runs_out_of_time_is_tried_alone_with_more(make_rig: Any) -> None:
    """Neither the limit of a statement nor that of the transaction, which is three times as long, ends it then."""
    rig: ResolverRig = make_rig(SLOW, {"t": None})
    made = [rig.node(name).insert("t", {"id": name, "a": a}) for name, a in (("b", "quick"), ("c", "slow"))]
    cache, limits = Cache(), GroupLimits(alone_ms=20_000)
    options = session_options(statement_timeout_ms=500, lock_timeout_ms=100, idle_timeout_ms=5_000)
    with open_session(rig.url, options) as session:

        def group(now_ms: int) -> int:
            return commit_group(
                session, cache, rig.database.id, most=10, now_ms=now_ms, clock_offset_ms=0, limits=limits
            ).taken

        now_ms = Clock().now_ms()
        with pytest.raises(DatabaseError) as raised:
            group(now_ms)
        assert raised.value.sqlstate == "57014"
        take.count_attempt(session, rig.database.id, made[1], now_ms, 0, 1, failure="57014")
        session.commit()
        assert group(now_ms + 1) == 1, "it has a group of its own"
        assert [rig.outcome(one) for one in made] == ["PENDING", ["APPLIED"]]
    rig.check()


def test_a_batch_that_runs_out_of_the_long_time_is_not_tried_again(make_rig: Any, worker_of: Any) -> None:
    """It holds up all others of its database meanwhile."""
    rig: ResolverRig = make_rig(RAISE, {"t": None})
    bad = rig.node("a").insert("t", {"id": "bad", "a": "raise 57014"})
    worker_of(rig)
    rig.until_left()
    assert rig.outcome(bad) == "TOO_SLOW"
    assert rig.sql("select last_value from app.tries") == [(2,)]


def test_a_session_that_has_lost_its_statements_is_replaced(rig: ResolverRig, worker_of: Any) -> None:
    node = rig.node("a")
    node.insert("todo", {"id": "0"})
    worker = worker_of(rig)
    rig.until_left()
    idle = worker._sessions._idle
    # The group is committed, and the worker has still to hear it.
    until(lambda: rig.database.id in idle)
    lost = idle[rig.database.id].session
    lost.pgconn.exec_(b"deallocate all")
    made = node.insert("todo", {"id": "1"})
    worker._wakeups.wake(rig.database.id)
    rig.until_left()
    assert rig.outcome(made) == ["APPLIED"]
    assert lost.closed
    until(lambda: rig.database.id in idle)
    assert idle[rig.database.id].session is not lost


def test_batches_have_no_part_in_a_backlog_that_can_not_be_drained(
    rig: ResolverRig, worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    def decide_behind(*arguments: Any, **more: Any) -> Any:
        if failures < 2 * FAILURES_AT_MOST:
            return None
        return decide_group(*arguments, **more)

    def drain_in_vain(context: Context, *more: Any) -> Any:
        nonlocal failures
        if failures < 2 * FAILURES_AT_MOST:
            failures += 1
            context.conn.execute("do $$ begin raise exception using errcode = '57014'; end $$")
        return drain_backlog(context, *more)

    monkeypatch.setattr(commit, "decide_group", decide_behind)
    monkeypatch.setattr(commit, "drain_backlog", drain_in_vain)
    node = rig.node("a")
    made = [node.insert("todo", {"id": f"{i}"}) for i in range(2)]
    worker_of(rig, most_batches=1)
    rig.until_left()
    assert failures == 2 * FAILURES_AT_MOST
    assert [rig.outcome(one) for one in made] == [["APPLIED"]] * 2


def test_a_batch_that_the_program_stumbles_over_holds_up_nobody(
    rig: ResolverRig, worker_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = rules.resolve  # type: ignore[attr-defined]

    def stumbles(batch: Batch, *more: Any) -> Any:
        if batch.mutations[0].rows[0].key == "stumble":
            raise KeyError("a fault of the program")
        return real(batch, *more)

    monkeypatch.setattr(rules, "resolve", stumbles)
    a, b = rig.node("a"), rig.node("b")
    bad = a.insert("todo", {"id": "stumble"})
    good = [b.insert("todo", {"id": f"{i}"}) for i in range(10)]
    worker_of(rig)
    rig.until_left()
    rig.check()
    assert rig.outcome(bad) == "INTERNAL"
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 10
    assert "a fault of the program" in capsys.readouterr().out


def test_a_batch_is_not_blamed_for_the_one_that_is_read_ahead(
    rig: ResolverRig, worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = rig.node("a")
    good = [a.insert("todo", {"id": f"{i}"}) for i in range(3)]
    bad = a.insert("todo", {"id": "bad"})
    decode = Decoder.decode

    def failing(decoder: Decoder, batch_id: str, payload: bytes) -> Decoded:
        if batch_id == bad:
            raise ZeroDivisionError
        return decode(decoder, batch_id, payload)

    monkeypatch.setattr(Decoder, "decode", failing)
    worker_of(rig, most_batches=1)
    rig.until_left()
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 3
    assert rig.outcome(bad) == "INTERNAL"


REFUSALS = {
    # A full disk, as far as a statement shows it: on our own tables.
    "53100": (
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'no room' using errcode = '53100'; end $$;"
        "create trigger refuse before insert on anabranch.log for each statement execute function public.refuse()",
        "drop function public.refuse() cascade",
    ),
    "of ours": (
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'a trigger of somebody on our table'; end $$;"
        "create trigger refuse before insert on anabranch.batches for each row execute function public.refuse()",
        "drop function public.refuse() cascade",
    ),
    "read only": (
        "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database());"
        " alter table anabranch.groups add constraint nothing check (position < 0) not valid; end $$",
        "do $$ begin execute format('alter database %I reset default_transaction_read_only', current_database());"
        " alter table anabranch.groups drop constraint nothing; end $$",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS)
def test_while_postgres_refuses_every_group_no_batch_is_blamed(
    make_rig: Any, worker_of: Any, refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rig: ResolverRig = make_rig(RAISE, {"t": None})
    sent = [rig.node(name).insert("t", {"id": f"{name}{i}"}) for i in range(5) for name in ("a", "b")]
    begin, end = REFUSALS[refusal]
    rig.sql(begin)
    worker = worker_of(rig)
    wait_until = time.monotonic() + 30
    # Far more failures than a batch may have alone.
    while worker._known.paces.get(rig.database.id) is None or worker._known.paces[rig.database.id].failures < 16:
        assert time.monotonic() < wait_until, "no group fails"
        rig.sql("select pg_sleep(0.01)")
    assert {row[0] for row in rig.sql("select attempts from anabranch.inbox")} == {0}
    rig.sql(end)
    began = time.monotonic()
    rig.until_left()
    assert time.monotonic() - began < 10.0
    rig.check()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 10
    printed = capsys.readouterr().out
    assert printed.count("Postgres refuses every group") == 1
    assert "groups pass again" in printed


def test_who_ends_sessions_again_and_again_kills_no_batch(make_rig: Any, worker_of: Any) -> None:
    rig: ResolverRig = make_rig(RAISE, {"t": None})
    sent = [rig.node(name).insert("t", {"id": f"{name}{i}"}) for i in range(10) for name in ("a", "b")]
    worker_of(rig, most_batches=1)
    # For as long as three failures alone would have taken, ten times over.
    for _ in range(200):
        rig.sql(
            "select pg_terminate_backend(pid), pg_sleep(0.01) from pg_stat_activity"
            " where application_name = 'anabranch-conflict-resolver' and datname = current_database()"
        )
    rig.until_left()
    rig.check()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 20


@pytest.mark.slow
def test_a_batch_that_ends_its_own_session_is_given_up_and_holds_up_nobody(make_rig: Any, worker_of: Any) -> None:
    rig: ResolverRig = make_rig(RAISE, {"t": None})
    rig.sql(
        "create or replace function app.fail() returns trigger language plpgsql as $$ begin"
        " if new.a = 'end' then perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); end if;"
        " return new; end $$"
    )
    bad = rig.node("a").insert("t", {"id": "bad", "a": "end"})
    good = [rig.node("b").insert("t", {"id": f"{i}"}) for i in range(10)]
    worker_of(rig)
    rig.until_left(timeout_s=40.0)
    rig.check()
    assert rig.outcome(bad) == "DATABASE_FAILURE"
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 10


def test_a_passing_fault_blames_nobody(make_rig: Any, worker_of: Any) -> None:
    rig: ResolverRig = make_rig(RAISE, {"t": None})
    rig.sql(
        "create or replace function app.fail() returns trigger language plpgsql as $$ begin"
        " if nextval('app.tries') < 4 then raise exception 'no' using errcode = '40P01'; end if; return new; end $$"
    )
    a = rig.node("a")
    sent = [a.insert("t", {"id": f"{i}"}) for i in range(10)]
    worker_of(rig)
    rig.until_left()
    rig.check()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 10


def test_attempts_survive_the_rollback(make_rig: Any, worker_of: Any) -> None:
    rig: ResolverRig = make_rig(RAISE, {"t": None})
    rig.node("a").insert("t", {"id": "bad", "a": "raise 40001"})
    worker_of(rig)
    seen = set()
    while waiting := rig.sql("select attempts from anabranch.inbox"):
        seen.add(waiting[0][0])
        time.sleep(0.005)
    assert {1, 2, 3} <= seen


def test_a_lost_session_is_replaced(rig: ResolverRig, worker_of: Any) -> None:
    a = rig.node("a")
    worker = worker_of(rig)
    for i in range(5):
        a.insert("todo", {"id": f"{i}"})
        worker._wakeups.wake(rig.database.id)
        rig.until_left()
        rig.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'anabranch-conflict-resolver' and datname = current_database()"
        )
    a.insert("todo", {"id": "last"})
    worker._wakeups.wake(rig.database.id)
    rig.until_left()
    rig.check()
    assert len(rig.rows("todo")) == 6


class LosesTheAnswer(threading.Thread):
    """A way to Postgres that is cut once, after COMMIT has been sent and before its answer comes back (or before it is
    sent, with ``after`` False)."""

    def __init__(self, url: str, *, after: bool) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 5432)
        self._after = after
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
        self.cut = threading.Event()

    def run(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(self._target)
        back = threading.Thread(target=self._back, args=(far, near), daemon=True)
        back.start()
        while data := near.recv(65536):
            if b"COMMIT\0" in data:
                self.cut.set()
                if self._after:
                    far.sendall(data)
                    # Postgres has committed when it has answered.
                    back.join(10)
                break
            far.sendall(data)
        for end in (near, far):
            # Closing alone tells nobody while the other thread reads from it.
            end.shutdown(socket.SHUT_RDWR)
        back.join(10)
        for end in (near, far):
            end.close()
        self._listener.close()

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        while data := far.recv(65536):
            if self.cut.is_set():
                return
            near.sendall(data)


@pytest.mark.parametrize("after", [True, False])
def test_a_commit_whose_answer_is_lost_is_found_out_by_looking(
    rig: ResolverRig, migrated_url: str, after: bool
) -> None:
    a = rig.node("a")
    sent = [a.insert("todo", {"id": f"{i}"}) for i in range(5)]
    proxy = LosesTheAnswer(migrated_url, after=after)
    proxy.start()
    session = open_session(proxy.url, OPTIONS)
    with pytest.raises(DatabaseError):
        commit_group(
            session,
            Cache(),
            rig.database.id,
            most=100,
            now_ms=Clock().now_ms(),
            clock_offset_ms=0,
            limits=GroupLimits(),
        )
    session.close()
    proxy.join(10)
    assert proxy.cut.is_set()
    assert (rig.waiting() == []) is after
    head = rig.head
    end = time.monotonic() + 10
    while rig.waiting():
        # The server may not have noticed yet that the session is gone, and with it the claim.
        assert time.monotonic() < end
        rig.group()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 5
    assert len(rig.sql("select 1 from anabranch.log")) == 5
    assert (rig.head == head) is after


def test_two_sessions_never_hold_one_database(rig: ResolverRig, migrated_url: str) -> None:
    rig.node("a").insert("todo", {"id": "1"})
    with rig.session() as other:
        wait_for_claim(other, rig.database.id)
        assert rig.group() == 0
        assert len(rig.waiting()) == 1
        other.rollback()
    assert rig.group() == 1


@pytest.mark.slow
def test_a_lock_that_lasts_is_no_failure_of_a_batch(make_rig: Any, worker_of: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id text primary key)", {"t": None})
    with rig.session() as somebody:
        somebody.execute("lock table anabranch.row_versions in access exclusive mode")
        made = rig.node("a").insert("t", {"id": "1"})
        # Woken once, at its start: the batch must stand there before.
        worker = worker_of(rig)
        until(
            lambda: (pace := worker._known.paces.get(rig.database.id)) is not None and pace.failures >= 5,
            30,
            "the group does not fail",
        )
        assert rig.outcome(made) == "PENDING"
    rig.until_left()
    assert rig.outcome(made) == ["APPLIED"]
