"""``anabranch lake``: what happened to a row, and a table as it was; from Parquet, and the log's tail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from anabranch.cli.catalog_session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.columnar.lake import Change, Key, LakeError, LakeTable, Row, as_of, follow, table_files
from anabranch.columnar.manifest import from_json
from anabranch.schema import Cell, Column, Kind, Table, key_cells
from anabranch.store import compactions
from anabranch.store.binary_text import array_printer, element_printer
from anabranch.store.catalog import load_database
from anabranch.store.compactions import TailRow
from anabranch.store.file_codecs import file_codecs
from anabranch.v1 import change_pb2
from anabranch.wire.values import column_reader

app = typer.Typer(no_args_is_help=True, add_completion=False)

MOST_TAIL_ROWS = 1_000_000
"""Rows of the log beyond the lake; compaction is due where there are more."""
_TYPES = {1: "insert", 2: "update", 3: "delete", 4: "none"}

DbOption = Annotated[str, typer.Option("--db", help="The database.")]
TableOption = Annotated[str, typer.Option("--table", help="The table.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line; values as Postgres prints them.")]


@dataclass(frozen=True, slots=True)
class Source:
    """A table of the lake, and what the log has beyond it."""

    lake: LakeTable
    tail: list[Change]

    @property
    def table(self) -> Table:
        """The table as the lake has it."""
        return self.lake.table


@contextmanager
def _source(db: str, table: str, key: str | None, postgres_url: PostgresUrl, data_dir: DataDir) -> Iterator[Source]:
    with catalog_session(postgres_url, data_dir, "lake") as conn:
        database = load_database(conn, db)
        published = compactions.last_published(conn, database.id, database.epoch)
        if published is None:
            raise refuse("NOT_COMPACTED", f"nothing of {db} is compacted yet: run `anabranch compact`")
        manifest = from_json(published.manifest)
        try:
            files = table_files(manifest, table)
        except LakeError as error:
            raise refuse("UNKNOWN_TABLE", str(error)) from error
        known = files.columns.table
        rows = compactions.read_tail(
            conn, database.id, files.table_id, published.to_position, key=key, limit=MOST_TAIL_ROWS + 1
        )
        if len(rows) > MOST_TAIL_ROWS:
            raise refuse("TAIL_TOO_LONG", f"the log has more than {MOST_TAIL_ROWS:,} changes since the last run")
        lake = LakeTable(published.root, manifest, table, file_codecs(known.columns))
        yield Source(lake, _tail(known, rows))


def _tail(table: Table, rows: Sequence[TailRow]) -> list[Change]:
    readers = {c.name: column_reader(c) for c in table.columns}
    found = []
    for row in rows:
        effect = change_pb2.Effect.FromString(row.effect)
        pairs = zip(effect.columns, effect.values, strict=True)
        cells = {name: readers[name](value) for name, value in pairs if name in readers}
        key = tuple(cells[name] for name in table.key_columns)
        kind = _TYPES[row.type]
        place = (row.position, row.batch_id, row.ordinal, row.node_id)
        after = None if kind == "delete" else cells
        found.append(Change(*place, kind, key, tuple(row.changed), after, {}, kind == "insert"))
    return found


@app.command()
def history(
    db: DbOption,
    table: TableOption,
    key: Annotated[str, typer.Option("--key", help="The row's key; of several columns a JSON array of their texts.")],
    as_json: JsonOption = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show what happened to one row: when, by which node, and what was there before."""
    with _source(db, table, key, postgres_url, data_dir) as source:
        try:
            cells = key_cells(source.table, key)
        except (ValueError, TypeError) as error:
            raise refuse("INVALID_KEY", f"{key} is no key of {table}: {error}") from error
        changes = follow(source.lake.changes(key=cells), source.table, source.tail)
    show = _printers(source.table)
    if as_json:
        for change in changes:
            typer.echo(json.dumps(_as_json(change, show), ensure_ascii=False))
        return
    grid = Grid("position", "node", "batch", "change", "column", "before", "after", title=escape(f"{table} {key}"))
    for change in changes:
        _add(grid, change, show)
    Console().print(grid)


Printers = dict[str, "Printer"]


class Printer:
    """Prints the cells of one column as Postgres does."""

    def __init__(self, column: Column) -> None:
        self._show = (
            array_printer(column.element_kind or Kind.STRING)
            if column.kind is Kind.ARRAY
            else element_printer(column.kind)
        )

    def text(self, cell: Cell) -> str | None:
        """Its text; None for NULL."""
        return None if cell is None else cell if isinstance(cell, str) else self._show(cell)


def _printers(table: Table) -> Printers:
    return {column.name: Printer(column) for column in table.columns}


def _texts(row: Row | None, show: Printers) -> dict[str, str | None] | None:
    return None if row is None else {name: show[name].text(cell) for name, cell in row.items()}


def _as_json(change: Change, show: Printers) -> dict[str, object]:
    return {
        "position": change.position,
        "batch": change.batch_id,
        "ordinal": change.ordinal,
        "node": change.node_id,
        "type": change.type,
        "changed": list(change.changed),
        "row": _texts(change.row, show),
        "before": _texts(change.before, show),
        "complete": change.complete,
    }


def _add(grid: Grid, change: Change, show: Printers) -> None:
    names = list(change.before) or [n for n in (change.row or {}) if change.type == "insert"]
    for at, name in enumerate(names or [""]):
        head = (str(change.position), change.node_id, change.batch_id, change.type) if at == 0 else ("",) * 4
        before = _text(change.before.get(name), name, show) if change.complete and name in change.before else ""
        after = _text((change.row or {}).get(name), name, show) if change.row and name else ""
        grid.add_row(*map(escape, (*head, name, before, after)))


def _text(cell: Cell, name: str, show: Printers) -> str:
    text = show[name].text(cell)
    return "NULL" if text is None else text


@app.command("rows")
def rows_as_of(
    db: DbOption,
    table: TableOption,
    position: Annotated[int, typer.Option("--as-of", help="The position, in milliseconds since 1970.")],
    as_json: JsonOption = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show a table's rows as they were at a position, by key."""
    with _source(db, table, None, postgres_url, data_dir) as source:
        changes = follow(source.lake.changes(), source.table, source.tail)
        rows: dict[Key, Row] = as_of(source.table, source.lake.base(), changes, position)
    show = _printers(source.table)
    names = source.table.column_names
    ordered = [_texts(rows[key], show) or {} for key in sorted(rows, key=lambda key: tuple(map(_sortable, key)))]
    if as_json:
        for row in ordered:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    grid = Grid(*map(escape, names), title=escape(f"{table} at {position}"))
    for row in ordered:
        grid.add_row(*(escape("NULL" if row.get(name) is None else str(row[name])) for name in names))
    Console().print(grid)


def _sortable(cell: Cell) -> tuple[str, Cell]:
    return ("text" if isinstance(cell, str) else type(cell).__name__), cell
