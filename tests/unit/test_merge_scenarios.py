"""Stories of devices and a server, told at the level of the rules; the same ones run against real services
elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from anabranch.merge import MutationType, Outcome, Policy
from anabranch.testkit.memory_node import MemoryNode
from anabranch.testkit.memory_server import MemoryServer, MemoryTable, Row, Sent
from anabranch.testkit.memory_story import Change
from anabranch.values import key_text

IN_TIME, NEVER_PARKS = 1_000_000, 0
APPLIED, MERGED, OVERWROTE, SUPERSEDED = Outcome
TODO = MemoryTable({"id": None, "title": None, "done": False})
MILK = {"id": "x", "title": "milk", "done": False}
EGGS = {"id": "y", "title": "eggs", "done": False}


def insert(**row: object) -> Change:
    return "todo", MutationType.INSERT, str(row["id"]), row


def update(key: str, **values: object) -> Change:
    return "todo", MutationType.UPDATE, key, values


def delete(key: str) -> Change:
    return "todo", MutationType.DELETE, key, {}


class World:
    """Two devices that sync when told, and a clock that goes on by itself. Rows x and y are there and known."""

    def __init__(self, policy: Policy | None = None, park_ms: int = IN_TIME, *rows: Row) -> None:
        self.server = MemoryServer({"todo": TODO}, policy or Policy(), park_ms)
        self.now = 1000
        self.a = MemoryNode("a", 0, self.server)
        self.b = MemoryNode("b", 1, self.server)
        self._sent: set[str] = set()
        for row in rows:
            self.make(self.a, insert(**row))
        self.sync_all()

    def make(self, node: MemoryNode, *changes: Change) -> Sent:
        """One batch."""
        self.now += 10
        return node.make(self.now, *changes)

    def send(self, sent: Sequence[Sent]) -> None:
        """Batches arrive, each decided before the next one comes."""
        for one in sent:
            self.now += 10
            self.server.send(one, self.now)
            self.server.commit(self.now)

    def sync(self, node: MemoryNode) -> None:
        """Sends what is queued and reads to the head."""
        self.send(node.to_send())
        node.read(self.server)

    def sync_all(self) -> None:
        for node in (self.a, self.b, self.a):
            self.sync(node)

    def ends(self, *rows: Row) -> None:
        """These are the server's rows, and both devices show the same."""
        self.sync_all()
        assert sorted(self.server.live().values(), key=str) == sorted(rows, key=str)
        for node in (self.a, self.b):
            assert node.queue == []
            assert node.all_shown() == self.server.live()

    def outcomes(self, node: MemoryNode) -> list[tuple[Outcome, ...] | str]:
        verdicts = [self.server.verdicts[sent.id] for sent in node.made]
        return [verdict.reason or verdict.outcomes for verdict in verdicts]

    def lost(self) -> list[tuple[str, object, str]]:
        return [(c.column, c.losing_value, c.losing_node) for c in self.server.conflicts]


def test_02_concurrent_updates_of_different_columns_are_merged() -> None:
    world = World(None, IN_TIME, MILK)
    world.make(world.b, update("x", done=True))
    world.make(world.a, update("x", title="oat milk"))
    world.sync(world.a)
    world.ends({**MILK, "title": "oat milk", "done": True})
    assert world.outcomes(world.b) == [(MERGED,)]
    assert world.lost() == []


def test_03_with_order_server_the_later_arrival_wins_a_column() -> None:
    world = World(None, IN_TIME, MILK)
    world.make(world.b, update("x", title="from b"))
    world.make(world.a, update("x", title="from a"))
    world.sync(world.a)
    world.ends({**MILK, "title": "from b"})
    assert world.lost() == [("title", "from a", "a")]


