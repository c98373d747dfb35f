"""Small histories of two nodes and a server in memory, drawn by hypothesis, run slot by slot.

A slot is one group commit. In it, in this order: nodes make batches (some having read first), batches whose way took
until now arrive, the server decides. The arrivals are kept, so that the same batches can be sent again in another order
of arrival, to a new server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_node import MemoryNode
from anabranch.testkit.memory_server import MemoryServer, MemoryTable, Row, Sent

SLOT_MS = 100
NODES = ("a", "b")
Change = tuple[str, MutationType, str, Row]

TABLES = {
    "list": MemoryTable({"id": None, "title": "untitled", "note": None}),
    "todo": MemoryTable(
        {"id": None, "list_id": None, "title": "untitled", "rank": None},
        references={"list_id": "list"},
        unique=("rank",),
    ),
}
"""Two tables with a foreign key and a unique column. A story that must accept everything uses LOOSE."""

LOOSE = {name: MemoryTable(table.columns) for name, table in TABLES.items()}
_KEYS = {"list": ("l1", "l2"), "todo": ("t1", "t2")}
_CELLS = {"title": ("milk", "eggs", "tea"), "note": (None, "soon"), "list_id": (None, "l1", "l2"), "rank": (None, 1, 2)}


@dataclass(frozen=True)
class Making:
    """A batch to be made: in which slot, by which node, having read first or not, how many slots it is on its way.
    ``picks`` choose its changes among those that fit what the node shows."""

    slot: int
    node: int
    reads: bool
    delay: int
    picks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Arrival:
    """A batch as it was sent, and the slot in which it arrived."""

    sent: Sent
    slot: int


# Changes of row l1 alone, for half of the stories: there late deletes, inserts and updates meet each other. The numbers
# are those that ``fitting`` reads: as many deletes as updates.
_ONE_ROW = (0, 0, 4, 4 | 1 << 4)


def makings(max_batches: int = 7, max_delay: int = 4) -> st.SearchStrategy[list[Making]]:
    """Stories as lists of batches to be made: of everything, or of one row."""
    anything, one_row = st.integers(0, 1 << 16), st.sampled_from(_ONE_ROW)
    return _makings(anything, max_batches, max_delay) | _makings(one_row, max_batches, max_delay)


def one_row_offline(max_batches: int = 6) -> st.SearchStrategy[list[Making]]:
    """Stories of node a alone, which works on one row without reading; its batches arrive in any order."""
    values = st.integers(0, 1 << 16)
    picks = st.lists(st.tuples(st.sampled_from(_ONE_ROW), values), min_size=1, max_size=2).map(tuple)
    orders = st.integers(2, max_batches).flatmap(lambda n: st.permutations(range(n)))
    return orders.flatmap(
        lambda delays: st.tuples(
            *(st.builds(Making, st.just(1), st.just(0), st.just(False), st.just(d), picks) for d in delays)
        )
    ).map(list)


def _makings(whats: st.SearchStrategy[int], max_batches: int, max_delay: int) -> st.SearchStrategy[list[Making]]:
    picks = st.tuples(whats, st.integers(0, 1 << 16))
    making = st.builds(
        Making,
        slot=st.integers(1, 4),
        node=st.integers(0, len(NODES) - 1),
        reads=st.booleans(),
        delay=st.integers(0, max_delay),
        picks=st.lists(picks, min_size=1, max_size=3).map(tuple),
    )
    return st.lists(making, min_size=1, max_size=max_batches)


def _some_columns(table: MemoryTable, pick: int, always: int = 0) -> Row:
    """A few columns with values: bits of ``pick`` choose both; the one numbered ``always`` is never left out."""
    columns = [c for c in table.columns if c != "id"]
    row = {}
    for number, column in enumerate(columns):
        bits = pick >> 4 * number
        if bits & 1 or number == always % len(columns):
            cells = _CELLS[column]
            row[column] = cells[(bits >> 1) % len(cells)]
    return row


def fitting(node: MemoryNode, server: MemoryServer, picks: Sequence[tuple[int, int]]) -> list[Change]:
    """Changes of one batch, each of which fits what the node shows after the ones before it."""
    changes: list[Change] = []
    rows = node.all_shown()
    for what, values in picks:
        table = ("list", "todo")[what & 1]
        key = _KEYS[table][what >> 1 & 1]
        rules = server.tables[table]
        if (table, key) not in rows:
            row = {"id": key, **_some_columns(rules, values)}
            changes.append((table, MutationType.INSERT, key, row))
            rows[table, key] = row
        elif what >> 2 & 3:
            row = dict(_some_columns(rules, values, what >> 4))
            changes.append((table, MutationType.UPDATE, key, row))
        else:
            changes.append((table, MutationType.DELETE, key, {}))
            del rows[table, key]
    return changes


def new_server(policy: Policy, park_ms: int, tables: dict[str, MemoryTable] = TABLES) -> MemoryServer:
    """A server on which one list and one todo were there before registration."""
    server = MemoryServer(tables, policy, park_ms)
    server.preset("list", "l1", {"id": "l1"})
    server.preset("todo", "t1", {"id": "t1", "list_id": "l1"})
    return server


def tell(
    server: MemoryServer,
    story: Sequence[Making],
    after_slot: Callable[[MemoryServer, list[MemoryNode]], None] = lambda server, nodes: None,
    clocks_ms: Sequence[int] = (0, 0),
) -> tuple[list[MemoryNode], list[Arrival]]:
    """Run a story to its end: a last slot comes when every park time is over, and then every node reads."""
    nodes = [MemoryNode(name, n, server, clocks_ms[n]) for n, name in enumerate(NODES)]
    arrivals: list[Arrival] = []
    last = max(m.slot + m.delay for m in story)
    for slot in range(1, last + 1):
        for number, making in enumerate(m for m in story if m.slot == slot):
            node = nodes[making.node]
            if making.reads:
                node.read(server)
            changes = fitting(node, server, making.picks)
            node.make(slot * SLOT_MS - 50 + number, *changes)
            arrivals.append(Arrival(node.to_send()[-1], slot + making.delay))
        _group(server, arrivals, slot)
        after_slot(server, nodes)
    server.commit(_over(server, last))
    for node in nodes:
        node.read(server)
    after_slot(server, nodes)
    return nodes, arrivals


def tell_again(server: MemoryServer, arrivals: Sequence[Arrival]) -> MemoryServer:
    """Send the same batches, with the same bytes, in these slots."""
    last = max(arrival.slot for arrival in arrivals)
    for slot in range(1, last + 1):
        _group(server, arrivals, slot)
    server.commit(_over(server, last))
    return server


def moved(arrivals: Sequence[Arrival], slot_of: Callable[[Arrival, list[Arrival]], int]) -> list[Arrival]:
    """Other slots for the same batches: ``slot_of`` gets an arrival and all those of its node."""
    return [replace(a, slot=slot_of(a, [b for b in arrivals if b.sent.node == a.sent.node])) for a in arrivals]


def _group(server: MemoryServer, arrivals: Sequence[Arrival], slot: int) -> None:
    for arrival in arrivals:
        if arrival.slot == slot:
            server.send(arrival.sent, slot * SLOT_MS)
    server.commit(slot * SLOT_MS)


def _over(server: MemoryServer, last_slot: int) -> int:
    return (last_slot + 1) * SLOT_MS + server.park_ms
