"""How often captured changes are looked for: at once while they come, seldom after a long silence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.store.capture import captured
from anabranch.store.session.engine import Session
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.captured.watch import QUICK_S, SILENCE_SHARE, CapturedWatch

SLOW_S = 0.2
ROUNDING_S = 1e-9
NOBODY: frozenset[int] = frozenset()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each time that Postgres is asked."""
    asked: list[int] = []
    real = captured.databases

    def databases(conn: Session) -> list[int]:
        asked.append(1)
        return real(conn)

    monkeypatch.setattr(captured, "databases", databases)
    return asked


@pytest.fixture
def watch() -> CapturedWatch:
    """One that has not looked yet."""
    return CapturedWatch(SLOW_S)


def silence(watch: CapturedWatch, session: Session, since: float, seconds: float) -> Iterator[tuple[float, float]]:
    """Looks at the times that the watch names while nothing comes: how long it has been silent, and the next pause."""
    now = since
    while now < since + seconds:
        now += watch.due_in(now)
        assert watch.look(session, now, NOBODY) == set()
        yield now - since, watch.due_in(now)


def test_a_pause_is_a_share_of_the_silence_before_it(rig: ResolverRig, watch: CapturedWatch, looks: list[int]) -> None:
    rig.sql("insert into app.todo values ('a', 'milk', false)")
    assert watch.look(rig.conn, 100.0, NOBODY) == {rig.database.id}
    assert watch.due_in(100.0) == pytest.approx(QUICK_S), "more will come"
    rig.drain()
    before = 0.0
    for silent_s, pause_s in silence(watch, rig.conn, 100.0, 60.0):
        longest = min(SLOW_S, max(QUICK_S, silent_s / SILENCE_SHARE))
        assert before - ROUNDING_S <= pause_s <= longest + ROUNDING_S
        before = pause_s
    assert before == pytest.approx(SLOW_S)
    assert len(looks) < 60.0 / SLOW_S + 100


def test_an_idle_resolver_asks_seldom(rig: ResolverRig, watch: CapturedWatch, looks: list[int]) -> None:
    list(silence(watch, rig.conn, 0.0, 10.0))
    assert len(looks) <= 10.0 / SLOW_S + 2


def test_what_comes_after_a_silence_makes_it_quick(rig: ResolverRig, watch: CapturedWatch) -> None:
    *_, (silent_s, pause_s) = silence(watch, rig.conn, 0.0, 10.0)
    rig.sql("insert into app.todo values ('a', 'milk', false)")
    assert pause_s <= SLOW_S + ROUNDING_S, "it does not wait for longer"
    now = silent_s + pause_s
    assert watch.look(rig.conn, now, NOBODY) == {rig.database.id}
    assert watch.due_in(now) == pytest.approx(QUICK_S)


def test_nothing_is_asked_while_a_worker_is_on_all_that_had_changes(
    rig: ResolverRig, watch: CapturedWatch, looks: list[int]
) -> None:
    """But for one look in every longest pause: others may have got some."""
    busy = frozenset({rig.database.id})
    rig.sql("insert into app.todo values ('a', 'milk', false)")
    assert watch.look(rig.conn, 0.0, NOBODY) == busy
    now = 0.0
    while now < 1.0:
        now += watch.due_in(now)
        watch.look(rig.conn, now, busy)
    assert 1.0 / SLOW_S <= len(looks) <= 1.0 / SLOW_S + 2
    rig.drain()
    now += watch.due_in(now)
    asked = len(looks)
    assert watch.look(rig.conn, now, NOBODY) == set()
    assert len(looks) == asked + 1, "it is asked as soon as nobody is at it"
