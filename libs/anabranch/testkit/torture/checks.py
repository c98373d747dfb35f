"""The end of a fault run: the queues drain, everything is sent once more, and every promise is checked by name.

``oracle`` reads the nodes' records and the state of Postgres, and ``judge`` decides every batch by itself.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, LiteralString

from ulid import ULID

from anabranch.merge import SERVER_NODE
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sums import scan_sum
from anabranch.store.session.engine import Session
from anabranch.testkit import oracle
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack
from anabranch.testkit.torture import side_effects, tables
from anabranch.testkit.torture.functions import FUNCTIONS
from anabranch.testkit.torture.judge import Judge
from anabranch.testkit.torture.processes import Node
from anabranch.testkit.torture.proxy import Proxy
from anabranch.testkit.torture.registers import KINDS, Logged, Lost, Sent, ServerBatch, Step
from anabranch.v1 import batch_pb2, change_pb2, ingest_pb2, position_pb2, value_pb2, verdict_pb2
from anabranch.values import Cell
from anabranch.values.messages import column_reader

DRAIN_S = 120.0
_LOG_TAIL = 3_000
_STATES: Mapping[str, LiteralString] = {
    "batches that wait, by database": "select database_id, count(*) from anabranch.inbox group by 1",
    "those first in line": """
        select database_id, batch_id, node_id, prev, attempts, waits_for_batch, waits_for_table, park_deadline_ms
        from anabranch.inbox i where not exists (
            select from anabranch.inbox p where p.database_id = i.database_id and p.batch_id = i.prev
        ) limit 10
    """,
    "captured, by database": "select database_id, type, count(*), min(id) from anabranch.captured group by 1, 2",
    "heads": "select database_id, max(position), count(*) from anabranch.groups group by 1",
    "sessions": """
        select pid, application_name, state, wait_event, pg_blocking_pids(pid), now() - state_change, left(query, 60)
        from pg_stat_activity where backend_type = 'client backend'
    """,
}
RESEND_AT_ONCE = 200
RESEND_BYTES = 3_500_000
TOLD = 5_000
"""The most characters of a breach that are reported: rows may be large."""
_TRANSACTION = re.compile(r"transaction (\d+)$")
Check = Callable[[], tuple[str, Mapping[str, int]]]


@dataclass(frozen=True)
class Found:
    """The result of a run. ``recorded``, ``ends``: the record and the last state of each node; ``answers``: the
    verdicts when all was sent again; ``journal``: the steps of each transaction by SQL that was committed; ``kept`` as
    in ``oracle.read_server``."""

    conn: Session
    server: oracle.Server
    before: oracle.Rows
    recorded: Sequence[oracle.Recorded]
    answers: Mapping[str, bytes]
    followed: Sequence[Mapping[str, object]]
    ends: Sequence[Mapping[str, object]]
    proxies: Sequence[Proxy]
    journal: Mapping[str, Sequence[Step]]
    drawn: tables.Drawn
    kept: str = "anabranch"


def head(conn: Session, database_id: int) -> int:
    """The last position; 0 where there is none."""
    row = conn.execute(
        "select coalesce(max(position), 0) from anabranch.groups where database_id = %s", (database_id,)
    ).fetchone()
    return int(row[0]) if row else 0


def drain(nodes: Sequence[Node], conn: Session, database_id: int) -> list[dict[str, object]]:
    """The state of each node once its queue is empty and the log is read to its end.

    Raises:
        AssertionError: nothing went on for ``DRAIN_S``, or not all was done in ten times as long.
    """
    begun = time.monotonic()
    deadline, last = begun + DRAIN_S, -1
    while True:
        for node in nodes:
            node.tell("drained?")
        if [node.hear() for node in nodes] == ["yes"] * len(nodes):
            break
        if (now := head(conn, database_id)) > last:
            deadline, last = min(time.monotonic() + DRAIN_S, begun + 10 * DRAIN_S), now
        if time.monotonic() > deadline:
            raise AssertionError(
                f"promise 7, nobody blocked: the queues don't drain in {DRAIN_S} s: {_in_the_way(conn, nodes)}"
            )
    while left := _captured(conn, database_id):
        if time.monotonic() > deadline:
            raise AssertionError(f"promise 7, nobody blocked: {left} captured changes are not drained in {DRAIN_S} s")
        time.sleep(0.05)  # no notification comes of captured changes
    position = head(conn, database_id)
    for node in nodes:
        node.tell(f"reach {position}")
    return [json.loads(node.hear()) for node in nodes]


def _in_the_way(conn: Session, nodes: Sequence[Node]) -> str:
    """All that tells why queues do not drain: inboxes, captured changes, sessions, and the nodes' last words."""
    told = [f"{name}: {conn.execute(query).fetchall()}" for name, query in _STATES.items()]
    for node in nodes:
        log = node.record.with_name(f"{node.record.name}.log")
        told.append(f"{node.name}: {log.read_text()[-_LOG_TAIL:] if log.exists() else 'has said nothing'}")
    return "\n".join(told)


