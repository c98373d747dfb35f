"""The lines of ``anabranch schema log``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from anabranch.cli.lines import fitted, paragraph
from anabranch.cli.printable import printable
from anabranch.cli.status_lines import BOLD, YELLOW, age
from anabranch.store.log.schema_versions import SchemaVersion
from anabranch.store.log.version_log import LoggedVersion, VersionLog

_MOST_COMMAND = 300
"""Characters of a command that are shown; --json has as much as is kept of it."""


def log_lines(log: VersionLog, width: int) -> Iterator[Text]:
    """Each version, a few lines."""
    for one in log.versions:
        head = [f"version {one.version}"]
        if one.change is None:
            head.append("as registered")
        else:
            head += [moment(one.change.position), f"{age(log.now_ms - one.change.position)} ago", *_who(one.change)]
        yield from fitted(head, width, style=BOLD)
        if one.change is not None:
            yield from _change(one.change, width)
        yield from fitted(_nodes(one), width, 2)
    for version, count in sorted(log.apps_ahead.items()):
        text = f"{_counted(count, 'node')} with an app built for version {version}, which is not there yet"
        yield from paragraph(text, width, style=YELLOW)


def _who(change: SchemaVersion) -> list[str]:
    by = f"by {printable(change.role)}" if change.role else ""
    through = f"with {printable(change.application)}" if change.application else ""
    return [part for part in (by, through) if part]


def _change(change: SchemaVersion, width: int) -> Iterator[Text]:
    for text in change.texts:
        yield from paragraph(printable(text), width, 2)
    called = {table.name: table.sql_name for _, table in change.tables.values() if table is not None}
    for name in (called.get(identity, identity) for identity in change.pulled):
        yield from paragraph(f'table "{printable(name)}" is pulled anew', width, 2, style=YELLOW)
    command = " ".join(change.command.split())
    if command:
        cut = command if len(command) <= _MOST_COMMAND else f"{command[:_MOST_COMMAND]}…"
        yield from paragraph(printable(cut), width, 4)


def _nodes(one: LoggedVersion) -> list[str]:
    parts = [f"{_counted(one.nodes, 'node')} on it"]
    if one.before:
        parts.append(f"{one.before} before it")
    if one.apps:
        parts.append(f"{_counted(one.apps, 'app')} built for it")
    return parts


def version_json(one: LoggedVersion) -> dict[str, Any]:
    """A version as a JSON object."""
    change = one.change
    return {
        "version": one.version,
        "position": 0 if change is None else change.position,
        "noticed_ms": 0 if change is None else change.noticed_ms,
        "role": "" if change is None else change.role,
        "application": "" if change is None else change.application,
        "command": "" if change is None else change.command,
        "changes": [] if change is None else list(change.texts),
        "pulled": [] if change is None else list(change.pulled),
        "nodes": one.nodes,
        "nodes_before": one.before,
        "apps": one.apps,
    }


def moment(ms: int) -> str:
    """A time, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
