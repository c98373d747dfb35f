"""A run of the compactor as a process beside this one, and what it says of itself meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.errors import ServerError

_POSTGRES_VARIABLE = "ANABRANCH_POSTGRES_URL"
_LEVEL_VARIABLE = "ANABRANCH_LOG_LEVEL"
ROOT_VARIABLE = "ANABRANCH_LAKE_ROOT"
Event = Mapping[str, Any]


class CompactorError(ServerError):
    """The job ended with ``code``; the message is what it said last."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def program(
    url: str, root: str, *, database: str | None = None, master: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command that compacts a database (None: all) into ``root``, and its environment."""
    environment = {**os.environ, _POSTGRES_VARIABLE: url, ROOT_VARIABLE: root}
    if database is not None:
        environment["ANABRANCH_COMPACT_DATABASE"] = database
    if master is not None:
        environment["ANABRANCH_SPARK_MASTER"] = master
    return [sys.executable, "-m", "anabranch_compactor"], environment


def run_job(url: str, root: str, *, database: str | None = None, master: str | None = None) -> Iterator[Event]:
    """Compact a database (None: all) into ``root``; gives the job's events as they come, the outcome of each database
    among them.

    Raises:
        CompactorError: it failed.
    """
    arguments, environment = program(url, root, database=database, master=master)
    # Spark's own output at its start is of no use; a failure is reported last.
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as job,
    ):
        assert job.stdout is not None
        for line in job.stdout:
            yield json.loads(line)
        code = job.wait()
        errors.seek(0)
        said = errors.read()
    if code:
        # Spark's own words about a failure of its are many, and for whoever asks for them.
        whole = environment.get(_LEVEL_VARIABLE) == "debug"
        own = [] if whole else [line for line in said.splitlines() if line.startswith("anabranch: ")]
        raise CompactorError(code, "\n".join(own) or said)


_STAGES = 2
"""Of a database's run: its files are written, then proven."""


def show_job(events: Iterable[Event], console: Console) -> Iterator[Event]:
    """The outcomes among a job's events, with a bar for the others. Raises as ``run_job``."""
    described = TextColumn("{task.description}", markup=False)
    columns = described, BarColumn(), TextColumn("{task.fields[tasks]}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=None, tasks="")
        for event in events:
            if event["step"] == "begun":
                progress.update(bar, description="planning")
            elif event["step"] == "planned":
                # As a literal of Python, since a name may hold what a terminal obeys.
                text = f"{event['database']!r}: {event['changes']:,} changes"
                progress.update(bar, description=text, total=_STAGES, completed=0)
            elif event["step"] == "tasks":
                progress.update(bar, tasks=f"Spark tasks {event['done']}/{event['tasks']}")
            elif event["step"] in ("written", "proven"):
                progress.advance(bar)
            elif event["step"] == "outcome":
                yield event
