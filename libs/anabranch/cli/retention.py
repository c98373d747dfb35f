"""``anabranch retention``: what holds a floor back, what goes, and a sweep now."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as Shown

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl, read_endpoints
from anabranch.cli.lines import cell
from anabranch.cli.printable import say_json
from anabranch.clock import Clock
from anabranch.store.retention.floor import databases
from anabranch.store.retention.status import COUNTED, RetentionStatus, status
from anabranch.v1 import retention_pb2, retention_pb2_grpc
from anabranch.wire.enum_names import enum_name

app = typer.Typer(no_args_is_help=True, help="Show what holds a database's floor back, and what goes; sweep now.")
_SWEEP_S = 600.0
Name = Annotated[str, typer.Argument(help="The database's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="A JSON object.")]


@app.callback()
def retention() -> None:
    """Show what holds a database's floor back, and what goes; sweep now."""


@app.command("status")
def status_(
    database: Name, as_json: AsJson = False, data_dir: DataDir = None, postgres_url: PostgresUrl = None
) -> None:
    """Show what holds the floor back, and what the next sweep would remove."""
    with catalog_session(postgres_url, data_dir, "retention") as conn:
        for kept in databases(conn, database):
            found = status(conn, kept, Clock().now_ms())
            break
        else:
            raise refuse("UNKNOWN_DATABASE", f'there is no database "{database}"')
    content = _content(found)
    if as_json:
        say_json(content)
        return
    console = Console()
    console.print(f"floor       {_moment(content['floor'])}")
    console.print(f"next floor  {_moment(content['next_floor'])}")
    _print_bounds(console, content["bounds"])
    _print_rows(console, "would go", content["removes"], COUNTED)
    console.print(f"partitions  {len(content['partitions'])} beside the default one", highlight=False)


@app.command("sweep")
def sweep(
    database: Name,
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Folder of a running `anabranch up`.", file_okay=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, and show what a sweep would do.")] = False,
    as_json: AsJson = False,
) -> None:
    """Have the janitor sweep one database now."""
    endpoints = read_endpoints(data_dir)
    address = endpoints["addresses"].get("retention-janitor")
    if address is None:
        raise refuse("UNAVAILABLE", f"the installation in {data_dir} runs no janitor")
    request = retention_pb2.RunSweepRequest(db_name=database, dry_run=dry_run)
    with grpc.insecure_channel(address) as channel:
        janitor = retention_pb2_grpc.RetentionJanitorServiceStub(channel)
        metadata = (("authorization", f"Bearer {endpoints['key']}"),)
        try:
            done = janitor.RunSweep(request, metadata=metadata, timeout=_SWEEP_S)
        except grpc.RpcError as error:
            raise refuse(error.code().name, error.details() or "the call failed") from None
    content: dict[str, Any] = {
        "floor_before": done.floor_before,
        "floor": done.floor,
        "bounds": [_bound(enum_name(retention_pb2.FloorHold, b.hold), b.position, b.detail) for b in done.bounds],
        "removed": {one.what: one.rows for one in done.removed},
        "unfinished": done.unfinished,
    }
    if as_json:
        say_json(content)
        return
    console = Console()
    console.print(f"floor  {_moment(done.floor_before)} -> {_moment(done.floor)}")
    _print_bounds(console, content["bounds"])
    _print_rows(console, "would go" if dry_run else "gone", content["removed"], COUNTED if dry_run else None)
    if done.unfinished:
        console.print("there is more: the next sweep goes on")


def _content(found: RetentionStatus) -> dict[str, Any]:
    look = found.look
    return {
        "database": look.kept.name,
        "floor": look.kept.floor,
        "next_floor": look.target,
        "head": look.facts.head,
        "bounds": [_bound(b.hold.name, b.position, b.detail) for b in look.bounds],
        "removes": dict(found.removes),
        "partitions": [{"name": leaf.name, "from": leaf.start, "until": leaf.until} for leaf in found.partitions],
    }


def _bound(hold: str, position: int, detail: str) -> dict[str, Any]:
    return {"hold": hold, "position": position, "detail": detail}


def _moment(position: int) -> str:
    if position <= 0:
        return "the beginning"
    return f"{datetime.fromtimestamp(position / 1000, UTC).strftime('%Y-%m-%d %H:%M:%S')}Z ({position})"


def _print_bounds(console: Console, bounds: Iterable[dict[str, Any]]) -> None:
    shown = Shown("held by", "at", Column("why", overflow="fold"))
    for bound in bounds:
        shown.add_row(bound["hold"], _moment(bound["position"]), cell(bound["detail"]))
    console.print(shown)


def _print_rows(console: Console, title: str, rows: dict[str, int], counted: int | None) -> None:
    shown = Shown(title, Column("rows", justify="right"))
    for what, number in rows.items():
        shown.add_row(what, f"{number}{' or more' if counted is not None and number >= counted else ''}")
    console.print(shown)
