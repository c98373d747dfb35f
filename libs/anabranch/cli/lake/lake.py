"""``anabranch lake``: what happened to a row, and a table as it was; from Parquet, and the log's tail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.lake.positions import moment_of, position_of
from anabranch.cli.lake.shown import add_change, add_row, change_json, key_order, row_json
from anabranch.cli.lines import cell
from anabranch.cli.printable import say, say_json
from anabranch.columnar.lake import LakeError, Registration
from anabranch.columnar.row_states import Change, Key
from anabranch.store.catalog.databases import load_database
from anabranch.store.cells.cells_of_texts import key_of_text
from anabranch.store.lake.source import LakeSource, NotCompactedError, TailTooLongError, open_lake
from anabranch.store.log.table_states import TableStates
from anabranch.store.nodes.names import node_names
from anabranch.store.session.engine import Session

app = typer.Typer(no_args_is_help=True, add_completion=False)

DbOption = Annotated[str, typer.Option("--db", help="The database.")]
TableOption = Annotated[str, typer.Option("--table", help="The table.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line; values as Postgres prints them.")]
_KEY_HELP = "The row's key as Postgres prints it; of several columns a JSON array of their texts."
_AS_OF_HELP = (
    "A timestamp with its zone (2026-11-28T14:00:00Z), a day (its beginning in UTC), or a position in milliseconds."
)


@contextmanager
def _source(db: str, table: str, postgres_url: PostgresUrl, data_dir: DataDir) -> Iterator[tuple[Session, LakeSource]]:
    with catalog_session(postgres_url, data_dir, "lake") as conn:
        try:
            database = load_database(conn, db)
            synced = database.find(table)
            yield conn, open_lake(conn, database, table if synced is None else synced.name)
        except NotCompactedError as error:
            raise refuse("NOT_COMPACTED", str(error)) from error
        except LakeError as error:
            raise refuse("UNKNOWN_TABLE", str(error)) from error
        except TailTooLongError as error:
            raise refuse("TAIL_TOO_LONG", str(error)) from error


@app.command()
def history(
    db: DbOption,
    table: TableOption,
    key: Annotated[str, typer.Option("--key", help=_KEY_HELP)],
    as_json: JsonOption = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show what happened to one row: when, by which node of whom, and what was there before."""
    with _source(db, table, postgres_url, data_dir) as (conn, source):
        try:
            cells = key_of_text(conn, source.table, key)
        except ValueError as error:
            raise refuse("INVALID_KEY", f"{key} is no key of {table}: {error}") from error
        found = list(_history(conn, source, cells))
        names = node_names(conn, source.database_id, (change.node_id for _, changes in found for change in changes))
    if source.registered_anew:
        say(f"anabranch: {_anew(table)}", err=True)
    grid = Grid("time", "node", "principal", "change", "column", "before", "after", "batch", "position")
    for states, changes in found:
        for change in changes:
            known = states.at(change.position)
            if as_json:
                say_json(change_json(known, change, names))
            else:
                add_change(grid, known, change, names)
    if not as_json:
        grid.title = cell(f"{table} {key}")
        Console().print(grid)


def _history(conn: Session, source: LakeSource, key: Key) -> Iterator[tuple[TableStates, list[Change]]]:
    """The changes of the row in every registration whose key is the table's."""
    tail = source.tail(conn, key)
    for one in source.lake.registrations:
        if _key_columns(one) == _key_columns(source.lake.registrations[-1]):
            yield source.states(conn, one), source.lake.whole_changes(one, tail, key=key)


def _key_columns(registration: Registration) -> list[tuple[object, ...]]:
    table = registration.table
    return [(name, table.by_name[name].kind) for name in table.key_columns]


def _column(name: str) -> Column:
    return Column(cell(name))


def _anew(table: str) -> str:
    return f"{table} was registered anew since the last run of the compactor: run `anabranch compact`"


@app.command("rows")
def rows_as_of(
    db: DbOption,
    table: TableOption,
    moment: Annotated[str, typer.Option("--as-of", help=_AS_OF_HELP)],
    as_json: JsonOption = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show a table's rows as they were at a moment, by key, in the columns of that moment. A value that neither a file
    nor the log has is shown as ?, and left out of JSON."""
    try:
        position = position_of(moment)
    except ValueError as error:
        raise refuse("INVALID_TIME", f"--as-of: {error}") from error
    with _source(db, table, postgres_url, data_dir) as (conn, source):
        if position < source.begins:
            raise refuse("BEFORE_LAKE", f"the lake of {db} begins at {source.begins} ({moment_of(source.begins)})")
        if source.registered_anew and position > source.upto:
            raise refuse("NOT_COMPACTED", _anew(table))
        known = source.states(conn, source.lake.registration_at(position)).at(position)
        rows = source.lake.as_of(position, source.tail(conn))
    ordered = [rows[key] for key in sorted(rows, key=key_order)]
    if as_json:
        for row in ordered:
            say_json(row_json(known, row))
        return
    title = f"{known.sql_name} at {moment_of(position)}, position {position}"
    grid = Grid(*(_column(column.sql_name) for column in known.columns), title=cell(title))
    for row in ordered:
        add_row(grid, known, row)
    Console().print(grid)
