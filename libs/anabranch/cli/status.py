"""``anabranch status``: databases, heads, backlog, nodes, lag, and whether the services are ready."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from anabranch.cli.installation import DataDir, PostgresUrl, find_postgres, read_endpoints
from anabranch.runtime.health import probe
from anabranch.store.availability import is_unavailable
from anabranch.store.census import SEEN
from anabranch.store.cut_off import in_words
from anabranch.store.engine import connect
from anabranch.store.status import DatabaseStatus, read_status

app = typer.Typer()
SHOWN_NODES = 20
PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is shown. ``services``: name to address and state."""

    services: dict[str, dict[str, str]]
    now_ms: int
    databases: list[DatabaseStatus]


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with every node.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option("--every-s", min=0.1, help="With --watch: how often, in seconds.")] = 2.0,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show databases, heads, backlog, nodes and lag; with --data-dir also whether the services are ready.

    head: when the last group was committed. decided: accepted batches a second. ready: batches that could be decided;
    parked: that wait for a row or a batch; oldest: how long the oldest of them has waited. behind: how far the node
    that is farthest from the head is from it. held by: what keeps the log from being cut further.
    """
    if as_json and watch:
        raise typer.BadParameter("--json and --watch don't go together")
    url = find_postgres(postgres_url, data_dir)
    addresses = read_endpoints(data_dir)["addresses"] if data_dir is not None else {}
    if watch:
        watch_status(lambda: read(url, addresses), every_s)
        return
    facts = read(url, addresses)
    if as_json:
        content = {
            "server_time_ms": facts.now_ms,
            "services": facts.services,
            "databases": [asdict(database) for database in facts.databases],
        }
        typer.echo(json.dumps(content, indent=2))
        return
    Console().print(shown(facts))


def read(url: str, addresses: dict[str, str]) -> Facts:
    """Ask Postgres, and the services at ``addresses``. Raises psycopg.Error."""
    with connect(url, application_name="anabranch-status", autocommit=True) as conn:
        now_ms, databases = read_status(conn)
    return Facts(_services(addresses), now_ms, databases)


def watch_status(look: Callable[[], Facts], every_s: float) -> None:
    """Show what ``look`` finds, on the whole terminal, until Ctrl-C. A Postgres that is not to be had is said and asked
    again; what was there before stays in sight."""
    last: RenderableType = ""
    moment = ""
    with contextlib.suppress(KeyboardInterrupt), Live(last, console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            trouble = ""
            try:
                facts = look()
                last = shown(facts)
                moment = f"{datetime.fromtimestamp(facts.now_ms / 1000, UTC):%H:%M:%S}Z"
            except Exception as error:
                if not is_unavailable(error):
                    raise
                trouble = "  Postgres is not available: " + " ".join(str(error).split())
            live.update(Group(last, Text(f"{moment}{trouble}  Ctrl-C ends")), refresh=True)
            time.sleep(every_s)


def shown(facts: Facts) -> RenderableType:
    """As tables."""
    parts: list[RenderableType] = [_services_table(facts.services)] if facts.services else []
    if not facts.databases:
        return Group(*parts, "no databases yet; `anabranch database create` makes one")
    parts += [_databases_table(facts.databases, facts.now_ms), _logs_table(facts.databases, facts.now_ms)]
    parts.append(_seen_table(facts.databases))
    parts += [Text(in_words(database.name, table)) for database in facts.databases for table in database.cut_off]
    parts += [_nodes_table(database, facts.now_ms) for database in facts.databases if database.nodes]
    return Group(*parts)


def _services(addresses: dict[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"address": address, "state": probe(address, PROBE_TIMEOUT_S)} for name, address in addresses.items()}


def _services_table(services: dict[str, dict[str, str]]) -> Table:
    table = Table("service", "address", "state", title="services")
    for name, service in services.items():
        table.add_row(name, service["address"], service["state"])
    return table


def _databases_table(databases: list[DatabaseStatus], now_ms: int) -> Table:
    table = Table(Column("database", overflow="fold"), title="databases")
    for column in ("tables", "rows", "head", "ready", "parked", "oldest", "nodes", "behind"):
        table.add_column(column, justify="right", no_wrap=True)
    for database in databases:
        rows = [count for count in database.tables.values() if count is not None]
        behind = max((node.behind_ms for node in database.nodes), default=0)
        table.add_row(
            escape(database.name),
            str(len(database.tables)),
            f"{sum(rows):,}",
            f"{_age(now_ms - database.head)} ago" if database.head else "none",
            str(database.ready),
            str(database.parked),
            "" if database.oldest_waiting_ms is None else _age(database.oldest_waiting_ms),
            str(database.node_count),
            _age(behind) if database.nodes else "",
        )
    return table


def _logs_table(databases: list[DatabaseStatus], now_ms: int) -> Table:
    table = Table(Column("database", overflow="fold"), title="logs")
    for column in ("decided", "kept", "held by", "compacted"):
        table.add_column(column, justify="right", no_wrap=True)
    for database in databases:
        held = ""
        if database.bounds:
            hold, position, _ = database.bounds[0]
            held = f"{hold.lower()}, {_age(now_ms - position)} back"
        behind = database.compaction_behind_ms
        table.add_row(
            escape(database.name),
            f"{database.decided_per_s:,.1f}/s",
            _age(now_ms - database.floor) if database.floor else "all",
            held,
            "" if behind is None else f"{_age(behind)} behind",
        )
    return table


def _seen_table(databases: list[DatabaseStatus]) -> Table:
    table = Table(Column("database", overflow="fold"), title="nodes by their last call")
    for seen in SEEN:
        table.add_column(seen, justify="right", no_wrap=True)
    for database in databases:
        table.add_row(escape(database.name), *(str(database.nodes_seen[seen]) for seen in SEEN))
    return table


def _nodes_table(database: DatabaseStatus, now_ms: int) -> Table:
    shown = database.nodes[:SHOWN_NODES]
    left_out = database.node_count - len(shown)
    title = f"nodes of {escape(database.name)}" + (f" (those seen last; {left_out} more)" if left_out else "")
    table = Table("node", "name", "principal", "seen", "behind", title=title)
    for node in shown:
        seen = f"{_age(now_ms - node.last_seen_ms)} ago"
        names = escape(node.name), escape(node.principal)
        table.add_row(node.id, *names, seen, _age(node.behind_ms))
    return table


def _age(ms: int) -> str:
    seconds = max(0, ms) / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"
