"""One fault run, from an empty folder to its report.

Three nodes write shared rows over networks that delay, repeat, lose and reorder; a reader follows the log; services,
nodes and Postgres die or stop, clocks step (``havoc``). Then the networks are mended, the queues drain, everything is
sent once more, and promises 1 to 7 are checked by name: by ``oracle``, which reads what nodes wrote down and what
stands in Postgres, and by ``judge``, which decides every batch by itself.

What the seed gives is what is tried, in which order; the moments depend on the machine.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from ulid import ULID

from anabranch.client import RemoteDb
from anabranch.store import catalog, registration
from anabranch.store.engine import Session, connect
from anabranch.store.sums import scan_sum
from anabranch.testkit import oracle
from anabranch.testkit.postgres import EmbeddedPostgres
from anabranch.testkit.stack import Stack
from anabranch.testkit.torture import tables
from anabranch.testkit.torture.havoc import WANTED, Havoc
from anabranch.testkit.torture.judge import Judge, Lost, Sent
from anabranch.testkit.torture.processes import Node
from anabranch.testkit.torture.proxy import Proxy
from anabranch.v1 import batch_pb2, ingest_pb2, position_pb2, value_pb2, verdict_pb2
from anabranch.wire.values import column_reader

NODES = 3
DRAIN_S = 120.0
RESEND_AT_ONCE = 200
_MODULES = "anabranch.testkit.torture"


@dataclass(frozen=True)
class Report:
    """``faults``: how often each kind was done. ``checked``: by promise, what was looked at. ``breaches``: by promise,
    what was found."""

    seed: int
    seconds: float
    batches: int
    faults: Mapping[str, int]
    verdicts: Mapping[str, int]
    checked: Mapping[str, str]
    breaches: Mapping[str, str]

    @property
    def never(self) -> list[str]:
        """What was to be done and was not."""
        return sorted(what for what in WANTED if not self.faults.get(what))

    @property
    def clean(self) -> bool:
        """Nothing broken, and everything done."""
        return not self.breaches and not self.never

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.batches} batches in {self.seconds:.0f} s"]
        lines += [f"  {count:6d}  {what}" for what, count in sorted(self.faults.items())]
        lines += [f"  {count:6d}  {what}" for what, count in sorted(self.verdicts.items())]
        lines += [f"  promise {name}: {what}" for name, what in self.checked.items()]
        lines += [f"  BROKEN {name}: {what}" for name, what in self.breaches.items()]
        lines += [f"  NEVER HAPPENED: {what}" for what in self.never]
        return "\n".join(lines)


def torture(folder: Path, seconds: float, seed: int, say: Callable[[str], None]) -> Report:
    """Run for about ``seconds``, and until everything was done once, with ``folder`` for all files.

    Raises:
        AssertionError: the run could not be brought to its end, which promise 7 forbids; the message says where.
    """
    chance = random.Random(seed)
    order = chance.choice(("server", "edit"))
    say(f"seed {seed}, order {order}")
    with ExitStack() as leave:
        postgres = leave.enter_context(EmbeddedPostgres(folder / "postgres"))
        url = postgres.url
        stack = leave.enter_context(Stack(url, folder=folder / "stack", resolvers=2))
        with connect(url, application_name="torture", autocommit=True) as conn:
            conn.execute(tables.SQL.encode())
            registration.create_database(conn, tables.NAME, tables.NAME, {"park_ms": tables.PARK_MS})
            for name, policy in tables.policies(order).items():
                registration.add_table(conn, tables.NAME, name, policy)
            database = catalog.load_database(conn, tables.NAME)
            before = oracle.read_rows(conn, database)
        keys = [stack.new_key(f"user-{number}", database=tables.NAME) for number in range(NODES)]
        proxies = [_proxy(stack, seed * 100 + number) for number in range(NODES)]
        for proxy in proxies:
            leave.callback(proxy.close)
        follower = Node(
            f"{_MODULES}.follower",
            "follower",
            folder,
            {"db": tables.NAME, "snapshot": stack.addresses["snapshot"], "key": stack.key, "seed": seed},
        )
        nodes = [
            Node(
                f"{_MODULES}.node",
                f"node-{number}",
                folder,
                {
                    "db": tables.NAME,
                    "file": str(folder / f"{number}.db"),
                    "address": proxy.address,
                    "key": key,
                    "seed": seed * NODES + number,
                },
            )
            for number, (key, proxy) in enumerate(zip(keys, proxies, strict=True))
        ]
        for process in (follower, *nodes):
            leave.callback(process.close)
            process.start()
        havoc = Havoc(stack, postgres, url, nodes, proxies, chance, say)
        havoc.run(seconds)
        took_s = time.monotonic() - havoc.started
        say("everything is mended; the queues drain")
        for proxy in proxies:
            proxy.rough = 0.0
        for node in nodes:
            node.tell("stop")
        with connect(url, application_name="torture", autocommit=True) as conn:
            ends = _drain(nodes, conn, database.id)
            head = _head(conn, database.id)
            follower.tell(f"until {head}")
            if follower.hear() != "done":
                raise AssertionError("the reader ended before it had read everything")
            recorded = [_recorded(node, end["dead"]) for node, end in zip(nodes, ends, strict=True)]
            answers = _resend(stack, keys, recorded)
            server = oracle.read_server(conn, database)
            checks = _checks(conn, server, before, recorded, answers, follower, ends, proxies, order)
            checked, breaches, verdicts = _check(checks, say)
        faults = Counter(havoc.done)
        for proxy in proxies:
            faults.update(proxy.counts)
        # Nobody copies a device here: it is told of as what calls that come late can do.
        faults["new node id taken"] = sum(len(proxy.nodes) - 1 for proxy in proxies)
        made = sum(len(r.made) for r in recorded)
        return Report(seed, took_s, made, faults, verdicts, checked, breaches)


def _proxy(stack: Stack, seed: int) -> Proxy:
    a = stack.addresses
    upstreams = {
        "IngestService": a["ingest"],
        "SnapshotService": a["snapshot"],
        "ChangeService": a["snapshot"],
        "ConflictResolverService": a["conflict-resolver"],
    }
    return Proxy(upstreams, seed)


def _head(conn: Session, database_id: int) -> int:
    row = conn.execute(
        "select coalesce(max(position), 0) from anabranch.groups where database_id = %s", (database_id,)
    ).fetchone()
    return int(row[0]) if row else 0


def _drain(nodes: Sequence[Node], conn: Session, database_id: int) -> list[dict[str, object]]:
    """How each node stands once its queue is empty and the log is read to its end. Raises AssertionError."""
    deadline = time.monotonic() + DRAIN_S
    while True:
        for node in nodes:
            node.tell("drained?")
        if [node.hear() for node in nodes] == ["yes"] * len(nodes):
            break
        if time.monotonic() > deadline:
            waiting = conn.execute("select batch_id, prev, attempts from anabranch.inbox limit 5").fetchall()
            raise AssertionError(f"promise 7, nobody blocked: the queues don't drain in {DRAIN_S} s; inbox: {waiting}")
    head = _head(conn, database_id)
    for node in nodes:
        node.tell(f"reach {head}")
    return [json.loads(node.hear()) for node in nodes]


def _recorded(node: Node, dead: object) -> oracle.Recorded:
    assert isinstance(dead, dict)
    recorded = oracle.Recorded(dead=dict(dead))
    for line in node.lines():
        if "made" in line:
            recorded.made[line["made"]] = bytes.fromhex(line["payload"])
        else:
            raw = bytes.fromhex(line["verdict"])
            verdict = verdict_pb2.Verdict.FromString(raw)
            if verdict.status != verdict_pb2.VERDICT_STATUS_PENDING:
                recorded.told.setdefault(verdict.batch_id, []).append(raw)
    return recorded


def _resend(stack: Stack, keys: Sequence[str], recorded: Sequence[oracle.Recorded]) -> dict[str, bytes]:
    """Every batch again, the bytes as made, by its principal, as a node of its own: the verdicts."""
    answers: dict[str, bytes] = {}
    a = stack.addresses
    for key, device in zip(keys, recorded, strict=True):
        remote = RemoteDb(ingest=a["ingest"], snapshot=a["snapshot"], resolver=a["conflict-resolver"], token=key)
        node = position_pb2.NodeState(node=batch_pb2.Node(id=str(ULID()), name="again"))
        token = b""
        made = list(device.made.values())
        with closing(remote):
            for start in range(0, len(made), RESEND_AT_ONCE):
                envelopes = [batch_pb2.Envelope(payload=p) for p in made[start : start + RESEND_AT_ONCE]]
                request = ingest_pb2.SendRequest(
                    db_name=tables.NAME, node_state=node, node_token=token, envelopes=envelopes
                )
                response = remote.send(request)
                token = response.node_token
                answers.update((v.batch_id, v.SerializeToString()) for v in response.verdicts)
    return answers


def _checks(
    conn: Session,
    server: oracle.Server,
    before: oracle.Rows,
    recorded: Sequence[oracle.Recorded],
    answers: Mapping[str, bytes],
    follower: Node,
    ends: Sequence[Mapping[str, object]],
    proxies: Sequence[Proxy],
    order: str,
) -> dict[str, Callable[[], tuple[str, Mapping[str, int]]]]:
    def promise(check: Callable[[], int], what: str) -> Callable[[], tuple[str, Mapping[str, int]]]:
        return lambda: (f"{check()} {what}", {})

    return {
        "1 durable": promise(
            lambda: oracle.check_durable(server, before, recorded, loose=tables.COLUMNS), "batches in log and tables"
        ),
        "2 atomic": promise(lambda: oracle.check_atomic(server, recorded), "rejected batches without a trace"),
        "3 once": promise(lambda: oracle.check_once(server, recorded, answers), "verdicts told, and all sent again"),
        "4 ordered": promise(lambda: oracle.check_ordered(server, follower.lines()), "groups read as they came"),
        "5 convergent": promise(lambda: _check_sums(conn, server, ends), "tables equal on nodes and server"),
        "6 nothing lost": promise(lambda: oracle.check_nothing_lost(conn, server, recorded), "losing values kept"),
        "7 nobody blocked": promise(lambda: _check_waits(server, recorded), "batches decided"),
        "the rules": lambda: _judge(conn, server, before, recorded, proxies, order),
    }


def _check(
    checks: Mapping[str, Callable[[], tuple[str, Mapping[str, int]]]], say: Callable[[str], None]
) -> tuple[dict[str, str], dict[str, str], Counter[str]]:
    checked: dict[str, str] = {}
    breaches: dict[str, str] = {}
    verdicts: Counter[str] = Counter()
    for name, check in checks.items():
        try:
            checked[name], seen = check()
            verdicts.update(seen)
        except AssertionError as error:
            breaches[name] = str(error) or repr(error)
            say(f"BROKEN {name}: {breaches[name]}")
    return checked, breaches, verdicts


def _check_sums(conn: Session, server: oracle.Server, ends: Sequence[Mapping[str, object]]) -> int:
    """Promise 5: every node's table sums are those of the server's rows. Gives the number of sums."""
    sums: dict[str, list[object]] = {}
    for name, table in server.database.tables.items():
        with conn.transaction():
            count, total = scan_sum(conn, tables.NAME, table)
        sums[name] = [count, f"{total:032x}"]
    for number, end in enumerate(ends):
        assert "stuck" not in end, f"node {number} does not reach the head: {end}"
        assert end["disagreeing"] == [], f"node {number} disagrees in {end['disagreeing']}"
        assert end["sums"] == sums, f"node {number} has {end['sums']}, the server {sums}"
    return len(sums) * len(ends)


def _check_waits(server: oracle.Server, recorded: Sequence[oracle.Recorded]) -> int:
    """Promise 7: every batch has its verdict, though others were rejected or never came. (That they came in time is
    seen while the run goes on, and in its draining.) Gives the number of batches."""
    made = {batch_id for device in recorded for batch_id in device.made}
    assert made <= server.verdicts.keys(), f"without a verdict: {sorted(made - server.verdicts.keys())[:5]}"
    return len(made)


def _judge(
    conn: Session,
    server: oracle.Server,
    before: oracle.Rows,
    recorded: Sequence[oracle.Recorded],
    proxies: Sequence[Proxy],
    order: str,
) -> tuple[str, Mapping[str, int]]:
    """Every verdict, conflict and row, decided anew."""
    basis = {batch_id: basis for proxy in proxies for batch_id, basis in proxy.seen.items()}
    nodes: dict[str, str] = dict(
        conn.execute(
            "select batch_id, node_id from anabranch.batches where database_id = %s", (server.database.id,)
        ).fetchall()
    )
    groups: dict[int, list[tuple[Sent, verdict_pb2.Verdict]]] = {}
    for device, proxy in zip(recorded, proxies, strict=True):
        for batch_id, payload in device.made.items():
            assert nodes[batch_id] in proxy.nodes, f"{batch_id} was sent by no node called {nodes[batch_id]}"
            verdict = verdict_pb2.Verdict.FromString(server.verdicts[batch_id])
            sent = Sent(batch_id, nodes[batch_id], basis[batch_id], payload)
            groups.setdefault(verdict.position, []).append((sent, verdict))
    judge = Judge(server.database.tables, tables.rules(order), tables.broken)
    judge.preset(before)
    for position in sorted(groups):
        judge.group(position, groups[position])
    assert not judge.faults, f"{len(judge.faults)} differ, first: " + "; ".join(judge.faults[:5])
    assert judge.rows() == server.rows, _difference(judge.rows(), server.rows)
    kept = Counter(_kept(conn, server))
    lost = Counter(judge.lost)
    assert lost == kept, (
        f"conflicts: {list((lost - kept).items())[:3]} only here, {list((kept - lost).items())[:3]} there"
    )
    batches = sum(map(len, groups.values()))
    return f"{batches} verdicts, {len(server.rows)} rows, {len(judge.lost)} conflicts decided alike", judge.seen


def _kept(conn: Session, server: oracle.Server) -> list[Lost]:
    found = []
    for position, table_id, key, column, raw, loser, winner in conn.execute(
        "select position, table_id, key, column_name, losing_value, losing_batch, winning_batch from"
        " anabranch.conflicts where database_id = %s",
        (server.database.id,),
    ):
        table = server.database.tables_by_id[table_id]
        value = column_reader(table.by_name[column])(value_pb2.Value.FromString(raw))
        found.append(Lost(position, table.name, key, column, value, loser, winner))
    return found


def _difference(here: oracle.Rows, there: oracle.Rows) -> str:
    keys = [at for at in here.keys() | there.keys() if here.get(at) != there.get(at)]
    return f"{len(keys)} rows differ, such as " + "; ".join(
        f"{at}: here {here.get(at)}, there {there.get(at)}" for at in sorted(keys)[:3]
    )