def test_04_with_order_edit_the_later_edit_wins_a_column_whichever_arrives_first() -> None:
    for first_to_sync in ("a", "b"):
        world = World(Policy(order="edit"), IN_TIME, MILK)
        world.make(world.b, update("x", title="early edit", done=True))
        world.make(world.a, update("x", title="late edit"))
        world.sync(world.a if first_to_sync == "a" else world.b)
        world.ends({**MILK, "title": "late edit", "done": True})
        assert world.lost() == [("title", "early edit", "b")]


def test_05_an_update_of_a_row_that_somebody_deleted_is_rejected_with_its_whole_batch() -> None:
    world = World(None, IN_TIME, MILK, EGGS)
    world.make(world.b, update("x", title="oat milk"), update("y", title="two eggs"))
    world.make(world.a, delete("x"))
    world.sync(world.a)
    world.ends(EGGS)
    assert world.outcomes(world.b) == ["ROW_DELETED"]


def test_06_a_delete_by_a_node_that_had_not_seen_an_update_is_rejected() -> None:
    world = World(None, IN_TIME, MILK, EGGS)
    world.make(world.b, delete("x"))
    world.make(world.a, update("x", title="oat milk"), update("y", title="two eggs"))
    world.sync(world.a)
    world.sync_all()
    world.make(world.b, delete("y"))
    world.ends({**MILK, "title": "oat milk"})
    assert world.outcomes(world.b) == ["CONCURRENT_UPDATE", (APPLIED,)]


def test_07_of_two_deletes_the_second_is_rejected() -> None:
    world = World(None, IN_TIME, MILK)
    world.make(world.b, delete("x"))
    world.make(world.a, delete("x"))
    world.sync(world.a)
    world.ends()
    assert world.outcomes(world.b) == ["ALREADY_DELETED"]


def test_08_an_insert_of_a_key_that_exists_or_existed_is_rejected() -> None:
    world = World()
    world.make(world.b, insert(id="x", title="from b"))
    world.make(world.b, insert(id="y", title="from b"))
    world.make(world.a, insert(id="x", title="from a", done=False))
    world.make(world.a, insert(id="y", title="from a"))
    world.sync(world.a)
    world.make(world.a, delete("y"))
    world.sync(world.a)
    world.ends({"id": "x", "title": "from a", "done": False})
    assert world.outcomes(world.b) == ["ROW_EXISTS", "ROW_DELETED"]


def test_09_an_update_that_overtakes_its_insert_waits_for_it() -> None:
    world = World()
    world.make(world.a, insert(**MILK))
    world.make(world.a, update("x", done=True))
    world.make(world.a, update("x", title="oat milk"))
    world.send(world.a.to_send()[::-1])
    world.ends({**MILK, "title": "oat milk", "done": True})
    assert world.outcomes(world.a) == [(APPLIED,), (APPLIED,), (APPLIED,)]


def test_10_a_late_batch_takes_its_place() -> None:
    world = World(None, NEVER_PARKS, MILK)
    world.make(world.a, update("x", title="first", done=True))
    world.make(world.a, update("x", title="second"))
    world.send(world.a.to_send()[1:])
    world.sync(world.b)
    world.make(world.b, update("x", title="from b"))
    world.sync(world.b)
    world.ends({**MILK, "title": "from b", "done": True})
    assert world.outcomes(world.a) == [(APPLIED,), (SUPERSEDED,), (APPLIED,)]


def test_13_after_a_rejection_later_batches_that_still_make_sense_are_kept() -> None:
    world = World(None, IN_TIME, MILK, EGGS)
    world.make(world.b, update("x", title="b1"))
    world.make(world.b, update("y", title="b2"))
    world.make(world.b, update("x", done=True))
    world.make(world.b, update("y", done=True))
    world.make(world.a, delete("x"))
    world.sync(world.a)
    world.ends({**EGGS, "title": "b2", "done": True})
    assert world.outcomes(world.b) == ["ROW_DELETED", (APPLIED,), "ROW_DELETED", (APPLIED,)]


