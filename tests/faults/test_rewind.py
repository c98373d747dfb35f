"""Promise 9: the server is restored from a backup of its whole Postgres, and nodes find out from their first call."""

from __future__ import annotations

import itertools
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import CallFailed
from anabranch.scenario.ground import Ground
from anabranch.scenario.node import Nursery
from anabranch.store.catalog import registration
from anabranch.testkit.exposition import shown
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.story import Story, new_id
from anabranch.testkit.story_node import StoryNode
from anabranch.testkit.waiting import until
from anabranch.testkit.warm_compactor import WarmCompactor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TODO = {"todo": "id text primary key, title text, n bigint"}
HOUR_MS = 3_600_000
WAIT_S = 60.0
READS = 5
PULL_SESSIONS = 4
"""Pulls that a snapshot process serves at once, as it is set from the start."""
STALL_MS = 600_000
"""A pull that nobody takes keeps its turn for as long as a test may last, also while others wait."""
SLOW = {
    "ANABRANCH_PULL_STALL_MS": str(STALL_MS),
    "ANABRANCH_PULL_LEAST_WINDOW_MS": str(STALL_MS),
    "ANABRANCH_PULL_SESSIONS_PER_PRINCIPAL": str(PULL_SESSIONS),
}
_labels = itertools.count(1)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("ground")
    with (
        closing(Nursery(folder / "nursery.log")) as nursery,
        WarmCompactor(folder / "compactor.log") as compactor,
        Ground(folder / "ground", nursery, compactor, SLOW) as made,
    ):
        yield made


class Restorable:
    """A story whose server can be taken back. ``ahead``: the log stands an hour ahead of the clock, so that the next
    positions follow each other, and those after a restore are the same ones once more."""

    def __init__(self, ground: Ground, folder: Path, *, ahead: bool = False, **options: Any) -> None:
        self.ground = ground
        self.story = Story(ground.stack, folder, TODO, **options)
        if ahead:
            self.story.sql(
                "insert into anabranch.groups (database_id, position, batches, changes, chain, sums, claimed)"
                " values (%s, %s, 0, 0, %s, '{}', true)",
                [self.story.database.id, time.time_ns() // 1_000_000 + HOUR_MS, secrets.token_bytes(16)],
            )

    def save(self) -> Callable[..., None]:
        """Take a backup; what it gives restores it. ``services_stay``: they are not started anew, and what they have
        under way goes on when Postgres is back."""
        label = f"backup{next(_labels)}"
        self.story.conn.close()
        self.ground.save(label)
        self._reconnect()

        def restore(*, services_stay: bool = False) -> None:
            self.story.conn.close()
            if services_stay:
                with self._services_left_alone():
                    self.ground.rewind(label)
            else:
                self.ground.rewind(label)
            self._reconnect()

        return restore

    @contextmanager
    def _services_left_alone(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.ground.stack, "terminate", lambda name: None)
            yield

    def _reconnect(self) -> None:
        self.story.conn = self.ground.session()

    @property
    def epochs(self) -> tuple[str, list[str]]:
        """The epoch, and those that have ended."""
        ended = self.story.sql("select epoch from anabranch.epochs where database_id = %s", [self.story.database.id])
        return self.story.database.epoch, [epoch for (epoch,) in ended]


@pytest.fixture
def restorable(ground: Ground, tmp_path: Path) -> Iterator[Callable[..., Restorable]]:
    """Maker of such stories; each must hold together at its end."""
    made: list[Restorable] = []

    def make(**options: Any) -> Restorable:
        made.append(Restorable(ground, tmp_path, **options))
        return made[-1]

    yield make
    try:
        for one in made:
            one.story.check()
    finally:
        for one in made:
            one.story.close()


def dead(node: StoryNode) -> list[tuple[str, str]]:
    return [(letter.id, letter.reason) for letter in node.db.dead_letters()]


def greatest(node: StoryNode) -> tuple[str, int]:
    row = node.db.execute("SELECT greatest_epoch, greatest_ms FROM _db_state").fetchone()
    return str(row[0]), int(row[1])


def test_promise_9_new_history_reuses_the_times_of_the_lost_one(restorable: Callable[..., Restorable]) -> None:
    place = restorable(ahead=True)
    story = place.story
    a, b, c = (story.node(name) for name in "abc")
    x, y, z = new_id(), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "kept"}, {"id": y, "title": "kept"})
    story.sync()
    c.offline()
    restore = place.save()
    before = place.epochs[0]
    lost = [a.insert("todo", {"id": z, "title": "lost future"}), b.update("todo", {"id": x, "title": "lost future"})]
    story.sync(a, b)
    lost_at = story.database.id, greatest(a)[1]
    # Made on top of the lost future, and sent when the new history is beyond it.
    unsent = a.update("todo", {"id": y, "title": "unsent"})
    restore()
    d = story.node("d")
    d.update("todo", {"id": y, "title": "new history"})
    d.sync()
    d.update("todo", {"id": x, "title": "new history"})
    d.sync()
    d.insert("todo", {"id": new_id(), "title": "new history"})
    d.sync()
    ((reused,),) = story.sql(
        "select count(*) from anabranch.groups where database_id = %s and position = %s", list(lost_at)
    )
    assert reused == 1, "the times of the lost future are used again"
    assert place.epochs[0] == before
    story.sync(a, b)
    moved, ended = place.epochs
    assert moved != before
    assert ended == [before]
    assert (dead(a), dead(b), dead(d)) == ([(lost[0], "REWOUND")], [(lost[1], "REWOUND")], [])
    # The write of d was unseen by a's batch, however its times compare: a conflict, and both values are known.
    assert unsent in story.logged
    assert ("todo", y, "title", "new history") in story.conflicts
    # A device that had lost nothing goes on without a snapshot.
    pulls = c.db.status().pulls
    c.online()
    c.sync()
    assert c.db.status().pulls == pulls
    assert greatest(c)[0] == moved


