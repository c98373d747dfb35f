"""Every service killed with SIGKILL, at fault points and at any moment, and one of two resolvers stopped, while four
devices write shared rows; then promises 1 to 4 and 6, by an oracle that reads only what the devices wrote down and
Postgres.

ANABRANCH_TEST_SEED sets the seed, which is printed. What is killed, in which order, and what each device tries to write
follow from it; the moments depend on the machine.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from ulid import ULID

from anabranch import faults
from anabranch.client import RemoteDb
from anabranch.store import catalog, registration
from anabranch.store.channels import CLAIM_LOCK_CLASS, GROUPS_CHANNEL
from anabranch.store.engine import Session, connect
from anabranch.store.sums import scan_sum
from anabranch.testkit import oracle
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.stack import Stack
from anabranch.testkit.torture import follower as follower_program
from anabranch.v1 import batch_pb2, ingest_pb2, position_pb2, verdict_pb2

SEED = int(os.environ.get("ANABRANCH_TEST_SEED", "20250607"))
DEVICES = 4
NAME = "load"
PATIENCE_S = 20.0
GROUPS_BETWEEN = 3
SETTLE_S = 0.2
RESEND_AT_ONCE = 500
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

TABLES = f"""
create schema {NAME};
create table {NAME}.shared (id text primary key, title text, note text, n bigint);
insert into {NAME}.shared select 's' || lpad(g::text, 2, '0'), 'title ' || g, '', 0 from generate_series(0, 29) g;
create table {NAME}.strict (
    id text primary key,
    shared_id text not null constraint strict_shared references {NAME}.shared (id),
    code text constraint strict_code unique,
    qty bigint constraint strict_qty check (qty >= 0)
);
"""


class Process:
    """A process of the test: told over its input, heard over its output."""

    def __init__(self, program: Path, config: Mapping[str, Any]) -> None:
        self.name = program.name
        self.record = Path(config["record"])
        self.process = subprocess.Popen(
            [sys.executable, str(program), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self, timeout_s: float = 90.0) -> str:
        assert self.process.stdout is not None
        guard = threading.Timer(timeout_s, self.process.kill)
        guard.start()
        line = self.process.stdout.readline().strip()
        guard.cancel()
        assert line, f"{self.name} ended, or said nothing for {timeout_s} s"
        return line

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Havoc:
    """What is done to the services, and the report of it."""

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
            "select a.client_port from pg_locks l join pg_stat_activity a on a.pid = l.pid"
            " where l.locktype = 'advisory' and l.granted and l.classid = %s and l.objid = %s",
            (CLAIM_LOCK_CLASS, self.database_id),
        ).fetchall()
        return any(port in ports for (port,) in holders)

    def report(self) -> str:
        """What was killed and when."""
        return "\n".join(f"  {at:5.1f} s  {what}" for at, what in self.done)


@pytest.fixture
def url(databases: TestDatabases) -> Iterator[str]:
    made = databases.fresh()
    yield made
    databases.release(made)


def resend_everything(stack: Stack, keys: Sequence[str], recorded: Sequence[oracle.Recorded]) -> dict[str, bytes]:
    """Every batch again, the bytes as made, by its principal, as a node of its own: the verdicts."""
    answers: dict[str, bytes] = {}
    for key, device in zip(keys, recorded, strict=True):
        a = stack.addresses
        remote = RemoteDb(ingest=a["ingest"], snapshot=a["snapshot"], resolver=a["conflict-resolver"], token=key)
        node = position_pb2.NodeState(node=batch_pb2.Node(id=str(ULID()), name="again"))
        token = b""
        made = list(device.made.items())
        with closing(remote):
            for start in range(0, len(made), RESEND_AT_ONCE):
                envelopes = [batch_pb2.Envelope(payload=p) for _, p in made[start : start + RESEND_AT_ONCE]]
                request = ingest_pb2.SendRequest(db_name=NAME, node_state=node, node_token=token, envelopes=envelopes)
                response = remote.send(request)
                token = response.node_token
                answers.update((v.batch_id, v.SerializeToString()) for v in response.verdicts)
    return answers


def recorded_by(process: Process, dead: Mapping[str, str]) -> oracle.Recorded:
    recorded = oracle.Recorded(dead=dict(dead))
    for line in process.lines():
        if "made" in line:
            recorded.made[line["made"]] = bytes.fromhex(line["payload"])
        else:
            raw = bytes.fromhex(line["verdict"])
            verdict = verdict_pb2.Verdict.FromString(raw)
            if verdict.status != verdict_pb2.VERDICT_STATUS_PENDING:
                recorded.told.setdefault(verdict.batch_id, []).append(raw)
    return recorded


@pytest.mark.timeout(240)
def test_promises_1_to_4_and_6_hold_while_every_service_is_killed_under_load(url: str, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    with ExitStack() as leave:
        stack = leave.enter_context(Stack(url, folder=tmp_path / "stack", resolvers=2))
        conn = leave.enter_context(connect(url, application_name="test", autocommit=True))
        listener = leave.enter_context(connect(url, application_name="test-listener", autocommit=True))
        conn.execute(TABLES.encode())
        registration.create_database(conn, NAME, NAME, {"park_ms": 5_000})
        registration.add_table(conn, NAME, "shared", {"columns": {"n": "counter"}})
        registration.add_table(conn, NAME, "strict")
        database = catalog.load_database(conn, NAME)
        before = oracle.read_rows(conn, database)
        listener.execute(f"listen {GROUPS_CHANNEL}".encode())

        keys = [stack.new_key(f"user-{number}", database=NAME) for number in range(DEVICES)]
        a = stack.addresses
        common = {"db": NAME, "ingest": a["ingest"], "snapshot": a["snapshot"], "resolver": a["conflict-resolver"]}
        follower = Process(
            Path(follower_program.__file__),
            {**common, "key": stack.key, "seed": SEED, "record": str(tmp_path / "followed")},
        )
        leave.callback(follower.close)
        devices = []
        for number, key in enumerate(keys):
            own = {"file": str(tmp_path / f"{number}.db"), "record": str(tmp_path / f"{number}.record")}
            devices.append(
                Process(
                    Path(__file__).with_name("load_device.py"), {**common, **own, "key": key, "seed": SEED + number}
                )
            )
            leave.callback(devices[-1].close)
        for process in (follower, *devices):
            assert process.hear() == "started"

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
        ends = drain(devices, conn, database.id)
        [(head,)] = conn.execute("select max(position) from anabranch.groups where database_id = %s", (database.id,))
        follower.tell(f"until {head}")
        assert follower.hear() == "done"

        recorded = [recorded_by(d, end["dead"]) for d, end in zip(devices, ends, strict=True)]
        answers = resend_everything(stack, keys, recorded)
        server = oracle.read_server(conn, database)
        assert server.positions[-1] == head, "sending again has changed something"
        judged = oracle.check_durable(server, before, recorded, loose=["n"])
        rejected = oracle.check_atomic(server, recorded)
        reports = oracle.check_once(server, recorded, answers)
        groups = oracle.check_ordered(server, follower.lines())
        kept = oracle.check_nothing_lost(conn, server, recorded)
        check_sums(conn, database, ends)

        made = sum(len(r.made) for r in recorded)
        print(f"seed {SEED}: {made} batches in {load_s:.1f} s, {groups} groups; {judged} applied, {rejected} rejected,")
        print(f"{kept} losing values kept, {reports} verdicts told. Killed:\n{havoc.report()}")
        never = {kind for kind in WANTED if not any(what.startswith(kind) for _, what in havoc.done)}
        assert not never, f"never happened: {never}"
        # Where nothing was applied, refused or lost there was nothing to hold against the promises.
        assert min(judged, rejected, kept, reports) > 20


def drain(devices: Sequence[Process], conn: Session, database_id: int) -> list[dict[str, Any]]:
    """How each device stands once its queue is empty and the log is read to its end."""
    deadline = time.monotonic() + 60
    while True:
        for device in devices:
            device.tell("drained?")
        if [device.hear() for device in devices] == ["yes"] * len(devices):
            break
        assert time.monotonic() < deadline, "the devices' queues don't drain"
    [(head,)] = conn.execute("select max(position) from anabranch.groups where database_id = %s", (database_id,))
    for device in devices:
        device.tell(f"reach {head}")
    ends = [json.loads(device.hear()) for device in devices]
    for end in ends:
        assert "stuck" not in end, end
        assert end["disagreeing"] == []
    return ends


def check_sums(conn: Session, database: catalog.Database, ends: Sequence[Mapping[str, Any]]) -> None:
    """Every device's table sums are those of the server's rows."""
    sums = {}
    for name, table in database.tables.items():
        with conn.transaction():
            count, total = scan_sum(conn, NAME, table)
        sums[name] = [count, f"{total:032x}"]
    for end in ends:
        assert end["sums"] == sums
