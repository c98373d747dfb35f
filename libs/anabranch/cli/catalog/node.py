"""``anabranch node``: the nodes that the server knows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.lines import fitted, show
from anabranch.cli.printable import printable, say, say_json
from anabranch.cli.status_lines import YELLOW, age
from anabranch.store.nodes.known import KnownNode, KnownNodes, find, forget, known_nodes
from anabranch.store.session.engine import Session

app = typer.Typer(no_args_is_help=True, help="List the nodes of a database, and forget one that won't come back.")
_DAY_MS = 86_400_000
_FOR_EVER_MS = 2**62
DatabaseName = Annotated[str, typer.Argument(help="The database's name.", show_default=False)]


@app.command("list")
def list_(
    database: DatabaseName,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show every node: its id, name and principal, when it last called, the position that it has applied and how far
    that is behind, the schema version that its app was built for where it has told one, whether the log is kept for
    it, and its dead letters as it last reported them."""
    console = Console()
    with catalog_session(postgres_url, data_dir, "node") as conn:
        for number, found in enumerate(_pages(conn, database)):
            if as_json:
                for node in found.nodes:
                    say_json(asdict(node))
            elif number == 0 and not found.nodes:
                say("no nodes yet")
            else:
                show(console, (line for node in found.nodes for line in _lines(node, found.now_ms, console.width)))


@app.command("forget")
def forget_(
    database: DatabaseName,
    node: Annotated[str, typer.Argument(help="The node's id, or its name where no other has it.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also a node that called within the last day.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Forget a node that won't come back: the log is no longer kept for it, and its name is no longer shown.

    Its verdicts, its changes and its lost values stay. Should it come back all the same, it is taken in as a new one;
    where the log has been cut meanwhile it pulls all tables anew, and what it has queued is kept."""
    with catalog_session(postgres_url, data_dir, "node") as conn:
        page = known_nodes(conn, database, most=1)
        if page is None:
            raise refuse("UNKNOWN_DATABASE", f'there is no database "{database}"')
        node_id, name = _the_one(conn, database, node)
        shown = f"{printable(name)} ({node_id})" if name else node_id
        if not yes:
            _ask(shown)
        before_ms = _FOR_EVER_MS if force else page.now_ms - _DAY_MS
        if not forget(conn, database, node_id, before_ms):
            text = f"node {shown} called within the last day; --force forgets it all the same"
            raise refuse("NODE_IN_USE", text)
    say(f"node {shown} is forgotten")


def _pages(conn: Session, database: str) -> Iterator[KnownNodes]:
    after = ""
    while True:
        found = known_nodes(conn, database, after)
        if found is None:
            raise refuse("UNKNOWN_DATABASE", f'there is no database "{database}"')
        yield found
        after = found.after
        if not after:
            return


def _the_one(conn: Session, database: str, wanted: str) -> tuple[str, str]:
    found = find(conn, database, wanted)
    if not found:
        raise refuse("UNKNOWN_NODE", f'database "{database}" knows no node "{printable(wanted)}"')
    if found[0][0] != wanted and len(found) > 1:
        raise refuse("SEVERAL_NODES", f'several nodes are called "{printable(wanted)}": name one by its id')
    return found[0]


def _ask(shown: str) -> None:
    if not sys.stdin.isatty():
        raise refuse("NOT_CONFIRMED", f"nobody can be asked whether node {shown} is to be forgotten: give --yes")
    typer.confirm(f"Forget node {shown}? If it comes back after the log was cut, it pulls all tables anew.", abort=True)


def _lines(node: KnownNode, now_ms: int, width: int) -> list[Text]:
    parts = [node.id, printable(node.name), f"principal {printable(node.principal)}"]
    lines = fitted([part for part in parts if part], width, style="bold")
    state = [
        f"seen {_moment(node.last_seen_ms)} ({age(now_ms - node.last_seen_ms)} ago)",
        f"acknowledged {node.acknowledged}",
        f"{age(node.behind_ms)} behind",
    ]
    state += [f"app of schema version {node.app_version}"] if node.app_version else []
    state += ["the log is kept for it"] if node.holds else []
    state += [] if node.current else ["not since the history began anew"]
    lines += fitted(state, width, 2)
    if node.dead_letters:
        told = "" if node.told_ms is None else f" (told {_moment(node.told_ms)})"
        of = [
            f"{count} {reason}" + (f" {printable(table)}" if table else "")
            for reason, table, count in node.dead_letters_of
        ]
        lines += fitted([f"dead letters {node.dead_letters}{told}", *of], width, 2, style=YELLOW)
    return lines


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