def test_a_node_that_had_only_a_verdict_from_the_lost_future(restorable: Callable[..., Restorable]) -> None:
    place = restorable()
    story = place.story
    a = story.node("a")
    x, y = new_id(), new_id()
    a.insert("todo", {"id": x, "title": "kept"})
    story.sync()
    restore = place.save()
    lost = a.update("todo", {"id": x, "title": "lost future"})
    a.flush()
    assert a.db.status().queued == 1
    restore()
    story.sql(f"insert into {story.name}.todo (id, title) values (%s, 'new history')", [new_id()])
    story.drained()
    unsent = a.insert("todo", {"id": y, "title": "unsent"})
    a.flush()
    assert dead(a) == [(lost, "REWOUND")]
    story.sync()
    assert unsent in story.logged
    assert {title for (title,) in a.rows("todo", "title")} == {"kept", "unsent", "new history"}


def pulls(story: Story, state: str) -> int:
    """How many pulls the snapshot process says are ``waiting``, or ``reading``."""
    return int(shown(story.stack.metrics_addresses["snapshot"], "anabranch_pulls", state=state))


@contextmanager
def every_turn_taken(story: Story) -> Iterator[None]:
    """In the block the snapshot process serves pulls whose clients take nothing, as many as it serves at once."""
    with ExitStack() as ends:
        for _ in range(PULL_SESSIONS):
            reader = Reader(story.stack.addresses["snapshot"], story.stack.key, story.name)
            ends.callback(reader.close)
            # A call that nobody holds on to is over.
            ends.callback(reader.pull(timeout_s=None).cancel)
        until(lambda: pulls(story, "reading") == PULL_SESSIONS, WAIT_S, "the slow pulls do not begin")
        yield


def read_again(node: StoryNode) -> None:
    """Read as the background does: again where the call failed because Postgres had been away."""
    for _ in range(READS):
        try:
            node.db.read()
        except CallFailed as error:
            if error.code != "UNAVAILABLE":
                raise
        else:
            return
    raise AssertionError(f"{node.name} can't read, {READS} times")


def test_a_restore_while_a_pull_waits_for_its_turn(restorable: Callable[..., Restorable]) -> None:
    """The pull is let in by the server that has decided the node's batch, which the log has not shown it yet; its turn
    comes with the restored one, whose new history has gone past that verdict. It is refused or served, as its session
    has ended or not: either way the loss is told."""
    place = restorable()
    story = place.story
    a = story.node("a")
    x, y = new_id(), new_id()
    a.insert("todo", {"id": x, "title": "kept"})
    # More than travels to a client that takes nothing.
    story.sql(
        f"insert into {story.name}.todo (id, title) select 'many' || n, repeat(md5(n::text), 64)"
        " from generate_series(1, 400) n"
    )
    story.drained(WAIT_S)
    story.sync()
    restore = place.save()
    lost = a.update("todo", {"id": x, "title": "lost future"})
    a.flush()
    assert a.db.status().queued == 1
    lost_at = greatest(a)[1]
    a.db.close()
    with closing(sqlite3.connect(a.file)) as conn, conn:
        conn.execute("UPDATE _db_state SET snapshot_due = 1")
    a.reopen()
    with ThreadPoolExecutor(1) as reading:
        with every_turn_taken(story):
            read = reading.submit(read_again, a)
            until(lambda: pulls(story, "waiting") == 1, WAIT_S, "the pull does not wait for its turn", read)
            restore(services_stay=True)
            story.sql(f"insert into {story.name}.todo (id, title) values (%s, 'new history')", [y])
            story.drained(WAIT_S)
            ((head,),) = story.sql(
                "select max(position) from anabranch.groups where database_id = %s", [story.database.id]
            )
            assert head > lost_at
            counts = pulls(story, "reading"), pulls(story, "waiting")
            assert counts == (PULL_SESSIONS, 1), "its turn came before that of the new history"
        read.result(4 * WAIT_S)
    assert dead(a) == [(lost, "REWOUND")]
    story.sync()
    assert {title for _, title in a.rows("todo", "id", "title") if len(title) < 64} == {"kept", "new history"}


