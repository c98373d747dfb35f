"""One attack, from an empty folder to its report.

Every attacker has a thread of its own, and so has every neighbour, whose calls are measured while attackers attack and
while they rest (``phases``). Afterwards all has to be as before: the same processes, ``verify`` without a difference,
no fault in any log.

The seed gives what each attacker tries, in its order; the moments depend on the machine.

A run of fifteen minutes is no other than one of one minute: neighbours have as many rows and as many times kept,
attackers delete what they inserted, and logs are read before they are replaced.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from anabranch.embedded import UNSYNCED
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.attack.calls import fuzz_calls
from anabranch.testkit.attack.expanding import send_expanding
from anabranch.testkit.attack.frames import send_frames
from anabranch.testkit.attack.logs import Logs
from anabranch.testkit.attack.neighbour import Neighbour, medians
from anabranch.testkit.attack.phases import ATTACKED as UNDER_ATTACK
from anabranch.testkit.attack.phases import QUIET, Phases
from anabranch.testkit.attack.roles import act_as_role
from anabranch.testkit.attack.target import Findings, Target
from anabranch.testkit.stack import Stack

VERIFY_S = 300.0
MOST_TIMES_SLOWER = 3.0
LEAST_S = 0.05
"""Quiet calls take a few milliseconds; what is below this is no delay that anybody feels."""
ATTACKED, NEXT = "attacked", "next"
"""Databases: the attackers', and one of which they know nothing."""
ATTACKERS = (fuzz_calls, fuzz_calls, send_frames, act_as_role, send_expanding)

_TABLES = """
create schema attacked;
create type attacked.label as enum ('a', 'b');
create domain attacked.positive as bigint check (value > 0);
create table attacked.item (id text primary key, body text, n numeric, doc jsonb);
create table attacked.small (id text primary key, body text);
create table attacked.by_label (id attacked.label primary key, body text);
create table attacked.by_domain (id attacked.positive primary key, body text);
create table attacked.by_day (id date primary key, body text);
create table attacked.by_uuid (id uuid primary key, body text);
create schema next;
create table next.small (id text primary key, body text);
create role attacker login password 'attacker';
"""
_REGISTERED = {
    ATTACKED: ("item", "small", "by_label", "by_domain", "by_day", "by_uuid"),
    NEXT: ("small",),
}


@dataclass(frozen=True)
class Report:
    """``quiet`` and ``attacked``: median seconds of a neighbour's calls, by neighbour and kind. ``memory``: the most
    bytes of each service; one that is above the chart's limit is killed. ``breaches``: what must not be, and how it
    came about."""

    seed: int
    seconds: float
    answers: Mapping[str, int]
    quiet: Mapping[str, float]
    attacked: Mapping[str, float]
    memory: Mapping[str, int]
    breaches: Mapping[str, str]

    @property
    def clean(self) -> bool:
        """Whether there is no breach."""
        return not self.breaches

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {sum(self.answers.values())} answers in {self.seconds:.0f} s"]
        lines += [f"  BREACH {what}: {how[:4_000]}" for what, how in self.breaches.items()]
        lines += [f"  {count:6d}  {what}" for what, count in sorted(self.answers.items())]
        lines += [
            f"  {kind}: {calm * 1000:.1f} ms quiet, {self.attacked.get(kind, float('nan')) * 1000:.1f} ms attacked"
            for kind, calm in sorted(self.quiet.items())
        ]
        lines += [f"  {name}: at most {size / 2**20:.0f} MiB" for name, size in sorted(self.memory.items())]
        return "\n".join(lines)


