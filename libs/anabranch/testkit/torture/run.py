"""One fault run, from an empty folder to its report.

Three nodes write shared rows over networks that delay, repeat, lose and reorder; two writers change the same rows by
plain SQL; a reader follows the log; in another database two nodes write tables that DDL changes meanwhile
(``changing``); services, nodes, writers and Postgres die or stop, clocks step (``havoc``). Then
the networks are mended, the queues drain, everything is sent once more, and promises are checked by name (``checks``).

The seed gives the rules, and the faults and writes in their order; the moments depend on the machine.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from anabranch.embedded import UNSYNCED
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store.catalog import databases, registration
from anabranch.store.session.engine import connect
from anabranch.testkit import oracle
from anabranch.testkit.stack import Stack
from anabranch.testkit.torture import changing, changing_tables, checks, functions, lake, parquet, tables
from anabranch.testkit.torture.changing import Changing
from anabranch.testkit.torture.havoc import WANTED, Havoc
from anabranch.testkit.torture.lake import Lake
from anabranch.testkit.torture.processes import Node
from anabranch.testkit.torture.proxy import Proxy

NODES = 3
WRITERS = 2
DDL_PAUSE_S = 0.3
LAKE_DDL_PAUSE_S = 2.0
"""The longest pause between two transactions with DDL. Beside the compactor they are fewer: a run of it reads all of
them, and takes the processors for as long."""
_MODULES = "anabranch.testkit.torture"


@dataclass(frozen=True)
class Report:
    """``faults``: how often each kind was injected; ``wanted``: the kinds that had to be. ``checked``: by promise, the
    result of its check. ``breaches``: by promise, the breach that was found."""

    seed: int
    drawn: tables.Drawn
    seconds: float
    batches: int
    faults: Mapping[str, int]
    wanted: frozenset[str]
    verdicts: Mapping[str, int]
    checked: Mapping[str, str]
    breaches: Mapping[str, str]

    @property
    def never(self) -> list[str]:
        """The faults that had to be injected and were not."""
        return sorted(what for what in self.wanted if not self.faults.get(what))

    @property
    def clean(self) -> bool:
        """Whether no promise is broken, and every fault was injected."""
        return not self.breaches and not self.never

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.batches} batches in {self.seconds:.0f} s"]
        lines += [f"  BROKEN {name}: {what}" for name, what in self.breaches.items()]
        lines += [f"  NEVER HAPPENED: {what}" for what in self.never]
        lines += [f"  {count:6d}  {what}" for what, count in sorted(self.faults.items())]
        lines += [f"  {count:6d}  {what}" for what, count in sorted(self.verdicts.items())]
        lines += [f"  promise {name}: {what}" for name, what in self.checked.items()]
        return "\n".join(lines)


def torture(
    folder: Path,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    *,
    with_lake: bool = True,
    with_ddl: bool = True,
) -> Report:
    """Run for about ``seconds``, and until everything was done once, with ``folder`` for all files. ``with_lake``:
    compactor and janitor take part, whose four runs take a few minutes, and many on a busy machine. ``with_ddl``: there
    are tables that DDL changes.

    Raises:
        AssertionError: the run could not be brought to its end, which promise 7 forbids; the message says where.
    """
    chance = random.Random(seed)
    drawn = tables.draw(chance)
    say(f"seed {seed}: {drawn}")
    with ExitStack() as leave:
        postgres = leave.enter_context(EmbeddedPostgres(folder / "postgres", settings=UNSYNCED))
        url = postgres.url
        environment = {
            "PYTHONPATH": os.pathsep.join(
                [functions.install(folder / "functions"), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            # The longest timeout allowed: a slow machine is no fault of a function.
            "ANABRANCH_FUNCTION_TIMEOUT_MS": "1000",
        }
        own = Lake.environment(folder) if with_lake else {}
        stack = leave.enter_context(
            Stack(url, folder=folder / "stack", resolvers=2, environment=environment, own_environment=own)
        )
        with connect(url, application_name="torture", autocommit=True) as conn:
            conn.execute(tables.SQL.encode())
            policy = {**drawn.database, **lake.POLICY, "park_ms": tables.PARK_MS}
            registration.create_database(conn, tables.NAME, tables.NAME, policy)
            for name, own_policy in drawn.tables.items():
                registration.add_table(conn, tables.NAME, name, own_policy)
            database = databases.load_database(conn, tables.NAME)
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
                    "remote": dict.fromkeys(("ingest", "snapshot", "resolver"), proxy.address),
                    "key": key,
                    "seed": seed * NODES + number,
                    "counted": True,
                },
            )
            for number, (key, proxy) in enumerate(zip(keys, proxies, strict=True))
        ]
        writers = [
            Node(f"{_MODULES}.writer", f"writer-{number}", folder, {"url": url, "seed": seed * WRITERS + number})
            for number in range(WRITERS)
        ]
        moves = None
        if with_ddl:
            with connect(url, application_name="torture", autocommit=True) as conn:
                moves = Changing(
                    conn,
                    stack,
                    folder,
                    seed,
                    lambda n: _proxy(stack, seed * 100 + NODES + n),
                    leave,
                    pause_s=LAKE_DDL_PAUSE_S if with_lake else DDL_PAUSE_S,
                )
        beside = () if moves is None else (changing_tables.NAME,)
        life = Lake(stack, database, folder, follower.record, random.Random(seed), say, beside) if with_lake else None
        if life is not None:
            life.prepare()
        for process in (follower, *nodes, *writers):
            leave.callback(process.close)
            process.start()
        havoc = Havoc(stack, postgres, url, nodes, writers, proxies, chance, say, life)
        if moves is not None:
            havoc.join(moves.nodes, moves.proxies, moves.alterers)
        if havoc.lake is not None:
            leave.callback(havoc.lake.close)
            havoc.lake.start()
        havoc.run(seconds)
        took_s = time.monotonic() - havoc.started
        say("everything is mended; the queues drain")
        for proxy in havoc.proxies:
            proxy.rough = 0.0
        if moves is not None:
            moves.stop()
        for process in (*nodes, *writers):
            process.tell("stop")
        for writer in writers:
            writer.hear_until("stopped")
        with connect(url, application_name="torture", autocommit=True) as conn:
            changed = None if moves is None else moves.drained(conn)
            ends = checks.drain(nodes, conn, database.id)
            follower.tell(f"until {checks.head(conn, database.id)}")
            if follower.hear() != "done":
                raise AssertionError("the reader ended before it had read everything")
            if havoc.lake is not None:
                havoc.lake.finish()
            kept = "anabranch" if havoc.lake is None else lake.KEPT
            recorded = [checks.recorded_by(node, end["dead"]) for node, end in zip(nodes, ends, strict=True)]
            found = checks.Found(
                conn,
                oracle.read_server(conn, database, kept),
                before,
                recorded,
                checks.resend(stack, keys, recorded),
                follower.lines(),
                ends,
                proxies,
                checks.journal(conn, writers),
                drawn,
                kept,
            )
            to_look_at = checks.promises(found)
            if havoc.lake is not None:
                to_look_at["8 safe to prune"] = checks.promise(
                    lambda: parquet.check(conn, found.server, before),
                    "changes cut behind their proof; files as log and rows",
                )
            if changed is not None:
                to_look_at |= changing.promises(changed, with_lake=with_lake)
            checked, breaches, verdicts = checks.look(to_look_at, say)
        faults = Counter(havoc.done)
        if havoc.lake is not None:
            faults.update(havoc.lake.done)
        if moves is not None:
            faults.update(changing.kinds_done(moves.alterers))
        for proxy in havoc.proxies:
            faults.update(proxy.counts)
        # No device is copied here: late calls can make a node take a new id, which is counted among the faults.
        faults["new node id taken"] = sum(len(proxy.nodes) - 1 for proxy in proxies)
        made = sum(len(r.made) for r in recorded)
        wanted = WANTED | (lake.WANTED if with_lake else frozenset()) | (changing.WANTED if with_ddl else frozenset())
        return Report(seed, drawn, took_s, made, faults, wanted, verdicts, checked, breaches)


def _proxy(stack: Stack, seed: int) -> Proxy:
    a = stack.addresses
    upstreams = {
        "IngestService": a["ingest"],
        "SnapshotService": a["snapshot"],
        "ChangeService": a["snapshot"],
        "ConflictResolverService": a["conflict-resolver"],
    }
    return Proxy(upstreams, seed)
