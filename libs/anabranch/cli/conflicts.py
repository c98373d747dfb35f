"""``anabranch conflicts``: values that lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.lines import listing, show
from anabranch.cli.printable import say_json
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.former_tables import all_former
from anabranch.store.log.conflicts import (
    Lost,
    WantedConflicts,
    called,
    column_called,
    listed_tables,
    of_one_key,
    page,
)
from anabranch.store.session.engine import Session
from anabranch.v1 import change_pb2, value_pb2
from anabranch.values import Table, key_cells, key_text
from anabranch.wire.enum_names import enum_name
from anabranch.wire.plain import plain_value

app = typer.Typer(no_args_is_help=True, help="Show values that lost a conflict.")
_PAGE_BYTES = 16 * 1024 * 1024
_SHOWN_CHARACTERS = 200
_TO = {"COLUMN_DROPPED": "a drop of the column"}
"""The words for a loss to something else than another value, by its cause."""


@app.callback()
def conflicts() -> None:
    """Show values that lost a conflict."""


@app.command("list")
def list_(
    database: Annotated[str, typer.Argument(help="The database's name.", show_default=False)],
    table: Annotated[str | None, typer.Option("--table", help="Only of this table.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Only of this row of --table: the key's value, a JSON array of several."),
    ] = None,
    node: Annotated[str | None, typer.Option("--node", help="Only what the node with this id won or lost.")] = None,
    since: Annotated[datetime | None, typer.Option("--since", help="Only decided then or later, UTC.")] = None,
    until: Annotated[datetime | None, typer.Option("--until", help="Only decided before, UTC.")] = None,
    most: Annotated[int, typer.Option("--most", help="The most that are shown.", min=1)] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, with whole values.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show values that lost, the newest first: whose, and to whom, or to what. Tables and columns have their names of
    today; those that are gone their last ones."""
    if key is not None and table is None:
        raise refuse("INVALID_REQUEST", "--key needs --table")
    with catalog_session(postgres_url, data_dir, "conflicts") as conn:
        found = load_database(conn, database)
        every = listed_tables(found, all_former(conn, found.id))
        tables = every if table is None else called(every, table)
        if table is not None and not tables:
            raise refuse("UNKNOWN_TABLE", f'there is no synced table "{table}"')
        text = None
        if table is not None and key is not None:
            text, tables = _key_text(tables[0], key), of_one_key(tables)
        wanted = WantedConflicts(found.id, [t.id for t in tables], text, node or "", _ms(since) or 0, _ms(until))
        rows = _rows(conn, {one.id: one for one in every}, wanted, most)
        if as_json:
            for row in rows:
                say_json(row, default=bytes.hex)
        else:
            console = Console()
            show(console, _listed(rows, console.width))


def _key_text(table: Table, key: str) -> str:
    width = len(table.key_columns)
    if width == 1:
        return key
    try:
        parts = json.loads(key)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or len(parts) != width:
        raise refuse("INVALID_REQUEST", f"the key of {table.sql_name} is given as a JSON array of its {width} values")
    return key_text(parts)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.replace(tzinfo=UTC).timestamp() * 1000)


def _rows(conn: Session, tables: Mapping[int, Table], wanted: WantedConflicts, most: int) -> Iterator[dict[str, Any]]:
    place = None
    parts: list[bytes] = []
    shown = 0
    while shown < most:
        listed = page(conn, wanted, place, items=most - shown, max_bytes=_PAGE_BYTES)
        for lost in listed.lost:
            parts.append(lost.value)
            if listed.incomplete:
                break
            yield _row(tables[lost.table_id], lost, b"".join(parts))
            parts.clear()
            shown += 1
        place = listed.after
        if place is None:
            return


def _row(table: Table, lost: Lost, value: bytes) -> dict[str, Any]:
    return {
        "position": lost.position,
        "table": table.sql_name,
        "key": list(key_cells(table, lost.key)),
        "column": column_called(table, lost.column),
        "losing_value": plain_value(value_pb2.Value.FromString(value)),
        "losing_batch_id": lost.losing_batch,
        "losing_node": {"id": lost.losing_node, "name": lost.losing_node_name},
        "winning_batch_id": lost.winning_batch,
        "winning_node": {"id": lost.winning_node, "name": lost.winning_node_name},
        "cause": "" if not lost.cause else enum_name(change_pb2.LossCause, lost.cause),
    }


def _listed(rows: Iterator[dict[str, Any]], width: int) -> list[Text]:
    shown = []
    for row in rows:
        losing, winning = row["losing_node"], row["winning_node"]
        decided = datetime.fromtimestamp(row["position"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
        key = ", ".join(str(part) for part in row["key"])
        by, to = (node["name"] or node["id"] for node in (losing, winning))
        to = _TO.get(row["cause"], to)
        shown.append((decided, row["table"], key, row["column"], _short(row["losing_value"]), by, to))
    return listing(("decided", "table", "key", "column", "lost", "written by", "lost to"), shown, width)


def _short(value: Any) -> str:
    text = "NULL" if value is None else value if isinstance(value, str) else json.dumps(value, default=bytes.hex)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
