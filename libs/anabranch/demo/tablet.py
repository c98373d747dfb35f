"""One gate tablet: a process of its own with a SQLite file of its own, which gets its commands over a pipe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from anabranch.client import DeadLetter, RemoteDb, SyncedDb
from anabranch.demo.changes import Batch, named
from anabranch.errors import AnabranchError

DATABASE = "airfield"
ANSWER_TIMEOUT_S = 150.0
"""The longest that one command may take."""
_COLUMNS = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table'"


class TabletError(AnabranchError):
    """A tablet failed, or ended, or did not answer in time."""


@dataclass
class Tablet:
    """The demo's handle of a tablet. ``tell`` sends a command; ``next_event`` returns the tablet's messages."""

    name: str
    process: SpawnProcess
    pipe: Connection

    def tell(self, command: str, argument: Any = None) -> None:
        """Send a command, without waiting for its result."""
        self.pipe.send((command, argument))

    def next_event(self) -> tuple[str, Any]:
        """The tablet's next message: ("progress", …) or ("done", result). Raises TabletError."""
        try:
            if not self.pipe.poll(ANSWER_TIMEOUT_S):
                raise TabletError(f"{self.name} did not answer within {ANSWER_TIMEOUT_S:g} s")
            kind, value = self.pipe.recv()
        except EOFError:
            raise TabletError(f"{self.name} ended") from None
        if kind == "failed":
            raise TabletError(f"{self.name}: {value}")
        return str(kind), value

    def ask(self, command: str, argument: Any = None) -> Any:
        """Send a command and wait for its result. Raises TabletError."""
        self.tell(command, argument)
        while True:
            kind, value = self.next_event()
            if kind == "done":
                return value

    def end(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def start(context: SpawnContext, name: str, folder: Path, addresses: Mapping[str, str], token: str) -> Tablet:
    """Start a tablet's process. ``token`` says whose rows it may see."""
    here, there = context.Pipe()
    file = str(folder / f"{name}.db")
    process = context.Process(target=_serve, args=(there, name, file, dict(addresses), token), daemon=True)
    process.start()
    there.close()
    return Tablet(name, process, here)


def _serve(pipe: Connection, name: str, file: str, addresses: Mapping[str, str], token: str) -> None:
    remote = RemoteDb(
        ingest=addresses["ingest"], snapshot=addresses["snapshot"], resolver=addresses["conflict-resolver"], token=token
    )
    db = SyncedDb(file, remote=remote, db_name=DATABASE, node_name=name)
    commands = {"pull": _pull, "work": _work, "come_back": _come_back, "report": _report}
    try:
        while True:
            command, argument = pipe.recv()
            pipe.send(("done", commands[command](db, pipe, argument)))
    except EOFError:
        return
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        raise
    finally:
        db.close()


def _pull(db: SyncedDb, pipe: Connection, _: Any) -> dict[str, Any]:
    """The first start: a pull of all that it may see. Afterwards the tablet is offline: it syncs only on a command.
    ``cursor``: the position that the rows are of."""
    started = time.perf_counter()
    db.start(background=False, progress=lambda p: pipe.send(("progress", (p.table, p.rows_done))))
    db.stop()
    rows = sum(count for count, _ in db.table_sums().values())
    return {"rows": rows, "seconds": time.perf_counter() - started, "cursor": db.status().cursor}


def _work(db: SyncedDb, pipe: Connection, batches: Sequence[Batch]) -> dict[str, Any]:
    """Work offline: each batch is one local transaction."""
    started = time.perf_counter()
    mutations = 0
    for batch in batches:
        with db.batch():
            for change in batch:
                table = db.table(change.table)
                write = {"insert": table.insert, "update": table.update, "delete": table.delete}[change.type]
                write(dict(change.values))
                mutations += 1
    return {"batches": len(batches), "mutations": mutations, "seconds": time.perf_counter() - started}


def _come_back(db: SyncedDb, pipe: Connection, _: Any) -> dict[str, Any]:
    """The network is there: send the queue, then read the log to its head. ``seconds``: until the last verdict; the
    first reading after a pull also compares the rows of every table with the table's sum."""
    pending = db.status().unsent
    started = time.perf_counter()
    flushed = db.flush()
    seconds = time.perf_counter() - started
    return {"pending": pending, "whole": db.sync() and flushed, "seconds": seconds}


def _report(db: SyncedDb, pipe: Connection, _: Any) -> dict[str, Any]:
    """The tablet's state: its dead letters, the number of batches in its queue, the tables of which it says itself that
    they differ, how often it has pulled, and its columns by table."""
    dead = [(letter.reason, letter.constraint, _row(letter)) for letter in db.dead_letters()]
    status = db.status()
    columns: dict[str, list[str]] = {}
    for table, column in db.execute(_COLUMNS).fetchall():
        columns.setdefault(table, []).append(column)
    return {
        "dead": dead,
        "queued": status.queued,
        "disagreeing": status.disagreeing,
        "pulls": status.pulls,
        "columns": columns,
    }


def _row(letter: DeadLetter) -> str:
    """The refused row. Each mutation of the demo has one."""
    key = {"key": ", ".join(map(str, letter.key))}
    return named(letter.table, next((rows[0] for _, table, rows in letter.mutations if table == letter.table), key))