def _captured(conn: Session, database_id: int) -> int:
    row = conn.execute("select count(*) from anabranch.captured where database_id = %s", (database_id,)).fetchone()
    return int(row[0]) if row else 0


def recorded_by(node: Node, dead: object) -> oracle.Recorded:
    """The record of a node; ``dead``: its dead queue at the end, id to reason."""
    assert isinstance(dead, dict)
    recorded = oracle.Recorded(dead=dict(dead))
    for line in node.lines():
        if "made" in line:
            recorded.made[line["made"]] = bytes.fromhex(line["payload"])
        elif "nowhere" in line:
            recorded.nowhere[line["nowhere"]] = line["shown"]
        else:
            raw = bytes.fromhex(line["verdict"])
            verdict = verdict_pb2.Verdict.FromString(raw)
            if verdict.status != verdict_pb2.VERDICT_STATUS_PENDING:
                recorded.told.setdefault(verdict.batch_id, []).append(raw)
    return recorded


def resend(stack: Stack, keys: Sequence[str], recorded: Sequence[oracle.Recorded]) -> dict[str, bytes]:
    """Send every batch again, the bytes as made, by its principal, as a node of its own; return the verdicts."""
    answers: dict[str, bytes] = {}
    for key, device in zip(keys, recorded, strict=True):
        remote = remote_of(stack.addresses, key)
        node = position_pb2.NodeState(node=batch_pb2.Node(id=str(ULID()), name="again"))
        token = b""
        made = list(device.made.values())
        with closing(remote):
            for some in _requests(made):
                envelopes = [batch_pb2.Envelope(payload=payload) for payload in some]
                request = ingest_pb2.SendRequest(
                    db_name=tables.NAME, node_state=node, node_token=token, envelopes=envelopes
                )
                response = remote.send(request)
                token = response.node_token
                answers.update((v.batch_id, v.SerializeToString()) for v in response.verdicts)
    return answers


def _requests(payloads: Sequence[bytes]) -> list[list[bytes]]:
    """Payloads in requests of as many as a request may have, and as fit into its bytes."""
    found: list[list[bytes]] = []
    room = 0
    for payload in payloads:
        if not found or len(found[-1]) == RESEND_AT_ONCE or len(payload) > room:
            found.append([])
            room = RESEND_BYTES
        found[-1].append(payload)
        room -= len(payload)
    return found


def journal(conn: Session, writers: Sequence[Node]) -> dict[str, list[Step]]:
    """The steps of every transaction in the writers' journals that was committed, without steps that changed
    nothing."""
    committed = {mark for (mark,) in conn.execute(f"select mark from {tables.WRITTEN}".encode()).fetchall()}
    noted: dict[str, list[Step]] = {}
    for writer in writers:
        for line in writer.lines():
            if line["mark"] not in committed:
                continue
            name = line["transaction"]
            assert name not in noted, f"two transactions called {name} were committed"
            steps = [Step((table, key), _row(before), _row(after)) for table, key, before, after in line["steps"]]
            noted[name] = [step for step in steps if step.before != step.after]
    return {name: steps for name, steps in noted.items() if steps}


def _row(given: Mapping[str, Any] | None) -> dict[str, Cell] | None:
    if given is None:
        return None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def promise(check: Callable[[], int], what: str) -> Check:
    """A check whose result is a number of ``what``."""
    return lambda: (f"{check()} {what}", {})


