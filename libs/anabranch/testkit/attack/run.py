"""One attack, from an empty folder to its report.

Phases: *quiet* measures what the neighbours feel; *attack* runs every attacker in threads of its own beside them;
*after* looks that all is as before: the same processes, ``verify`` without a difference, no fault in any log.

The seed gives what each attacker tries, in its order; the moments depend on the machine.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from anabranch.embedded.postgres import UNSYNCED, EmbeddedPostgres
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.attack.calls import fuzz_calls
from anabranch.testkit.attack.expanding import send_expanding
from anabranch.testkit.attack.frames import send_frames
from anabranch.testkit.attack.neighbour import Neighbour, medians
from anabranch.testkit.attack.roles import act_as_role
from anabranch.testkit.attack.target import Findings, Target
from anabranch.testkit.stack import Stack

QUIET_S = 5.0
VERIFY_S = 300.0
MOST_TIMES_SLOWER = 3.0
LEAST_S = 0.05
"""Quiet calls take a few milliseconds; what is below this is no delay that anybody feels."""
ATTACKED, NEXT = "attacked", "next"
"""Databases: the attackers', and one of which they know nothing."""
FAULT_WORDS = ("SERVER_FAULT", "Traceback (most recent call last)", "service failed")
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
        lines += [f"  {count:6d}  {what}" for what, count in sorted(self.answers.items())]
        lines += [
            f"  {kind}: {calm * 1000:.1f} ms quiet, {self.attacked.get(kind, float('nan')) * 1000:.1f} ms attacked"
            for kind, calm in sorted(self.quiet.items())
        ]
        lines += [f"  {name}: at most {size / 2**20:.0f} MiB" for name, size in sorted(self.memory.items())]
        lines += [f"  BREACH {what}: {how[:4_000]}" for what, how in self.breaches.items()]
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
        say(f"seed {seed}: quiet for {QUIET_S:.0f} s")
        quiet = _measured(neighbours, QUIET_S, [], found)
        say(f"attacked for {seconds:.0f} s")
        began = time.monotonic()
        works = [(attacker, random.Random(chance.getrandbits(64)), target) for attacker in ATTACKERS]
        attacked = _measured(neighbours, seconds, works, found)
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
            _verify(postgres.url, name, found)
        _read_logs(folder / "stack", found)
        return Report(
            seed, took_s, Counter(found.answers), quiet, attacked, dict(stack.memory.greatest), dict(found.breaches)
        )


def _measured(
    neighbours: Mapping[str, Neighbour],
    seconds: float,
    works: Sequence[tuple[Callable[..., None], random.Random, Target]],
    found: Findings,
) -> dict[str, float]:
    """The neighbours' medians by ``<database>/<kind>`` while ``works`` go on."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(neighbours) + len(works)) as threads:
        measured = {name: threads.submit(neighbour.measure, stop) for name, neighbour in neighbours.items()}
        attacks = {threads.submit(work, target, chance, stop, found): work.__name__ for work, chance, target in works}
        try:
            stop.wait(seconds)
        finally:
            stop.set()
        for ended, name in attacks.items():
            _note_end(ended, name, found)
        return {
            f"{name}/{kind}": value
            for name, future in measured.items()
            for kind, value in medians(future.result()).items()
        }


def _note_end(ended: Future[None], name: str, found: Findings) -> None:
    error = ended.exception()
    if error is not None:
        found.breach(f"{name} could not go on", repr(error))


def _as_attacker(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"attacker:attacker@{parts.hostname}:{parts.port}").geturl()


def _verify(url: str, name: str, found: Findings) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anabranch.cli.entry", "verify", "--db", name],
        env={**os.environ, "ANABRANCH_POSTGRES_URL": url},
        capture_output=True,
        text=True,
        timeout=VERIFY_S,
        check=False,
    )
    if done.returncode:
        found.breach(f"verify {name} is not clean", f"{done.stdout}{done.stderr}")


def _read_logs(folder: Path, found: Findings) -> None:
    for log in sorted(folder.glob("**/*.log")):
        for line in log.read_text(errors="replace").splitlines():
            for word in FAULT_WORDS:
                if word in line:
                    found.breach(f"{log.name} has {word}", line)
