"""The lines that ``anabranch status`` prints: services first, then each database."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from anabranch.cli.catalog.remedies import sql_remedy
from anabranch.cli.lines import columns, fitted, paragraph
from anabranch.cli.printable import printable
from anabranch.store.catalog.census import SEEN
from anabranch.store.catalog.cut_off import in_words
from anabranch.store.catalog.status import COUNTED, DatabaseStatus
from anabranch.store.catalog.unsynced import COMMANDS, Unsynced

SHOWN_NODES = 20
SHOWN_TABLES = 10
RED, YELLOW, BOLD = "red", "yellow", "bold"
_MOST_COMMAND = 200


def services_lines(services: dict[str, dict[str, str]], width: int) -> Iterator[Text]:
    """Each service with its address and its state."""
    if services:
        yield Text("services", style=BOLD)
        rows = [(printable(name), one["address"], one["state"]) for name, one in services.items()]
        yield from columns(rows, width, 2, ["" if row[2] == "SERVING" else RED for row in rows])


def databases_lines(databases: list[DatabaseStatus], now_ms: int, width: int) -> Iterator[Text]:
    """Each database, a few lines."""
    if not databases:
        yield Text("no databases yet; `anabranch database create` makes one")
    for database in databases:
        yield from _database(database, now_ms, width)


def _database(database: DatabaseStatus, now_ms: int, width: int) -> Iterator[Text]:
    yield from fitted(
        [f"database {printable(database.name)}", f"schema {printable(database.schema_name)}"], width, style=BOLD
    )
    for one in database.unsynced:
        yield from unsynced_lines(database.name, database.schema_name, one, width, 2)
    yield from _altered(database, width)
    for table in database.cut_off:
        yield from paragraph(printable(in_words(database.name, table)), width, 2, style=YELLOW)
    for table, note in database.notes:
        yield from paragraph(f'table "{printable(table)}": {printable(note)}', width, 2, style=YELLOW)
    for table in database.every_row:
        yield from paragraph(
            f'table "{printable(table)}": every device sees every row, whatever its row-level security says', width, 2
        )
    rows = sum(count for count in database.tables.values() if count is not None)
    head = f"head {age(now_ms - database.head)} ago" if database.head else "head none"
    yield from _line("tables", [f"{len(database.tables)}, {rows:,} rows", head], width)
    yield from _line("schema", _schema(database, now_ms), width)
    oldest = "" if database.oldest_waiting_ms is None else f", oldest {age(database.oldest_waiting_ms)}"
    more = " or more" if database.captured >= COUNTED else ""
    yield from _line(
        "waiting",
        [f"{database.ready} ready, {database.parked} parked{oldest}", f"{database.captured}{more} captured"],
        width,
    )
    yield from _line("decided", [f"{database.decided_per_s:,.1f}/s"], width)
    yield from _line("log", _log(database, now_ms), width)
    yield from _line("nodes", [f"{database.node_count}", *_seen(database)], width)
    if database.dead_letters:
        total = sum(count for _, count in database.dead_letters)
        of = [f"{reason} {count}" for reason, count in database.dead_letters]
        yield from fitted([f"dead letters on devices {total}", *of], width, 2, style=YELLOW)
    yield from _nodes(database, now_ms, width)


def _altered(database: DatabaseStatus, width: int) -> Iterator[Text]:
    """The changes by DDL that the log lacks yet, whether it will hear of others late, and what it may have missed."""
    for one in database.schema.waiting:
        table = f'table "{printable(one.table)}" ' if one.table else ""
        by = f" by {printable(one.role)}" if one.role else ""
        text = f"ALTERED: {table}{printable(one.what)}{by}: no batches are decided until the log has it"
        yield from paragraph(text, width, 2, style=YELLOW)
        if one.command:
            yield from paragraph(printable(" ".join(one.command.split())[:_MOST_COMMAND]), width, 4, style=YELLOW)
    if not database.schema.event_triggers:
        text = (
            "no event triggers: DDL is noticed late, by looks; `anabranch database migrate` as a superuser makes them"
        )
        yield from paragraph(text, width, 2, style=YELLOW)
    for table in database.schema.left_out[:SHOWN_TABLES]:
        text = (
            f'table "{printable(table)}" is not synced, though the policy new_tables names it: it was there before, or '
            "nothing told of it"
        )
        yield from paragraph(text, width, 2, style=YELLOW)
        names = [shlex.quote(database.name), shlex.quote(table)]
        whole, *single = map(printable, [f"anabranch table add {' '.join(names)}", *names])
        yield from _command(whole, single, width, 4, style=YELLOW)
    if len(database.schema.left_out) > SHOWN_TABLES:
        yield from paragraph("there are more such tables: --json names them", width, 2, style=YELLOW)


def _schema(database: DatabaseStatus, now_ms: int) -> list[str]:
    schema = database.schema
    changed = [f"changed {age(now_ms - schema.changed_ms)} ago"] if schema.changed_ms else []
    return [f"version {schema.version}", *changed]


def unsynced_lines(database: str, schema: str, one: Unsynced, width: int, indent: int) -> Iterator[Text]:
    """A table of a database's ``schema`` that is not synced: the reason, and the commands that make it synced again, to
    be copied."""
    text = f'NOT SYNCED: table "{printable(one.table)}": {printable(one.text)}'
    yield from paragraph(text, width, indent, style=RED)
    for remedy in filter(None, (sql_remedy(reason, schema, one.table) for reason in one.refusals)):
        yield from paragraph(printable(remedy), width, indent + 2, style=RED)
    names = {"database": shlex.quote(database), "table": shlex.quote(one.table)}
    for command in COMMANDS[one.why]:
        parts = [command.format(**names), *names.values()]
        if one.audience is not None and command.startswith("anabranch table add "):
            audience = f"--audience {shlex.quote(one.audience)}"
            parts = [f"{parts[0]} {audience}", *parts[1:], audience]
        whole, *single = map(printable, parts)
        yield from _command(whole, single, width, indent + 2)


def _command(command: str, names: list[str], width: int, indent: int, *, style: str = RED) -> list[Text]:
    """A command to be copied: where it is too long for one line, one name a line, in a form that a shell accepts."""
    if indent + cell_len(command) <= width:
        return [Text(" " * indent + command, style=style)]
    parts = [command.partition(f" {names[0]} ")[0], *names]
    last = len(parts) - 1
    return [
        Text(" " * (indent + 2 * (number > 0)) + part + (" \\" if number < last else ""), style=style)
        for number, part in enumerate(parts)
    ]


def _line(name: str, parts: list[str], width: int) -> list[Text]:
    return fitted([f"{name:<7}  {parts[0]}", *parts[1:]], width, 2, 9)


def _log(database: DatabaseStatus, now_ms: int) -> list[str]:
    parts = [f"{age(now_ms - database.floor)} kept" if database.floor else "all kept"]
    if database.bounds:
        hold, position, _ = database.bounds[0]
        parts.append(f"held by {hold.lower()}, {age(now_ms - position)} back")
    if database.compaction_behind_ms is not None:
        parts.append(f"compacted {age(database.compaction_behind_ms)} behind")
    return parts


def _seen(database: DatabaseStatus) -> list[str]:
    """Nodes by the time of their last call."""
    if not database.node_count:
        return []
    behind = max((node.behind_ms for node in database.nodes), default=0)
    seen = ", ".join(f"{place} {database.nodes_seen[place]}" for place in SEEN)
    return [f"seen within: {seen}", f"farthest behind {age(behind)}"]


def _nodes(database: DatabaseStatus, now_ms: int, width: int) -> Iterator[Text]:
    shown = database.nodes[:SHOWN_NODES]
    for node in shown:
        parts = [
            printable(node.id),
            printable(node.name),
            printable(node.principal),
            f"seen {age(now_ms - node.last_seen_ms)} ago",
            f"{age(node.behind_ms)} behind",
        ]
        yield from fitted([part for part in parts if part], width, 4)
    if left_out := database.node_count - len(shown):
        yield Text(f"    {left_out} more; `anabranch node list {shlex.quote(database.name)}` has them")


def age(ms: int) -> str:
    """A span of time in words."""
    seconds = max(0, ms) / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"