def promises(found: Found) -> dict[str, Check]:
    """The checks by promise. Each raises AssertionError, or returns its result, in words and as counts."""
    conn, server, recorded, loose = found.conn, found.server, found.recorded, found.drawn.computed
    return {
        "1 durable": promise(
            lambda: oracle.check_durable(server, found.before, recorded, loose, tables.CAUSED, side_effects.TALLIES),
            "batches in log and tables",
        ),
        "2 atomic": promise(lambda: oracle.check_atomic(server, recorded), "rejected batches without a trace"),
        "3 once": promise(
            lambda: oracle.check_once(server, recorded, found.answers), "verdicts received, and all sent again"
        ),
        "4 ordered": promise(lambda: oracle.check_ordered(server, found.followed), "groups read as they came"),
        "5 convergent": promise(
            lambda: check_sums(conn, server.database, found.ends), "tables equal on nodes and server"
        ),
        "6 nothing lost": promise(
            lambda: oracle.check_nothing_lost(conn, server, recorded, loose, found.kept), "losing values kept"
        ),
        "6 refused on a full disk": promise(
            lambda: oracle.check_refused(server, recorded, _by_node(found)), "batches or rows, which are nowhere"
        ),
        "7 nobody blocked": promise(lambda: _check_waits(server, recorded), "batches decided"),
        "the rules": lambda: _judge(found),
    }


def look(
    checks: Mapping[str, Check], say: Callable[[str], None]
) -> tuple[dict[str, str], dict[str, str], Counter[str]]:
    """Run all checks: return by name their results, by name the breaches, and the counts of all."""
    checked: dict[str, str] = {}
    breaches: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for name, check in checks.items():
        try:
            checked[name], counted = check()
            seen.update(counted)
        except AssertionError as error:
            breaches[name] = (str(error) or repr(error))[:TOLD]
            say(f"BROKEN {name}: {breaches[name]}")
    return checked, breaches, seen


def check_sums(conn: Session, database: Database, ends: Sequence[Mapping[str, object]]) -> int:
    """Promise 5: every node's table sums are those of the server's rows. Returns the number of sums."""
    sums: dict[str, list[object]] = {}
    for table in database.tables.values():
        with conn.transaction():
            count, total = scan_sum(conn, database.schema_name, table)
        sums[table.sql_name] = [count, f"{total:032x}"]
    for number, end in enumerate(ends):
        assert "stuck" not in end, f"node {number} does not reach the head: {end}"
        assert end["disagreeing"] == [], f"node {number} disagrees in {end['disagreeing']}"
        assert end["sums"] == sums, f"node {number} has {end['sums']}, the server {sums}"
    return len(sums) * len(ends)


def _check_waits(server: oracle.Server, recorded: Sequence[oracle.Recorded]) -> int:
    """Promise 7: every batch has its verdict, though others were rejected or never came. (The run itself and its
    draining check that verdicts come in time.) Returns the number of batches."""
    made = {batch_id for device in recorded for batch_id in device.made}
    assert made <= server.verdicts.keys(), f"without a verdict: {sorted(made - server.verdicts.keys())[:5]}"
    return len(made)


def _nodes(found: Found) -> dict[str, str]:
    """By batch, the node that sent it."""
    statement = "select batch_id, node_id from anabranch.batches where database_id = %s"
    return dict(found.conn.execute(statement, (found.server.database.id,)).fetchall())


def _by_node(found: Found) -> list[str]:
    return [batch_id for batch_id, node in _nodes(found).items() if node != SERVER_NODE]


