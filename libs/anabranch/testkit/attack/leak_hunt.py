"""One leak hunt, from an empty folder to its report: devices whose audiences change all the time, somebody who writes
by SQL, and pryers who know every key, on services of its own. When all is over, the log tells what each value's
audiences were, and everything that anybody received is held against that.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import jwt

from anabranch.embedded import UNSYNCED
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.attack.hunt_bases import publish_bases
from anabranch.testkit.attack.hunt_device import HuntDevice
from anabranch.testkit.attack.hunt_writer import write_by_sql
from anabranch.testkit.attack.hunted import DATABASE, HUNTED, PRINCIPALS, Known, claimed, make_hunted
from anabranch.testkit.attack.leaks import Leak, all_leaks
from anabranch.testkit.attack.log_history import read_history
from anabranch.testkit.attack.prying import Pryer
from anabranch.testkit.attack.wiretap import Wiretap
from anabranch.testkit.exposition import shown
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until

_LEFT = """
select exists (select 1 from anabranch.captured)
    or exists (select 1 from anabranch.inbox where park_deadline_ms is null)
"""
PULL_SOURCES = "anabranch_pull_sources_total"
_TOKEN_S = 24 * 3600
_SETTLES_S = 120.0


@dataclass(frozen=True)
class HuntReport:
    """``calls`` by method, ``from_parquet``: pulls that were served from a base, ``marks``: how many marked values each
    principal got, ``failures``: how calls failed."""

    seed: int
    calls: Mapping[str, int]
    from_parquet: int
    marks: Mapping[str, int]
    failures: Mapping[str, str]
    leaks: Sequence[Leak]

    @property
    def clean(self) -> bool:
        """Whether nothing leaked."""
        return not self.leaks

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {sum(self.calls.values())} calls"]
        lines += [f"  {count:6d}  {method}" for method, count in sorted(self.calls.items())]
        lines.append(f"  {self.from_parquet:6d}  pulls from Parquet")
        lines += [f"  {principal} got {count} values" for principal, count in sorted(self.marks.items())]
        lines += [f"  failed: {code}: {text[:200]}" for code, text in sorted(self.failures.items())]
        lines += [f"  LEAK {leak}" for leak in self.leaks[:50]]
        return "\n".join([*lines, f"  {len(self.leaks)} leaks"])


def hunt(
    folder: Path, seconds: float, seed: int, say: Callable[[str], None], environment: Mapping[str, str] | None = None
) -> HuntReport:
    """Run for ``seconds`` and some more, with ``folder`` for all files. ``environment`` is added to the services'."""
    chance = random.Random(seed)
    secret = secrets.token_urlsafe(48)

    def sign(principal: str, claims: Mapping[str, Any]) -> str:
        named = {**claims, "sub": principal, "exp": int(time.time()) + _TOKEN_S, "anabranch_database": DATABASE}
        return jwt.encode(named, secret, "HS256")

    with ExitStack() as leave:
        postgres = leave.enter_context(EmbeddedPostgres(folder / "postgres", settings=UNSYNCED))
        own = {"ANABRANCH_JWT_HS256_SECRET": secret, "ANABRANCH_PULL_BATCH_BYTES": "4096", **(environment or {})}
        stack = leave.enter_context(Stack(postgres.url, folder=folder / "stack", environment=own))
        conn = leave.enter_context(connect(postgres.url, application_name="hunt", autocommit=True))
        make_hunted(conn)
        known = Known()
        actors: list[HuntDevice | Pryer] = []
        tap = Wiretap(claimed, lambda principal: {n for a in actors if a.principal == principal for n in a.nodes})
        for number, principal in enumerate([*PRINCIPALS, PRINCIPALS[0]]):
            devices_chance = random.Random(chance.getrandbits(64))
            file = folder / f"device-{number}.db"
            actors.append(HuntDevice(file, principal, stack.addresses, tap, sign, known, devices_chance))
        actors += [
            Pryer(principal, stack.addresses, tap, sign, known, random.Random(chance.getrandbits(64)))
            for principal in PRINCIPALS
        ]
        for actor in actors:
            leave.callback(actor.close)
        # The server does not know what memberships gave before a principal's first call: it goes by that of then.
        for actor in actors:
            if isinstance(actor, HuntDevice):
                actor.begin()
        say(f"seed {seed}: hunting for leaks for {seconds:.0f} s")
        writers: list[Callable[[Event], None]] = [
            partial(write_by_sql, postgres.url, known, random.Random(chance.getrandbits(64))),
            partial(publish_bases, postgres.url, folder / "lake"),
        ]
        _run([*(actor.run for actor in actors), *writers], seconds)
        _settle(conn)
        say("looking at what was received")
        from_parquet = shown(stack.metrics_addresses["snapshot"], PULL_SOURCES, source="parquet")
        return _report(conn, seed, tap, known, actors, int(from_parquet))


def _run(works: Sequence[Callable[[Event], None]], seconds: float) -> None:
    stop = Event()
    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(work, stop) for work in works]
        wait(running, seconds, return_when=FIRST_COMPLETED)
        stop.set()
        for one in running:
            one.result()


def _settle(conn: Session) -> None:
    """Wait until the log has everything."""
    until(lambda: conn.execute(_LEFT.encode()).fetchone() == (False,), _SETTLES_S, "not all came into the log")


def _report(
    conn: Session, seed: int, tap: Wiretap, known: Known, actors: Sequence[HuntDevice | Pryer], from_parquet: int
) -> HuntReport:
    past = read_history(conn, DATABASE, HUNTED, {})
    for principal, mark in known.sent:
        past.send(principal, mark)
    calls = tap.calls()
    marks: dict[str, set[str]] = {principal: set() for principal in PRINCIPALS}
    methods: Counter[str] = Counter()
    for caller, responses in calls:
        for one in responses:
            methods[one.method.rpartition("/")[2]] += 1
            marks.setdefault(caller.principal, set()).update(one.marks)
    failures = {code: text for actor in actors for code, text in actor.failures.items()}
    counts = {principal: len(found) for principal, found in marks.items()}
    return HuntReport(seed, methods, from_parquet, counts, failures, all_leaks(past, calls))