def attack(folder: Path, seconds: float, seed: int, say: Callable[[str], None], *, judge_times: bool = True) -> Report:
    """Run for ``seconds`` and some more, with ``folder`` for all files. ``judge_times``: a neighbour that is slow is a
    breach; on a machine that does other things meanwhile, it is told and not judged."""
    chance = random.Random(seed)
    found = Findings()
    with ExitStack() as leave:
        postgres = leave.enter_context(EmbeddedPostgres(folder / "postgres", settings=UNSYNCED))
        stack = leave.enter_context(Stack(postgres.url, folder=folder / "stack"))
        with connect(postgres.url, application_name="attack", autocommit=True) as conn:
            conn.execute(_TABLES.encode())
            for name, tables in _REGISTERED.items():
                registration.create_database(conn, name, name, None)
                for table in tables:
                    registration.add_table(conn, name, table, None)
        target = Target(
            stack.addresses,
            ATTACKED,
            stack.new_key("attacker", database=ATTACKED),
            stack.new_key("attacking-admin", role="admin", database=ATTACKED),
            _as_attacker(postgres.url),
        )
        neighbours = {
            name: Neighbour(stack.addresses, stack.new_key(f"neighbour-{name}", database=name), name)
            for name in (ATTACKED, NEXT)
        }
        for neighbour in neighbours.values():
            leave.callback(neighbour.close)
        pids = {name: pid for name in stack.addresses if (pid := stack.pid(name)) is not None}
        logs = Logs(folder / "stack", found)
        say(f"seed {seed}: attacked for {seconds:.0f} s, with rests")
        began = time.monotonic()
        works = [(attacker, random.Random(chance.getrandbits(64)), target) for attacker in ATTACKERS]
        quiet, attacked = _measured(neighbours, seconds, works, logs, found)
        took_s = time.monotonic() - began
        say("looking at what it has left")
        for name, pid in pids.items():
            if stack.pid(name) != pid:
                found.breach(f"{name} has ended", f"it was process {pid}, and is {stack.pid(name)}")
        for excess in stack.memory.take():
            found.breach(f"{excess.name} was larger than its limit", str(excess))
        for kind, calm in quiet.items():
            felt = attacked.get(kind)
            if felt is None or (judge_times and felt > max(MOST_TIMES_SLOWER * calm, LEAST_S)):
                found.breach(f"neighbour's {kind} is slow", f"{calm} s quiet, {felt} s attacked")
        for name, neighbour in neighbours.items():
            for kind, failure in neighbour.failures.items():
                found.breach(f"a {kind} of the neighbour in {name} failed", failure)
        for name in _REGISTERED:
            _verify(postgres.url, name, max(VERIFY_S, seconds), found)
        logs.read()
        return Report(
            seed, took_s, Counter(found.answers), quiet, attacked, dict(stack.memory.greatest), dict(found.breaches)
        )


def _measured(
    neighbours: Mapping[str, Neighbour],
    seconds: float,
    works: Sequence[tuple[Callable[..., None], random.Random, Target]],
    logs: Logs,
    found: Findings,
) -> tuple[dict[str, float], dict[str, float]]:
    """The neighbours' medians by ``<database>/<kind>`` while ``works`` rest, and while they attack."""
    phases = Phases()
    with ThreadPoolExecutor(len(neighbours) + len(works) + 1) as threads:
        reading = threads.submit(logs.follow, phases)
        measured = {name: threads.submit(neighbour.measure, phases) for name, neighbour in neighbours.items()}
        attacks = {threads.submit(work, target, chance, phases, found): work.__name__ for work, chance, target in works}
        phases.run(seconds)
        for ended, name in attacks.items():
            _note_end(ended, name, found)
        reading.result()
        times = {name: future.result() for name, future in measured.items()}
    quiet, attacked = (
        {f"{name}/{kind}": middle for name in times for kind, middle in medians(times[name], phase).items()}
        for phase in (QUIET, UNDER_ATTACK)
    )
    return quiet, attacked


def _note_end(ended: Future[None], name: str, found: Findings) -> None:
    error = ended.exception()
    if error is not None:
        found.breach(f"{name} could not go on", repr(error))


def _as_attacker(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"attacker:attacker@{parts.hostname}:{parts.port}").geturl()


def _verify(url: str, name: str, timeout_s: float, found: Findings) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anabranch.cli.entry", "verify", "--db", name],
        env={**os.environ, "ANABRANCH_POSTGRES_URL": url},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        found.breach(f"verify {name} is not clean", f"{done.stdout}{done.stderr}")
