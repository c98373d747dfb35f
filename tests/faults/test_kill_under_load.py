"""Every service killed with SIGKILL, at fault points and at any moment, and one of two resolvers stopped, while four
devices write shared rows; then promises 1 to 4 and 6, by an oracle that reads only what the devices wrote down and
Postgres.

ANABRANCH_TEST_SEED sets the seed, which is printed. What is killed, in which order, and what each device tries to write
follow from it; the moments depend on the machine.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from anabranch import faults
from anabranch.store.catalog import databases as catalog
from anabranch.store.catalog import registration
from anabranch.store.session.channels import GROUPS_CHANNEL
from anabranch.store.session.engine import Session, connect
from anabranch.testkit import oracle
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.stack import Stack
from anabranch.testkit.torture import checks, tables
from anabranch.testkit.torture.processes import Node

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("ANABRANCH_TEST_SEED", "20250607"))
DEVICES = 4
NAME = tables.NAME
PATIENCE_S = 40.0
GROUPS_BETWEEN = 3
SETTLE_S = 0.2
RESOLVERS = ("conflict-resolver", "conflict-resolver-2")
POINTS: Mapping[str, Sequence[str]] = {
    "after_claim": RESOLVERS,
    "before_commit": RESOLVERS,
    "after_commit": RESOLVERS,
    "before_append": ("ingest",),
    "after_append": ("ingest",),
    "before_answer": ("ingest",),
}
KILLS = ("ingest", "snapshot", *RESOLVERS)
WANTED = {f"at {point}" for point in POINTS} | {f"SIGKILL {service}" for service in KILLS} | {"SIGSTOP a resolver"}

DRAWN = tables.Drawn(
    {"order": "server", "delete": "rejects", "resurrect": False},
    {
        "shared": {"columns": {"n": "counter", "top": "max", "tags": "union"}},
        "strict": {"columns": {}},
        "parts": {"columns": {}},
    },
)


class Havoc:
    """Kills of the services, and the report of them."""

    def __init__(self, stack: Stack, conn: Session, listener: Session, chance: random.Random, database_id: int) -> None:
        self.stack = stack
        self.conn = conn
        self.listener = listener
        self.chance = chance
        self.database_id = database_id
        self.started = time.monotonic()
        self.done: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        self.done.append((time.monotonic() - self.started, what))

    def await_groups(self, count: int = GROUPS_BETWEEN) -> None:
        """Wait until groups have been committed: the load goes on."""
        [(head,)] = self.conn.execute(
            "select coalesce(max(position), 0) from anabranch.groups where database_id = %s", (self.database_id,)
        )
        came = 0
        deadline = time.monotonic() + PATIENCE_S
        while came < count:
            assert time.monotonic() < deadline, f"{came} groups in {PATIENCE_S} s after {self.done[-1:]}"
            for notice in self.listener.notifies(timeout=0.5, stop_after=1):
                number, position, _ = notice.payload.split(":", 2)
                came += int(number) == self.database_id and int(position) > head

    def at_point(self, point: str) -> None:
        """Have a service die at a fault point."""
        service = self.chance.choice(POINTS[point])
        deaths = self.stack.arm(service, point)
        self.stack.wait_died(service, deaths, PATIENCE_S)
        assert faults.armed(self.stack.folder / f"{service}.faults") == [], "it died, but not there"
        self.note(f"at {point}: {service}")
        self.stack.start(service)

    def kill(self, service: str) -> None:
        """SIGKILL, whatever it is doing."""
        self.stack.wait_ready(service)
        self.stack.kill(service)
        self.note(f"SIGKILL {service}")
        self.stack.start(service)

    def stop_the_claims_holder(self) -> None:
        """SIGSTOP the resolver that holds the claim; the other one must take over."""
        for service in RESOLVERS:
            self.stack.wait_ready(service)
        for _ in range(500):
            for service in RESOLVERS:
                self.stack.stop_signal(service)
                if self._keeps_claim(service):
                    began = time.monotonic()
                    self.note(f"SIGSTOP a resolver: {service}, which held the claim")
                    self.await_groups(1)
                    self.note(f"the other resolver went on after {time.monotonic() - began:.1f} s")
                    self.await_groups()
                    self.stack.continue_signal(service)
                    return
                self.stack.continue_signal(service)
        raise AssertionError("no resolver was ever met with the claim in its hands")

    def _keeps_claim(self, service: str) -> bool:
        """Whether a stopped resolver has the claim, and still has it once all is done that it had sent before."""
        if not self._holds_claim(service):
            return False
        time.sleep(SETTLE_S)
        return self._holds_claim(service)

    def _holds_claim(self, service: str) -> bool:
        ports = {c.laddr.port for c in psutil.Process(self.stack.pid(service)).net_connections("tcp")}
        holders = self.conn.execute(
            "select a.client_port from anabranch.claims c join pg_locks l on l.transactionid = c.xmax and l.granted"
            " join pg_stat_activity a on a.pid = l.pid where l.locktype = 'transactionid' and c.database_id = %s",
            (self.database_id,),
        ).fetchall()
        return any(port in ports for (port,) in holders)

    def report(self) -> str:
        """Each kill with its time."""
        return "\n".join(f"  {at:5.1f} s  {what}" for at, what in self.done)


@pytest.fixture
def url(databases: TestDatabases) -> Iterator[str]:
    made = databases.fresh()
    yield made
    databases.release(made)


@pytest.mark.timeout(240)
def test_promises_1_to_4_and_6_hold_while_every_service_is_killed_under_load(url: str, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    with ExitStack() as leave:
        stack = leave.enter_context(Stack(url, folder=tmp_path / "stack", resolvers=2))
        conn = leave.enter_context(connect(url, application_name="test", autocommit=True))
        listener = leave.enter_context(connect(url, application_name="test-listener", autocommit=True))
        conn.execute(tables.SQL.encode())
        registration.create_database(conn, NAME, NAME, {**DRAWN.database, "park_ms": tables.PARK_MS})
        for name, policy in DRAWN.tables.items():
            registration.add_table(conn, NAME, name, policy)
        database = catalog.load_database(conn, NAME)
        before = oracle.read_rows(conn, database)
        listener.execute(f"listen {GROUPS_CHANNEL}".encode())

        keys = [stack.new_key(f"user-{number}", database=NAME) for number in range(DEVICES)]
        a = stack.addresses
        remote = {"ingest": a["ingest"], "snapshot": a["snapshot"], "resolver": a["conflict-resolver"]}
        follower = Node(
            "anabranch.testkit.torture.follower",
            "follower",
            tmp_path,
            {"db": NAME, "snapshot": a["snapshot"], "key": stack.key, "seed": SEED},
        )
        devices = [
            Node(
                "anabranch.testkit.torture.node",
                f"node-{number}",
                tmp_path,
                {
                    "db": NAME,
                    "file": str(tmp_path / f"{number}.db"),
                    "remote": remote,
                    "key": key,
                    "seed": SEED + number,
                },
            )
            for number, key in enumerate(keys)
        ]
        for process in (follower, *devices):
            leave.callback(process.close)
            process.start()

        havoc = Havoc(stack, conn, listener, chance, database.id)
        plan = [(havoc.at_point, point) for point in POINTS] + [(havoc.kill, service) for service in KILLS]
        chance.shuffle(plan)
        for number, (do, what) in enumerate(plan):
            if number == len(plan) // 2:
                havoc.stop_the_claims_holder()
            havoc.await_groups()
            do(what)
        havoc.await_groups()
        load_s = time.monotonic() - havoc.started

        for device in devices:
            device.tell("stop")
        # Where the last batch has its verdict the head stands still: only then there is a position to reach.
        ends = checks.drain(devices, conn, database.id)
        head = checks.head(conn, database.id)
        follower.tell(f"until {head}")
        assert follower.hear() == "done"

        recorded = [checks.recorded_by(d, end["dead"]) for d, end in zip(devices, ends, strict=True)]
        answers = checks.resend(stack, keys, recorded)
        server = oracle.read_server(conn, database)
        assert server.positions[-1] == head, "sending again has changed something"
        judged = oracle.check_durable(server, before, recorded, DRAWN.computed, tables.CAUSED)
        rejected = oracle.check_atomic(server, recorded)
        reports = oracle.check_once(server, recorded, answers)
        groups = oracle.check_ordered(server, follower.lines())
        kept = oracle.check_nothing_lost(conn, server, recorded, DRAWN.computed)
        checks.check_sums(conn, database, ends)

        made = sum(len(r.made) for r in recorded)
        print(f"seed {SEED}: {made} batches in {load_s:.1f} s, {groups} groups; {judged} applied, {rejected} rejected,")
        print(f"{kept} losing values kept, {reports} verdicts told. Killed:\n{havoc.report()}")
        never = {kind for kind in WANTED if not any(what.startswith(kind) for _, what in havoc.done)}
        assert not never, f"never happened: {never}"
        # Where nothing was applied, refused or lost there was nothing to hold against the promises.
        assert min(judged, rejected, kept, reports) > 20
