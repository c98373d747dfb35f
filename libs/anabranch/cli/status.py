"""``anabranch status``: databases, heads, backlog, nodes, lag, and whether the services are ready."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from anabranch.cli.installation import DataDir, PostgresUrl, find_postgres, read_endpoints
from anabranch.runtime.health import probe
from anabranch.store.engine import connect
from anabranch.store.status import DatabaseStatus, read_status

app = typer.Typer()
SHOWN_NODES = 20
PROBE_TIMEOUT_S = 2.0


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with every node.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show databases, heads, backlog, nodes and lag; with --data-dir also whether the services are ready.

    head: when the last group was committed. ready: batches that could be decided; parked: that wait for a row or
    a batch; oldest: how long the oldest of them has waited. behind: how far the node that is farthest from the
    head is from it.
    """
    services = _services(read_endpoints(data_dir)["addresses"]) if data_dir is not None else {}
    with connect(find_postgres(postgres_url, data_dir), application_name="anabranch-status", autocommit=True) as conn:
        now_ms, databases = read_status(conn)
    if as_json:
        content = {
            "server_time_ms": now_ms,
            "services": services,
            "databases": [asdict(database) for database in databases],
        }
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console()
    if services:
        console.print(_services_table(services))
    if not databases:
        console.print("no databases yet; `anabranch database create` makes one")
        return
    console.print(_databases_table(databases, now_ms))
    for database in databases:
        if database.nodes:
            console.print(_nodes_table(database, now_ms))


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
