"""The faults that the fault run injects into the processes, one after the other, and how often it did each (faults of
compactor and janitor: ``lake``)."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch import clock, faults
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store.group.waves import DatabaseError
from anabranch.store.session.engine import connect
from anabranch.testkit.stack import Stack
from anabranch.testkit.torture.lake import COMPACTOR_POINTS, JANITOR_POINTS, Lake
from anabranch.testkit.torture.processes import Node
from anabranch.testkit.torture.proxy import KINDS as NETWORK_KINDS
from anabranch.testkit.torture.proxy import Proxy

RESOLVERS = ("conflict-resolver", "conflict-resolver-2")
SERVICES = ("ingest", "snapshot", *RESOLVERS)
SERVICE_POINTS: Mapping[str, Sequence[str]] = {
    "after_claim": RESOLVERS,
    "before_commit": RESOLVERS,
    "after_commit": RESOLVERS,
    "before_append": ("ingest",),
    "after_append": ("ingest",),
    "before_answer": ("ingest",),
}
NODE_POINTS = ("after_local_commit", "before_apply", "after_apply")
RESTART = "Postgres restarted"
FROZEN = "Postgres stopped"
FULL = "full disk on a node"
BY_WRITERS = {"flood by SQL": "flood", "large row by SQL": "large row", "long keys by SQL": "long keys"}
LARGE = "large row by a node"
FROZEN_S = (0.5, 12.0)
"""Shortest and longest freeze, in seconds; the longest exceeds the patience of every session of the services."""
CALM = 5
"""Groups between one fault and the next while all wait for the compactor, whose runs need the processor, too."""
PATIENCE_S = 40.0
_HEAD = """
select coalesce(min(head), 0) from (
    select coalesce(max(g.position), 0) from anabranch.databases d left join anabranch.groups g on g.database_id = d.id
    group by d.id
) h (head)
"""
YEAR_2038_MS = 13 * 365 * 86_400_000
SERVER_STEPS_MS = (-20_000, 20_000)


def _ways() -> dict[str, str]:
    points = {f"at {point}": point for point in (*SERVICE_POINTS, *NODE_POINTS)}
    kills = {f"SIGKILL {name}": name for name in (*SERVICES, "a node", "a writer")}
    others = (RESTART, FROZEN, FULL, LARGE, "server clock stepped", "node clock stepped")
    return {**points, **kills, **BY_WRITERS, **dict.fromkeys(others, "")}


WAYS = _ways()
WANTED = frozenset(WAYS) | NETWORK_KINDS
assert frozenset(faults.POINTS) == {*SERVICE_POINTS, *NODE_POINTS, *COMPACTOR_POINTS, *JANITOR_POINTS}


@dataclass
class Havoc:
    """``done`` counts the faults, ``story`` holds when each was (seconds since the start). ``lake``: None unless
    compactor and janitor take part. ``changing``: nodes of the tables that DDL changes, whose proxies stand
    behind those of ``nodes``; ``alterers``: who runs the DDL."""

    stack: Stack
    postgres: EmbeddedPostgres
    url: str
    nodes: Sequence[Node]
    writers: Sequence[Node]
    proxies: Sequence[Proxy]
    chance: random.Random
    say: Callable[[str], None]
    lake: Lake | None = None
    changing: Sequence[Node] = ()
    alterers: Sequence[Node] = ()
    done: Counter[str] = field(default_factory=Counter)
    story: list[tuple[float, str]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _restarted: bool = False

    def join(self, nodes: Sequence[Node], proxies: Sequence[Proxy], alterers: Sequence[Node]) -> None:
        """Have these nodes and those who run DDL die, too, and their networks break."""
        self.changing, self.alterers = nodes, alterers
        self.proxies = (*self.proxies, *proxies)

    def run(self, seconds: float) -> None:
        """Inject every fault once, in an order that the seed gives, and then again and again until the time is over,
        the lake is through, and the network, whose faults are drawn at random, has had all of its own, too (or had
        ``PATIENCE_S`` seconds more for them)."""
        plan = sorted(WAYS)
        self.chance.shuffle(plan)
        for what in plan:
            self._next(what, 1)
        while self._goes_on(seconds):
            waits = self._waits_for_lake()
            self._next(self.chance.choice(sorted(WAYS.keys() - waits)), CALM if waits else 1)
        self._bring_back()
        for proxy in self.proxies:
            proxy.mend()

    def _goes_on(self, seconds: float) -> bool:
        over_s = time.monotonic() - self.started - seconds
        if over_s < 0 or not (self.lake is None or self.lake.is_through):
            return True
        seen = {kind for proxy in self.proxies for kind, count in proxy.counts.items() if count}
        return over_s < PATIENCE_S and not seen >= NETWORK_KINDS

    def _waits_for_lake(self) -> Collection[str]:
        """The faults that are not repeated while the lake is not through: a run of the compactor fails when Postgres
        restarts or stops for long, and takes longer than the time between two such faults."""
        return () if self.lake is None or self.lake.is_through else (RESTART, FROZEN)

    def _next(self, what: str, groups: int) -> None:
        """Cut or mend a network, wait for so many more groups, then inject one of ``WAYS``."""
        self.partition()
        for _ in range(groups):
            self.await_group()
        self.do(what)

    def do(self, what: str) -> None:
        """Inject one of ``WAYS``."""
        subject = WAYS[what]
        self._bring_back()
        if what.startswith("at ") and subject in SERVICE_POINTS:
            who = self._at_service_point(subject)
        elif what.startswith("at "):
            who = self._at_node_point(subject)
        elif subject == "a node":
            who = self._kill_one_of(self._devices)
        elif subject == "a writer":
            who = self._kill_one_of((*self.writers, *self.alterers))
        elif what.startswith("SIGKILL"):
            who = self._kill_service(subject)
        elif what == RESTART:
            who = self._restart_postgres()
        elif what == FROZEN:
            who = self._freeze_postgres()
        elif what == "server clock stepped":
            who = f"by {(step := self.chance.choice(SERVER_STEPS_MS))} ms"
            self.stack.set_clock_offset(step)
        elif what in BY_WRITERS:
            who = self._tell_one_of(self.writers, subject)
        elif what == LARGE:
            who = self._tell_one_of(self.nodes, "large")
        elif what == FULL:
            who = self._fill_disk()
        else:
            who = self._step_node_clock()
        self.done[what] += 1
        self.story.append((time.monotonic() - self.started, f"{what}: {who}"))
        self.say(f"{self.story[-1][0]:6.1f} s  {self.story[-1][1]}")

    @property
    def _devices(self) -> Sequence[Node]:
        """All nodes, in the order of their proxies."""
        return (*self.nodes, *self.changing)

    def _bring_back(self) -> None:
        """Start services that ended because Postgres went away while they were starting. Nothing else may end so."""
        gone = [service for service in SERVICES if self.stack.pid(service) is None]
        if gone and not self._restarted:
            raise AssertionError(f"{gone} ended by themselves after {self.story[-3:]}")
        for service in gone:
            self.stack.start(service)
            self.done["a service started while Postgres was away"] += 1
        self._restarted = False

    def partition(self) -> None:
        """Cut one node's network or mend it; never all of them, or nothing would go on."""
        proxy = self.chance.choice(self.proxies[1:])
        if self.chance.random() < 0.5:
            proxy.cut()
        else:
            proxy.mend()

    def await_group(self) -> None:
        """Wait until another group has been committed in every database: the load goes on."""
        first = self.head()
        deadline = time.monotonic() + PATIENCE_S
        while self.head() <= first:
            if time.monotonic() > deadline:
                raise AssertionError(f"no group in {PATIENCE_S} s after {self.story[-3:]}")
            time.sleep(0.05)  # between looks at a server that may be down

    def head(self) -> int:
        """The last group's position in the database that is behind the others, however many groups the janitor has
        removed; -1 while Postgres is down."""
        try:
            with connect(self.url, application_name="torture", autocommit=True) as conn:
                row = conn.execute(_HEAD).fetchone()
        except DatabaseError:
            return -1
        return int(row[0]) if row else 0

    def _at_service_point(self, point: str) -> str:
        service = self.chance.choice(SERVICE_POINTS[point])
        deaths = self.stack.arm(service, point)
        self.stack.wait_died(service, deaths, PATIENCE_S)
        assert self.stack.armed(service) == [], f"{service} died, but not at {point}"
        self.stack.start(service)
        return service

    def _kill_service(self, service: str) -> str:
        self.stack.kill(service)
        self.stack.start(service)
        return service

    def _at_node_point(self, point: str) -> str:
        number = self.chance.randrange(len(self._devices))
        self.proxies[number].mend()
        node = self._devices[number]
        faults.arm(node.faults, point)
        node.await_death(PATIENCE_S)
        assert faults.armed(node.faults) == [], f"{node.name} died, but not at {point}"
        node.start()
        return node.name

    def _kill_one_of(self, processes: Sequence[Node]) -> str:
        process = self.chance.choice(processes)
        process.kill()
        process.start()
        return process.name

    def _tell_one_of(self, processes: Sequence[Node], what: str) -> str:
        process = self.chance.choice(processes)
        process.tell(what)
        process.hear_until(what)
        return process.name

    def _fill_disk(self) -> str:
        node = self.chance.choice(self.nodes)
        node.tell("full")
        said, _, refused = node.hear().partition(" ")
        assert (said, refused.isdigit()) == ("refused", True), f"{node.name} said {said} {refused}"
        assert int(refused), f"{node.name} was refused nothing, though its file could not grow"
        return f"{node.name}, which refused {refused} batches"

    def _restart_postgres(self) -> str:
        crash = self.chance.random() < 0.5
        self._restarted = True
        self._tell_lake()
        if crash:
            self.postgres.kill()
        else:
            self.postgres.stop("fast")
        self.postgres.start()
        # Once more: a run of the compactor that began while Postgres was down fails because of it, too.
        self._tell_lake()
        assert self.postgres.url.rpartition("/")[0] == self.url.rpartition("/")[0], "it came back elsewhere"
        return "after a crash" if crash else "in order"

    def _freeze_postgres(self) -> str:
        """SIGSTOP Postgres for a while: all connections stay open, and nothing answers."""
        stopped_s = self.chance.uniform(*FROZEN_S)
        # A service that happens to be starting may give up meanwhile, as when Postgres is down.
        self._restarted = True
        self._tell_lake()
        self.postgres.freeze()
        try:
            time.sleep(stopped_s)  # the fault itself
        finally:
            self.postgres.thaw()
        self._tell_lake()
        return f"for {stopped_s:.1f} s"

    def _tell_lake(self) -> None:
        if self.lake is not None:
            self.lake.restarts += 1

    def _step_node_clock(self) -> str:
        node = self.chance.choice(self._devices)
        step = self.chance.choice((-3_600_000, 0, 3_600_000, YEAR_2038_MS))
        clock.set_offset(node.clock, step)
        return f"{node.name} by {step} ms"
