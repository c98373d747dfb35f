"""Every small history there is: the rules and the overlay, two nodes, two rows, four batches.

Row x was there before registration, row y was not. A batch is one change of one row: of a row that the node shows, an
update of column p, one of column q, or a delete; of one that it does not show, an insert. Four batches are two of each
node or three of one and one of the other, in every content that fits. They arrive in all 24 orders, and each order is
cut into groups in all 8 ways; a group is decided in the order of ids, so that of these 192 schedules 75 differ. Each is
told to a server whose park time is never over, and to one that parks nothing. In the first two families every batch is
made before anything arrives; in the third node b makes each of its two just before it arrives, having read everything.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_node import MemoryNode
from anabranch.testkit.memory_oracle import told
from anabranch.testkit.memory_server import Key, MemoryServer, MemoryTable, Row, Sent
from anabranch.testkit.memory_story import Change

TABLES = {"t": MemoryTable({"p": None, "q": None})}
PARKS, NEVER = 1_000_000, 0
SLOT_MS = 100
Slots = tuple[int, ...]
Content = tuple[tuple[Change, ...], ...]


def new_server(policy: Policy, park_ms: int) -> MemoryServer:
    server = MemoryServer(TABLES, policy, park_ms)
    server.preset("t", "x", {"p": 0, "q": 0})
    return server


def options(node: MemoryNode) -> list[Change]:
    """Every change that fits what the node shows; the values tell whose it was."""
    tag = f"{node.name}{len(node.made)}"
    changes: list[Change] = []
    for key in ("x", "y"):
        if node.shown("t", key) is None:
            changes.append(("t", MutationType.INSERT, key, {"p": tag, "q": tag}))
        else:
            changes += [("t", MutationType.UPDATE, key, {column: tag}) for column in ("p", "q")]
            changes.append(("t", MutationType.DELETE, key, {}))
    return changes


def sequences(number: int, length: int) -> list[tuple[Change, ...]]:
    """Everything that one node can do in so many batches without reading."""
    found: list[tuple[Change, ...]] = [()]
    for _ in range(length):
        longer = []
        for changes in found:
            node = MemoryNode("ab"[number], number, new_server(Policy(), NEVER))
            for at, change in enumerate(changes):
                node.make(at + 1, change)
            longer += [(*changes, change) for change in options(node)]
        found = longer
    return found


def schedules() -> dict[Slots, int]:
    """The slots of four batches: every order, cut into groups in every way, and how often each comes up."""
    found: Counter[Slots] = Counter()
    for order in itertools.permutations(range(4)):
        for cuts in itertools.product((0, 1), repeat=3):
            slot_of = dict(zip(order, itertools.accumulate((1, *cuts)), strict=True))
            found[tuple(slot_of[batch] for batch in range(4))] += 1
    return found


def dense(slots: Sequence[int]) -> Slots:
    used = sorted(set(slots))
    return tuple(used.index(slot) + 1 for slot in slots)


class Told:
    """One history, checked while it is told."""

    def __init__(self, policy: Policy, park_ms: int) -> None:
        self.server = new_server(policy, park_ms)
        self.start: dict[Key, Row] = self.server.live()
        self.nodes = [MemoryNode(name, number, self.server) for number, name in enumerate("ab")]

    def group(self, arriving: Sequence[Sent], slot: int) -> None:
        """Batches arrive, a group is decided, everybody reads."""
        for sent in arriving:
            self.server.send(sent, slot * SLOT_MS)
        self.server.commit(slot * SLOT_MS)
        lost = {c.losing_batch for c in self.server.conflicts}
        for node in self.nodes:
            showed = node.all_shown()
            new = node.read(self.server)
            assert node.base == self.server.live()
            if not node.dead and all(b.node == node.name and b.id not in lost for b in new):
                assert node.all_shown() == showed, "its own accepted work changed what a node shows"

    def end(self) -> None:
        """Everything is decided and read: no overlay is left, and the rows are those of the total order."""
        server = self.server
        assert not server.waiting
        for node in self.nodes:
            assert not node.queue
            assert node.all_shown() == server.live()
        sent = {s.id: s for node in self.nodes for s in node.made}
        assert server.verdicts.keys() == sent.keys()
        assert server.live() == told(TABLES, server.policy.order, self.start, server.log, sent).rows()

    def outcome(self) -> tuple[object, ...]:
        return self.server.live(), self.server.log, self.server.verdicts


def tell(policy: Policy, park_ms: int, content: Content, slots: Slots) -> Told:
    """Everybody makes everything, then the batches of the first node and of the second arrive in these slots."""
    history = Told(policy, park_ms)
    for at in range(max(map(len, content))):
        for node, changes in zip(history.nodes, content, strict=True):
            if at < len(changes):
                node.make(10 * at + 1, changes[at])
    sent = [s for node in history.nodes for s in node.to_send()]
    for slot in range(1, max(slots) + 1):
        history.group([s for s, at in zip(sent, slots, strict=True) if at == slot], slot)
    history.end()
    return history


def of_node(slots: Slots, counts: tuple[int, int]) -> Iterator[Slots]:
    yield slots[: counts[0]]
    yield slots[counts[0] :]


def in_order(slots: Slots, counts: tuple[int, int]) -> Slots:
    """Each batch waits for the earlier ones of its node."""
    return tuple(s for own in of_node(slots, counts) for s in itertools.accumulate(own, max))


def in_place(slots: Slots, counts: tuple[int, int]) -> Slots:
    """Each batch comes no later than the later ones of its node."""
    return tuple(s for own in of_node(slots, counts) for s in reversed([*itertools.accumulate(own[::-1], min)]))


def decided(history: Told) -> Slots:
    """The slot in which each batch was decided."""
    verdicts = history.server.verdicts
    return tuple(verdicts[sent.id].position // SLOT_MS for node in history.nodes for sent in node.made)


def check_content(policy: Policy, content: Content, schedule: Sequence[Slots], counted: Counter[str]) -> None:
    """All schedules of one content, in time and late, held against each other."""
    counts = len(content[0]), len(content[1])
    in_time: dict[Slots, Told] = {}
    late: dict[Slots, Told] = {}
    for slots in schedule:
        in_time[slots] = tell(policy, PARKS, content, slots)
        # A batch that arrives in order waits for nothing, and the park time can't matter.
        late[slots] = in_time[slots] if in_order(slots, counts) == slots else tell(policy, NEVER, content, slots)
        counted["histories"] += 1 + (late[slots] is not in_time[slots])
    for slots in schedule:
        right = in_order(slots, counts)
        if right != slots:
            counted["waited"] += 1
            if right in in_time:
                assert in_time[slots].outcome() == in_time[right].outcome()
            else:
                # Waiting left a group empty: the same rows and verdicts at earlier positions.
                other = in_time[dense(right)].server
                assert in_time[slots].server.live() == other.live()
                assert reasons(in_time[slots].server) == reasons(other)
        # A batch that waits for a row of its node beyond the park time takes its place when that comes.
        placed = in_place(decided(late[slots]), counts)
        if placed != slots and not any(map(any_refused, (late[slots], late[dense(placed)]))):
            counted["late"] += 1
            assert late[slots].server.live() == late[dense(placed)].server.live()


def reasons(server: MemoryServer) -> list[tuple[str, str, object]]:
    return sorted((i, v.reason, v.outcomes) for i, v in server.verdicts.items())


def any_refused(history: Told) -> bool:
    return any(verdict.reason for verdict in history.server.verdicts.values())


def every_choice(park_ms: int, offline: tuple[Change, ...], slots: Slots) -> int:
    """Node b makes each batch when it arrives, in every way that then fits. Answers how many histories that gave."""
    picks: list[int] = []
    count = 0
    while True:
        count += 1
        numbers = tell_live(park_ms, offline, slots, picks)
        while picks and picks[-1] == numbers[len(picks) - 1] - 1:
            picks.pop()
        if not picks:
            return count
        picks[-1] += 1


def tell_live(park_ms: int, offline: tuple[Change, ...], slots: Slots, picks: list[int]) -> list[int]:
    """One of them. ``picks`` chooses among what fits, and is filled up with first choices. Answers how many choices
    there were each time."""
    history = Told(Policy(), park_ms)
    a, b = history.nodes
    for at, change in enumerate(offline):
        a.make(10 * at + 1, change)
    away = a.to_send()
    numbers: list[int] = []
    for slot in range(1, max(slots) + 1):
        arriving = [s for s, at in zip(away, slots[:2], strict=True) if at == slot]
        for _ in range(slots[2:].count(slot)):
            changes = options(b)
            if len(numbers) == len(picks):
                picks.append(0)
            b.make(slot * SLOT_MS - 50, changes[picks[len(numbers)]])
            numbers.append(len(changes))
            arriving.append(b.to_send()[-1])
        history.group(arriving, slot)
    history.end()
    return numbers


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_promises_5_and_6_hold_in_every_small_history(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = schedules()
    assert sum(schedule.values()) == 192
    counted: Counter[str] = Counter()
    pairs = list(itertools.product(sequences(0, 2), sequences(1, 2)))
    triples = list(itertools.product(sequences(0, 3), sequences(1, 1)))
    for content in pairs + triples:
        check_content(Policy(), content, list(schedule), counted)
    for offline in sequences(0, 2):
        for slots in schedule:
            if slots[2] > slots[3]:
                continue
            for park_ms in (PARKS, NEVER):
                counted["live"] += every_choice(park_ms, offline, slots)
    # So many there are: were it fewer, some would have been left out.
    assert (len(pairs), len(triples), counted["histories"], counted["live"]) == (256, 288, 69184, 25518)
    with capsys.disabled():
        print(
            f"\nmerge with the overlay: {len(pairs)} + {len(triples)} contents x {sum(schedule.values())} orders and"
            f" cuts ({len(schedule)} differ) x in time and late: {counted['histories']} histories, of which"
            f" {counted['waited']} held against the right order and {counted['late']} against the right place;"
            f" {counted['live']} more with one node live"
        )
