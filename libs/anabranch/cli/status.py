"""``anabranch status``: whether the services are ready, and databases, heads, backlog, nodes and lag.

Services and Postgres are asked at the same time, each within ``PATIENCE_S``, so that a Postgres that is stopped, or cut
off without an error, is reported in time and hides nothing else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from anabranch.cli.installation import DataDir, PostgresUrl, find_postgres, read_endpoints
from anabranch.cli.lines import paragraph, safe, show
from anabranch.cli.printable import say, say_json
from anabranch.cli.status_lines import RED, databases_lines, services_lines
from anabranch.runtime.health import probe
from anabranch.store.catalog.status import DatabaseStatus, read_status
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import SessionOptions, connect

app = typer.Typer()
PATIENCE_S = 1.0
"""How long a service, or a new session with Postgres, may take to answer."""
READ_S = 30.0
"""How long a Postgres that answers may take to return everything."""
_OPTIONS = SessionOptions(connect_timeout_s=2, statement_timeout_ms=20_000)


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """The facts to show. ``services``: name to address and state. ``trouble``: why Postgres gave no answer; "" where it
    gave one."""

    services: dict[str, dict[str, str]]
    now_ms: int
    databases: list[DatabaseStatus]
    trouble: str = ""


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with every node.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option("--every-s", min=0.1, help="With --watch: how often, in seconds.")] = 2.0,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show whether the services are ready (with --data-dir), and databases, heads, backlog, nodes and lag.

    In red: services that are not ready, tables that are not synced, a Postgres that does not answer (exit code 1).

    head: when the last group was committed. schema: its version, and when it last changed. ready: batches that could be
    decided; parked: that wait for a row or a batch; oldest: how long the oldest of them has waited; captured: changes
    by SQL that the log lacks yet. decided: accepted batches a second. held by: what keeps the log from being cut
    further. behind: how far a node is from the head.
    """
    if as_json and watch:
        raise typer.BadParameter("--json and --watch don't go together")
    url = find_postgres(postgres_url, data_dir)
    addresses = read_endpoints(data_dir).get("addresses", {}) if data_dir is not None else {}
    if watch:
        watch_status(lambda: read(url, addresses), every_s)
        return
    facts = read(url, addresses)
    if as_json:
        content = {
            "server_time_ms": facts.now_ms,
            "trouble": facts.trouble,
            "services": facts.services,
            "databases": [asdict(database) for database in facts.databases],
        }
        say_json(content, indent=2)
    else:
        console = Console()
        show(console, shown(facts, console.width))
    if facts.trouble:
        say(f"anabranch: {facts.trouble}", err=True)
        raise typer.Exit(1)


def read(url: str, addresses: dict[str, str]) -> StatusFacts:
    """Ask Postgres, and the services at ``addresses``. Raises every error but one of a Postgres that is unavailable."""
    answer = _PostgresAnswer(url)
    services = _services(addresses)
    now_ms, databases, trouble = answer.wait()
    return StatusFacts(services, now_ms, databases, trouble)


class _PostgresAnswer:
    """Postgres, asked in a thread of its own: the driver may wait longer for a silent server than people do."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._began = time.monotonic()
        self._connected = threading.Event()
        self._done = threading.Event()
        self._found: tuple[int, list[DatabaseStatus]] | None = None
        self._error: Exception | None = None
        threading.Thread(target=self._ask, name="status", daemon=True).start()

    def wait(self) -> tuple[int, list[DatabaseStatus], str]:
        """Postgres's time, the databases, and why there are none where it does not answer."""
        self._connected.wait(max(0.0, self._began + PATIENCE_S - time.monotonic()))
        if self._connected.is_set():
            self._done.wait(READ_S)
        if self._error is not None:
            if not is_unavailable(self._error):
                raise self._error
            return 0, [], "Postgres is not available: " + " ".join(str(self._error).split())
        if self._found is None:
            waited = f"{time.monotonic() - self._began:.0f} s"
            return 0, [], f"Postgres is not available: it takes connections, if any, and has not answered for {waited}"
        return *self._found, ""

    def _ask(self) -> None:
        try:
            with connect(self._url, application_name="anabranch-status", autocommit=True, options=_OPTIONS) as conn:
                self._connected.set()
                self._found = read_status(conn)
        except Exception as error:  # reported by the thread that waits
            self._error = error
        finally:
            self._connected.set()
            self._done.set()


def watch_status(look: Callable[[], StatusFacts], every_s: float) -> None:
    """Show what ``look`` finds, on the whole terminal, until Ctrl-C. An unavailable Postgres is reported and asked
    again; the facts shown before stay in sight."""
    last: StatusFacts | None = None
    console = Console()
    with contextlib.suppress(KeyboardInterrupt), Live("", console=console, screen=True, auto_refresh=False) as live:
        while True:
            facts = look()
            if facts.trouble and last is not None:
                facts = StatusFacts(facts.services, last.now_ms, last.databases, facts.trouble)
            elif not facts.trouble:
                last = facts
            moment = f"{datetime.fromtimestamp(facts.now_ms / 1000, UTC):%H:%M:%S}Z  " if facts.now_ms else ""
            lines = [*map(safe, shown(facts, console.width)), Text(f"{moment}Ctrl-C ends")]
            live.update(Text("\n").join(lines), refresh=True)
            time.sleep(every_s)


def shown(facts: StatusFacts, width: int) -> Iterable[Text]:
    """The facts as lines."""
    yield from services_lines(facts.services, width)
    if facts.trouble:
        yield from paragraph(facts.trouble, width, style=RED)
    if facts.databases or not facts.trouble:
        yield from databases_lines(facts.databases, facts.now_ms, width)


def _services(addresses: dict[str, str]) -> dict[str, dict[str, str]]:
    if not addresses:
        return {}
    with ThreadPoolExecutor(len(addresses)) as pool:
        states = pool.map(lambda address: probe(address, PATIENCE_S), addresses.values())
        return {
            name: {"address": address, "state": state}
            for (name, address), state in zip(addresses.items(), states, strict=True)
        }