def test_18_similar_composite_keys_stay_apart() -> None:
    rows = {key_text(k): {"id": None, "title": "/".join(k)} for k in (("1", "07"), ("1", "7"), ("10", "7"))}
    assert len(rows) == 3
    world = World()
    world.make(world.a, *(("todo", MutationType.INSERT, key, row) for key, row in rows.items()))
    world.sync_all()
    world.make(world.b, update(key_text(("1", "7")), title="w"), delete(key_text(("10", "7"))))
    world.ends({"id": None, "title": "1/07", "done": False}, {"id": None, "title": "w", "done": False})


def test_23_a_nodes_own_later_write_does_not_hide_that_it_never_saw_anothers() -> None:
    world = World(None, IN_TIME, MILK)
    world.make(world.a, update("x", title="from a"))
    world.make(world.a, delete("x"))
    world.make(world.b, update("x", title="from b", done=True))
    world.sync(world.b)
    world.ends({**MILK, "title": "from a", "done": True})
    assert world.outcomes(world.a) == [(APPLIED,), (OVERWROTE,), "CONCURRENT_UPDATE"]
    assert world.lost() == [("title", "from b", "b")]


def test_24_counters_add_up_and_max_keeps_the_larger() -> None:
    world = World(Policy(columns={"title": "counter", "done": "max"}))
    world.make(world.a, insert(id="x", title=10, done=5))
    world.sync_all()
    sent = world.make(world.b, update("x", title=7, done=6))
    world.make(world.a, update("x", title=15, done=9))
    world.sync(world.a)
    world.ends({"id": "x", "title": 12, "done": 9})
    world.send([sent] * 3)
    world.ends({"id": "x", "title": 12, "done": 9})
    assert world.lost() == []


def test_25_a_delete_a_new_insert_and_an_update_end_right_in_whatever_order_they_arrive() -> None:
    """In time; and late, where the update was there first (else it, or the insert, is refused and not late)."""
    in_time = [(IN_TIME, order) for order in itertools.permutations(range(3))]
    for park_ms, order in [*in_time, (NEVER_PARKS, (2, 0, 1)), (NEVER_PARKS, (2, 1, 0))]:
        world = World(None, park_ms, {**MILK, "title": "old"})
        world.make(world.a, delete("x"))
        world.make(world.a, insert(id="x", title="new", done=False))
        world.make(world.a, update("x", done=True))
        sent = world.a.to_send()
        world.send([sent[n] for n in order])
        world.ends({**MILK, "title": "new", "done": True})
        if park_ms == IN_TIME:
            assert world.outcomes(world.a) == [(APPLIED,)] * 4


def test_26_of_two_writes_of_one_column_in_one_batch_the_second_stands() -> None:
    world = World(None, IN_TIME, MILK)
    world.make(world.a, update("x", title="one"), update("x", title="two"))
    world.make(world.a, delete("x"), insert(id="x", title="three"), update("x", title="four"))
    world.ends({**MILK, "title": "four"})
    assert world.outcomes(world.a) == [(APPLIED,), (APPLIED,) * 2, (APPLIED,) * 3]
    assert world.lost() == []


def test_27_what_a_node_did_to_its_own_refused_insert_never_touches_the_others_row() -> None:
    world = World()
    world.make(world.b, insert(id="x", title="from b"))
    world.make(world.b, update("x", title="from b again"))
    world.make(world.a, insert(id="x", title="from a", done=False))
    world.sync(world.a)
    world.ends({**MILK, "title": "from a"})
    assert world.outcomes(world.b) == ["ROW_EXISTS", "ROW_DELETED"]
    assert world.lost() == []


def test_28_an_update_of_an_insert_that_was_refused_is_refused_at_once() -> None:
    world = World()
    world.server.tables = {"todo": MemoryTable(TODO.columns, references={"title": "todo"})}
    world.make(world.a, insert(id="k", title="nobody"))
    world.make(world.a, update("k", done=True))
    world.sync(world.a)
    assert world.a.queue == []
    assert world.outcomes(world.a) == ["CONSTRAINT", "ROW_NOT_FOUND"]
