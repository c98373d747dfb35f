"""Dry runs are small, short, and one at a time: nobody waits long because somebody else asks."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.integration.resolver.calls import Service, decided

from anabranch import limits
from anabranch.runtime.errors import error_info
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import load
from anabranch.v1 import verdict_pb2

pytestmark = pytest.mark.slow
APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED


def rows(count: int, size: int = 5) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "title": "t" * size, "done": False} for number in range(count)]


def refused(call: Callable[[], object]) -> tuple[str, dict[str, str]]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    info = error_info(caught.value)
    assert info is not None, caught.value
    return info.reason, dict(info.metadata)


def took(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def test_a_dry_run_of_too_much_is_refused_by_name_and_at_once(service: Service, rig: ResolverRig) -> None:
    a = rig.node("a")
    many = a.make(("insert", "todo", rows(limits.MAX_EXPLAIN_ROWS + 1)))
    large = a.make(("insert", "todo", rows(2, limits.MAX_EXPLAIN_BYTES)))
    most = a.make(("insert", "todo", rows(50_000)))
    service.explain(a, a.make(("insert", "todo", rows(1))))
    started = time.monotonic()
    _expect(refused(lambda: service.explain(a, many)), "LIMIT_EXCEEDED", "max_rows")
    _expect(refused(lambda: service.explain(a, large)), "LIMIT_EXCEEDED", "max_bytes")
    _expect(refused(lambda: service.explain(a, most)), "LIMIT_EXCEEDED", "max_bytes")
    spent = time.monotonic() - started
    assert spent < 1.5


def _expect(found: tuple[str, dict[str, str]], reason: str, limit: str) -> None:
    assert (found[0], list(found[1])) == (reason, [limit])


def test_as_many_rows_as_may_be_are_explained(service: Service, rig: ResolverRig) -> None:
    a = rig.node("a")
    made = a.make(("insert", "todo", rows(limits.MAX_EXPLAIN_ROWS)))
    spent = took(lambda: service.explain(a, made))
    print(f"{limits.MAX_EXPLAIN_ROWS} rows: {spent * 1000:.0f} ms")
    assert service.explain(a, made).verdict.status == APPLIED
    assert rig.rows("todo", "title") == []


def test_one_principal_that_asks_without_end_delays_neither_groups_nor_others(
    service: Service, rig: ResolverRig
) -> None:
    a, b, c = rig.node("a"), rig.node("b"), rig.node("c")
    a.see()

    def group() -> None:
        assert decided(service, "user-b", b.insert("todo", {"id": b.new_id(), "title": "t"})).status == APPLIED

    def question() -> None:
        assert service.explain(c, c.make(("insert", "todo", [{"id": c.new_id()}]))).verdict.status == APPLIED

    group()
    question()
    quiet = statistics.median(took(group) for _ in range(20))
    made = a.make(("insert", "todo", rows(limits.MAX_EXPLAIN_ROWS)))
    over, answers = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            try:
                service.explain(a, made)
                answers.append("")
            except grpc.RpcError as error:
                info = error_info(error)
                answers.append(info.reason if info is not None else str(error))
                over.wait(0.05)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for one in askers:
        one.start()
    try:
        busy = statistics.median(took(group) for _ in range(40))
        asked = [took(question) for _ in range(5)]
    finally:
        over.set()
        for one in askers:
            one.join()
    print(f"groups: {quiet * 1000:.0f} ms quiet, {busy * 1000:.0f} ms busy; others' questions {max(asked):.2f} s")
    assert set(answers) <= {"", "OVERLOADED"}
    # The askers' own Python has one of the two processors.
    assert busy < 3 * quiet + 0.02 * load()
    assert max(asked) < 5


def test_a_dry_run_that_takes_long_is_ended_by_name(service: Service, rig: ResolverRig) -> None:
    rig.sql(
        "create function app.slow() returns trigger language plpgsql as "
        "$$ begin perform pg_sleep(0.5); return new; end $$"
    )
    rig.sql("create trigger slow before insert on app.todo for each row execute function app.slow()")
    a = rig.node("a")
    made = a.make(("insert", "todo", rows(20)))
    spent = took(lambda: _expect(refused(lambda: service.explain(a, made)), "OVERLOADED", "retry_after_ms"))
    assert spent < 8
    rig.sql("drop trigger slow on app.todo")
    assert service.explain(a, made).verdict.status == APPLIED
