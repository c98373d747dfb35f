"""``anabranch dead``: dead letters in a device's file.

It works on the file alone, also while the app has it open: a replayed batch is queued, and goes with the next sync.
Only the standard library and what a device has are imported: no typer.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from anabranch.cli.dead_text import as_json, lines, message, moment
from anabranch.cli.printable import json_text, say, say_json
from anabranch.client.errors import ClientError
from anabranch.client.letters.offline import DeadQueue

REFUSED = 2
"""Exit code when the command was understood and could not be carried out."""


def main(arguments: list[str]) -> int:
    """Run ``anabranch dead`` with ``arguments``; return its exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace, DeadQueue], None] = options.run
    try:
        with closing(DeadQueue(options.file)) as queue:
            run(options, queue)
    except (ClientError, ValueError, sqlite3.Error, OSError) as error:
        say(f"anabranch: {' '.join(str(error).split())}", err=True)
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

    listing = add("list", _list, "Show every letter in a line.")
    listing.add_argument("--json", action="store_true", help="A JSON list.")
    listing.add_argument("--full", action="store_true", help="Long values as they are, not cut.")
    for name, run, text in (
        ("show", _show, "Show what a letter tried, why it was refused, and the server's row then and now."),
        ("replay", _replay, "Write a letter again, edited or not, as a new batch; it goes with the app's next sync."),
        ("discard", _discard, "Remove a letter for good."),
    ):
        command = add(name, run, text)
        command.add_argument("letter", metavar="ID", help="The letter's id, or a beginning of it that no other has.")
        if name == "show":
            command.add_argument("--json", action="store_true", help="One JSON object.")
            command.add_argument("--full", action="store_true", help="All rows, and long values as they are, not cut.")
            command.add_argument("--out", type=Path, metavar="FILE", help="Write all of it into a new file, as JSON.")
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
        say_json([as_json(letter, full=options.full) for letter in letters], indent=2)
        return
    if not letters:
        say("no dead letters")
    for letter in letters:
        tried = ", ".join(f"{kind} {table} ({len(rows)})" for kind, table, rows in letter.mutations)
        undone = "; STILL SHOWN: its undo failed" if letter.still_shown else ""
        why = f"{letter.reason}: {message(letter, full=options.full)}"
        say(f"{letter.id}  {moment(letter.died_ms)}  {why}  [{tried}]{undone}")


def _show(options: argparse.Namespace, queue: DeadQueue) -> None:
    letter = queue.letter(options.letter)
    if options.out is not None:
        # The values are private to their author, so only the owner may read the file; no file is overwritten.
        with open(os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json_text(as_json(letter, full=True), indent=2))
        say(f"wrote {options.out}")
    elif options.json:
        say_json(as_json(letter, full=options.full), indent=2)
    else:
        for line in lines(letter, full=options.full):
            say(line)


def _replay(options: argparse.Namespace, queue: DeadQueue) -> None:
    letter = queue.letter(options.letter)
    changes: dict[str, Any] = dict.fromkeys(options.null)
    for text in options.set:
        column, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes COLUMN=VALUE, not {text!r}")
        changes[column] = queue.value(letter, column, value)
    say(f"queued as {queue.replay(letter, changes, options.leave_out)}")


def _discard(options: argparse.Namespace, queue: DeadQueue) -> None:
    letter = queue.letter(options.letter)
    queue.discard(letter)
    say(f"discarded {letter.id}")
