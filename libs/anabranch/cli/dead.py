"""``anabranch dead``: dead letters in a device's file.

It works on the file alone, also while the app has it open: a replayed batch is queued, and goes with the next sync.
Only the standard library and what a device has are imported: no typer.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anabranch.client.errors import ClientError
from anabranch.client.events import DeadLetter
from anabranch.client.offline import DeadQueue

REFUSED = 2
"""Exit code when the command was understood and could not be done."""


def main(arguments: list[str]) -> int:
    """Run ``anabranch dead`` with ``arguments``; gives its exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace, DeadQueue], None] = options.run
    try:
        with closing(DeadQueue(options.file)) as queue:
            run(options, queue)
    except (ClientError, ValueError, sqlite3.Error) as error:
        print(f"anabranch: {' '.join(str(error).split())}", file=sys.stderr)
        return REFUSED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("anabranch dead", description="Dead letters in a device's file.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace, DeadQueue], None], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("file", type=Path, metavar="FILE", help="The device's SQLite file.")
        command.set_defaults(run=run)
        return command

    add("list", _list, "Show every letter in a line.").add_argument("--json", action="store_true", help="A JSON list.")
    for name, run, text in (
        ("show", _show, "Show what a letter tried, why it was refused, and the server's row then and now."),
        ("replay", _replay, "Write a letter again, edited or not, as a new batch; it goes with the app's next sync."),
        ("discard", _discard, "Remove a letter for good."),
    ):
        command = add(name, run, text)
        command.add_argument("letter", metavar="ID", help="The letter's id, or a beginning of it that no other has.")
        if name == "show":
            command.add_argument("--json", action="store_true", help="One JSON object.")
        if name == "replay":
            command.add_argument(
                "--set",
                action="append",
                default=[],
                metavar="COLUMN=VALUE",
                help="Another value: as it is for text, in JSON for all else (12, true, null, [1, 2]).",
            )
            command.add_argument("--null", action="append", default=[], metavar="COLUMN", help="NULL, also for text.")
            command.add_argument("--leave-out", action="append", default=[], metavar="COLUMN", help="Write it no more.")
    return parser


def _list(options: argparse.Namespace, queue: DeadQueue) -> None:
    letters = queue.letters()
    if options.json:
        print(json.dumps([_as_json(letter) for letter in letters], indent=2, ensure_ascii=False, default=_bytes))
        return
    if not letters:
        print("no dead letters")
    for letter in letters:
        tried = ", ".join(f"{kind} {table} ({len(rows)})" for kind, table, rows in letter.mutations)
        undone = "; STILL SHOWN: its undo failed" if letter.still_shown else ""
        print(f"{letter.id}  {_time(letter.died_ms)}  {letter.reason}: {letter.message}  [{tried}]{undone}")


def _show(options: argparse.Namespace, queue: DeadQueue) -> None:
    letter = queue.letter(options.letter)
    if options.json:
        print(json.dumps(_as_json(letter), indent=2, ensure_ascii=False, default=_bytes))
        return
    print(f"letter      {letter.id}, dead since {_time(letter.died_ms)}")
    print(f"why not     {letter.reason}: {letter.message}")
    if letter.constraint or letter.sqlstate:
        print(f"constraint  {letter.constraint} (SQLSTATE {letter.sqlstate})")
    for kind, table, rows in letter.mutations:
        for row in rows:
            print(f"tried       {kind} {table}: {_row(row)}")
    if letter.key:
        print(f"refused     {letter.table}, key {', '.join(str(part) for part in letter.key)}")
        print(f"server then {_row(letter.server_row)}")
        print(f"server now  {_row(letter.server_row_now)}")
    if letter.still_shown:
        print("undo        FAILED: what it showed is still shown, until its table has been pulled again")


def _replay(options: argparse.Namespace, queue: DeadQueue) -> None:
    letter = queue.letter(options.letter)
    changes: dict[str, Any] = dict.fromkeys(options.null)
    for text in options.set:
        column, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes COLUMN=VALUE, not {text!r}")
        changes[column] = queue.value(letter, column, value)
    print(f"queued as {queue.replay(letter, changes, options.leave_out)}")


def _discard(options: argparse.Namespace, queue: DeadQueue) -> None:
    letter = queue.letter(options.letter)
    queue.discard(letter)
    print(f"discarded {letter.id}")


def _row(row: Mapping[str, Any] | None) -> str:
    return "no row" if row is None else json.dumps(row, ensure_ascii=False, default=_bytes)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "message": letter.message,
        "constraint": letter.constraint,
        "sqlstate": letter.sqlstate,
        "died_ms": letter.died_ms,
        "tried": [{"type": kind, "table": table, "rows": list(rows)} for kind, table, rows in letter.mutations],
        "table": letter.table,
        "key": list(letter.key),
        "server_row_then": letter.server_row,
        "server_row_now": letter.server_row_now,
        "still_shown": letter.still_shown,
    }


def _bytes(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")
