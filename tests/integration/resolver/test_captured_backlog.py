"""How much waits to enter the log, and for how long, is known without a clock in the writers' rows."""

from __future__ import annotations

from anabranch.store.capture.backlog import CapturedBacklog, captured_backlogs
from anabranch.testkit.resolver_rig import ResolverRig

MOST = 100


def test_the_oldest_has_waited_since_it_was_first_seen(rig: ResolverRig) -> None:
    moments: dict[int, tuple[str, float]] = {}

    def look(now_s: float, most: int = MOST) -> CapturedBacklog:
        [found] = captured_backlogs(rig.conn, moments, now_s, most)
        return found

    assert look(0) == (rig.name, 0, 0.0)
    rig.sql("insert into app.todo select i::text from generate_series(1, 3) i")
    assert look(10) == (rig.name, 3, 0.0)
    rig.sql("insert into app.todo values ('later')")
    assert look(15) == (rig.name, 4, 5.0)
    assert look(90) == (rig.name, 4, 80.0)
    assert look(90, most=2) == (rig.name, 2, 80.0)
    rig.drain()
    assert look(100) == (rig.name, 0, 0.0)
    rig.sql("insert into app.todo values ('again')")
    assert look(110) == (rig.name, 1, 0.0)


def test_what_comes_all_the_time_is_not_old_as_long_as_it_goes(rig: ResolverRig) -> None:
    """Also where it was captured long before its transaction committed."""
    moments: dict[int, tuple[str, float]] = {}
    slow = rig.session()
    slow.execute("insert into app.todo values ('long open')")
    for number in range(5):
        rig.sql(f"insert into app.todo values ('{number}')")
        [found] = captured_backlogs(rig.conn, moments, 10.0 * number, MOST)
        assert found == (rig.name, 2 if number else 1, 0.0)
        rig.drain()
        rig.sql(f"insert into app.todo values ('{number} more')")
    slow.commit()
    slow.close()
    [found] = captured_backlogs(rig.conn, moments, 50.0, MOST)
    assert found.age_s == 0
    [found] = captured_backlogs(rig.conn, moments, 60.0, MOST)
    assert found == (rig.name, 2, 10.0)