def _judge(found: Found) -> tuple[str, Mapping[str, int]]:
    """Decide every verdict, conflict and row anew, and compare."""
    conn, server = found.conn, found.server
    basis = {batch_id: basis for proxy in found.proxies for batch_id, basis in proxy.seen.items()}
    nodes = _nodes(found)
    groups: dict[int, list[tuple[Sent, verdict_pb2.Verdict]]] = {}
    for device, proxy in zip(found.recorded, found.proxies, strict=True):
        for batch_id, payload in device.made.items():
            assert nodes[batch_id] in proxy.nodes, f"{batch_id} was sent by no node called {nodes[batch_id]}"
            verdict = verdict_pb2.Verdict.FromString(server.verdicts[batch_id])
            sent = Sent(batch_id, nodes[batch_id], basis[batch_id], payload)
            groups.setdefault(verdict.position, []).append((sent, verdict))
    by_sql = _server_batches(server, [batch_id for batch_id, node in nodes.items() if node == SERVER_NODE])
    judge = Judge(
        server.database.tables,
        found.drawn.rules,
        tables.broken,
        cascades=tables.CASCADES,
        functions=FUNCTIONS,
        journal=found.journal,
        caused=_caused(server, found.recorded),
        beside=_beside(server, found.recorded),
    )
    judge.preset(found.before)
    for position in sorted(groups.keys() | by_sql.keys()):
        judge.group(position, groups.get(position, ()), by_sql.get(position, ()))
    judge.finish()
    assert not judge.faults, f"{len(judge.faults)} differ, first: " + "; ".join(judge.faults[:5])
    assert judge.rows() == server.rows, _difference(judge.rows(), server.rows)
    kept = Counter(_kept(conn, server, found.kept))
    lost = Counter(judge.lost)
    assert lost == kept, (
        f"conflicts: {list((lost - kept).items())[:3]} only here, {list((kept - lost).items())[:3]} there"
    )
    batches = sum(map(len, groups.values()))
    text = (
        f"{batches} verdicts, {len(server.rows)} rows, {len(judge.lost)} conflicts decided alike;"
        f" {len(judge.logged)} transactions by SQL in the log as they were written"
    )
    return text, judge.seen


def _caused(server: oracle.Server, recorded: Sequence[oracle.Recorded]) -> dict[str, set[tuple[str, str]]]:
    """By batch of a node, the rows of ``tables.CAUSED`` that it has effects on in the log and does not name."""
    found: dict[str, set[tuple[str, str]]] = {}
    for entry in server.log:
        if entry.table in tables.CAUSED:
            found.setdefault(entry.batch_id, set()).add((entry.table, entry.key))
    made = {batch_id: payload for device in recorded for batch_id, payload in device.made.items()}
    return {
        batch_id: rows - oracle.writes(server.database, made[batch_id]).keys()
        for batch_id, rows in found.items()
        if batch_id in made
    }


def _logged(server: oracle.Server, entry: oracle.Entry) -> Logged:
    effect = change_pb2.Effect.FromString(entry.effect)
    table = server.database.tables[entry.table]
    # The key of an update only names the row; it is no written value.
    passed = table.key_columns if effect.type == change_pb2.EFFECT_TYPE_UPDATE else ()
    cells = {
        name: column_reader(table.by_name[name])(value)
        for name, value in zip(effect.columns, effect.values, strict=True)
        if value.WhichOneof("kind") is not None and name not in passed
    }
    return Logged((entry.table, entry.key), KINDS.get(effect.type, "none"), cells)


def _beside(server: oracle.Server, recorded: Sequence[oracle.Recorded]) -> side_effects.SideEffects:
    """By batch of a node, its changes of tables whose code writes, and the rows that this code wrote."""
    made = {batch_id for device in recorded for batch_id in device.made}
    tables_of = {side_effects.TALLY, side_effects.NUMBERED, side_effects.CHECKED}
    found: dict[str, list[Logged]] = {}
    for entry in server.log:
        if entry.table in tables_of and entry.batch_id in made:
            found.setdefault(entry.batch_id, []).append(_logged(server, entry))
    return side_effects.SideEffects(found)


def _server_batches(server: oracle.Server, ids: Sequence[str]) -> dict[int, list[ServerBatch]]:
    """The server's own batches by position, each position's in their order."""
    changes: dict[str, list[Logged]] = {batch_id: [] for batch_id in ids}
    for entry in server.log:
        if entry.batch_id in changes:
            changes[entry.batch_id].append(_logged(server, entry))
    found: dict[int, list[ServerBatch]] = {}
    for batch_id in sorted(ids):
        verdict = verdict_pb2.Verdict.FromString(server.verdicts[batch_id])
        match = _TRANSACTION.search(verdict.message)
        assert match is not None, f"{batch_id} does not say which transaction it was: {verdict.message}"
        found.setdefault(verdict.position, []).append(ServerBatch(batch_id, match[1], changes[batch_id]))
    return found


def _kept(conn: Session, server: oracle.Server, kept: str) -> list[Lost]:
    found = []
    for position, table_id, key, column, raw, loser, winner in conn.execute(
        "select position, table_id, key, column_name, losing_value, losing_batch, winning_batch"
        f" from {kept}.conflicts where database_id = %s".encode(),
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
