"""The lines that ``anabranch table list`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from anabranch.cli.lines import columns, fitted, paragraph
from anabranch.cli.printable import printable
from anabranch.cli.status_lines import YELLOW, unsynced_lines
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.unsynced import Tables
from anabranch.values import Column, Table


def tables_lines(database: Database, tables: Tables, width: int) -> Iterator[Text]:
    """Each table with its columns, referenced tables first. The reason why one is not synced precedes its columns."""
    if not database.tables:
        yield Text(f"no table of {printable(database.name)} is synced yet; `anabranch table add` begins")
    unsynced = {one.table: one for one in tables.unsynced}
    for name in database.table_order:
        table = database.tables[name]
        key = ", ".join(map(printable, table.in_sql(table.key_columns)))
        called = table.sql_name
        state = ["NOT SYNCED"] if called in unsynced else []
        style = "bold red" if called in unsynced else "bold"
        yield from fitted([f"table {printable(called)}", f"key {key}", *state], width, style=style)
        if called in unsynced:
            yield from unsynced_lines(database.name, database.schema_name, unsynced[called], width, 2)
        for note in tables.notes:
            if note.table == name:
                yield from paragraph(printable(note.text), width, 2, style=YELLOW)
        if name in database.restricted:
            yield from paragraph(f"audience {printable(database.restricted[name].expression)}", width, 2)
        elif database.table_policies[name].every_device_sees_every_row:
            yield Text("  every device sees every row, whatever its row-level security says")
        yield from columns([_column(table, column) for column in table.columns], width, 2)


def _column(table: Table, column: Column) -> tuple[str, ...]:
    element = "" if column.element_kind is None else f" of {column.element_kind.name}"
    facts = ["not null"] if column.not_null else []
    facts += ["written by Postgres"] if column.generated else []
    facts += [f"policy {column.policy}"] if column.policy != "lww" else []
    place = f"key {table.key_columns.index(column.name) + 1}" if column.name in table.key_columns else ""
    kind = f"as {column.kind.name}{element}"
    return printable(column.sql_name), column.postgres_type, kind, place, printable(", ".join(facts))