def test_lost_work_is_sent_again_by_policy(restorable: Callable[..., Restorable]) -> None:
    place = restorable(ahead=True, policy={"on_rewind": "resupply"})
    story = place.story
    a, b = story.node("a"), story.node("b")
    x, y = new_id(), new_id()
    a.insert("todo", {"id": x, "title": "kept"})
    story.sync()
    restore = place.save()
    made = [a.insert("todo", {"id": y, "title": "first"}), a.update("todo", {"id": y, "title": "second"})]
    story.sync()
    assert a.db.status().queued == 0
    restore()
    story.sync()
    assert set(made) <= set(story.logged)
    assert story.server("todo", "id", "title") == sorted([(x, "kept"), (y, "second")])
    assert (dead(a), dead(b)) == ([], [])


@pytest.mark.parametrize("damage", ["token", "epoch", "position"])
def test_a_damaged_file_takes_a_new_snapshot_alone(restorable: Callable[..., Restorable], damage: str) -> None:
    place = restorable()
    story = place.story
    a, b = story.node("a"), story.node("b")
    x = new_id()
    a.insert("todo", {"id": x, "title": "kept"})
    story.sync()
    unsent = a.update("todo", {"id": x, "title": "unsent"})
    before = place.epochs
    pulls = a.db.status().pulls, b.db.status().pulls
    a.db.close()
    change = {
        "token": "greatest_token = zeroblob(32)",
        "epoch": "greatest_epoch = 'nonsense'",
        "position": "greatest_ms = greatest_ms + 1000000",
    }[damage]
    with closing(sqlite3.connect(a.file)) as conn, conn:
        conn.execute(f"UPDATE _db_state SET {change}")
    a.reopen()
    story.sync()
    assert place.epochs == before
    assert (a.db.status().pulls, b.db.status().pulls) == (pulls[0] + 1, pulls[1])
    assert dead(a) == []
    assert unsent in story.logged


def test_another_database_in_the_place_of_the_old_one(restorable: Callable[..., Restorable], ground: Ground) -> None:
    """Dropped and made anew under its name: other rows, another epoch, another secret."""
    place = restorable()
    story = place.story
    a = story.node("a")
    x, y, z = new_id(), new_id(), new_id()
    lost = a.insert("todo", {"id": x, "title": "of the old one"})
    story.sync()
    unsent = a.insert("todo", {"id": y, "title": "unsent"})
    story.sql("delete from anabranch.databases where name = %s", [story.name])
    story.sql(f"drop table {story.name}.todo")
    story.sql(f"create table {story.name}.todo (id text primary key, title text, n bigint)")
    story.sql(f"insert into {story.name}.todo (id, title) values (%s, 'of the new one')", [z])
    registration.create_database(story.conn, story.name, story.name)
    registration.add_table(story.conn, story.name, "todo")
    a.reopen(key=story.stack.new_key("user-a", database=story.name))
    story.sync()
    assert dead(a) == [(lost, "REWOUND")]
    assert unsent in story.logged
    assert a.rows("todo", "id", "title") == sorted([(y, "unsent"), (z, "of the new one")])
    assert place.epochs[1] == []


def test_a_failover_that_lost_nothing_is_none(restorable: Callable[..., Restorable]) -> None:
    """A standby that had everything takes over: the same cluster on a new timeline."""
    place = restorable()
    story = place.story
    a, b = story.node("a"), story.node("b")
    x = new_id()
    a.insert("todo", {"id": x, "title": "kept"})
    story.sync()
    unsent = a.update("todo", {"id": x, "title": "unsent"})
    before = place.epochs
    pulls = a.db.status().pulls, b.db.status().pulls
    ((timeline,),) = story.sql("select timeline_id from pg_control_checkpoint()")
    story.conn.close()
    place.ground.fail_over()
    story.conn = place.ground.session()
    story.sql("checkpoint")
    assert story.sql("select timeline_id > %s from pg_control_checkpoint()", [timeline]) == [(True,)]
    story.sync()
    assert place.epochs == before
    assert (a.db.status().pulls, b.db.status().pulls) == pulls
    assert (dead(a), dead(b)) == ([], [])
    assert unsent in story.logged
