"""A node of the fault run, as a process: it syncs in the background over its proxy, and writes rows that others write.

Usage: ``python -m anabranch.testkit.torture.node CONFIG``, a JSON object {file, db, remote, key, seed, record,
counted, changing}, where ``remote`` has the addresses of ingest, snapshot and resolver, ``counted`` says that the
tables of ``side_effects`` are synced, and ``changing`` that it writes those of ``changing_tables``, and no others. It
is killed and started again on the same file and the same ``record``, to which it appends a JSON object a line:
{"made": id, "payload": hex} after each local commit, {"verdict": hex} for each verdict before the device itself sees
it. Batches that it had committed and not recorded when it was killed it finds in the file before it begins to sync.

Commands on its input: "full" has its disk full for a while (``full_disk``) and prints "refused N"; "large" writes a row
of some MB and prints the same; "stop" ends the writing; "drained?" waits until every batch has its verdict and prints
"yes", or "no" after a while; "reach P" waits until the queue is empty and position P is read, then prints a JSON object
{sums, dead, disagreeing} and ends. Where its input ends, it ends at once.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from anabranch import faults
from anabranch.client import CallFailed, RemoteDb, RowExists, RowMissing, Status, SyncedDb
from anabranch.testkit.network import Network
from anabranch.testkit.torture import changing_writes
from anabranch.testkit.torture.full_disk import Filling
from anabranch.testkit.torture.records import open_record
from anabranch.testkit.torture.side_effects import CHECKED, NUMBERED, REFUSED
from anabranch.testkit.torture.tables import CODES, SHARED

PAUSE_S = 0.08
LARGE_BYTES = (1_000_000, 3_000_000)
NETWORK_UP_S = 0.3
MOST_UNSENT = 60
PATIENCE_S = 60.0
SIZES = (1, 1, 1, 1, 2, 2, 4, 4, 15, 200)
_TABLES = ("_db_mutations_queue", "_db_confirmed", "_db_mutations_queue_dead")


class Record:
    """The node's batches and the verdicts on them; each line is one write, so that a kill leaves whole lines."""

    def __init__(self, file: str) -> None:
        self._out = open_record(file)

    def note(self, **what: str | int) -> None:
        os.write(self._out, (json.dumps(what) + "\n").encode())

    def catch_up(self, file: str) -> None:
        """Record every batch that the device's file holds."""
        with sqlite3.connect(file) as conn:
            for table in _TABLES:
                for batch_id, payload in conn.execute(f"SELECT id, value FROM {table}"):
                    self.note(made=batch_id, payload=bytes(payload).hex())
        conn.close()


def write(db: SyncedDb, chance: random.Random, mark: str, counted: bool) -> str:
    """Write one batch of 1 to 200 rows; return its id, "" where no change fitted the shown rows. ``counted``: also rows
    of tables whose own code writes."""
    size = chance.choice(SIZES)
    # A batch that deletes a row must not change the rows that the cascade deletes.
    one = _one if chance.random() < 0.6 else _one_part
    if counted and chance.random() < 0.08:
        one = _one_counted
    with db.batch() as batch:
        if size == 200:
            _many(db, chance, mark)
        for part in range(size if size < 200 else 1):
            try:
                one(db, chance, f"{mark}.{part}")
            except (RowMissing, RowExists):
                continue
    return batch.id


def _many(db: SyncedDb, chance: random.Random, mark: str) -> None:
    if chance.random() < 0.5:
        rows = [_strict_row(chance, f"{mark}.m{i}", poison=0.0005) for i in range(chance.randint(100, 199))]
        db.table("strict").insert(rows)
        return
    found = [key for (key,) in db.execute("SELECT id FROM strict ORDER BY id LIMIT 150")]
    if found:
        db.table("strict").delete(found)


def _strict_row(chance: random.Random, mark: str, poison: float) -> dict[str, Any]:
    return {
        "id": f"{mark}-{chance.getrandbits(40):x}",
        "shared_id": "nobody" if chance.random() < poison else f"s{chance.randrange(SHARED):02}",
        "code": f"c{chance.randrange(CODES):02}" if chance.random() < poison * 3 else None,
        "qty": -1 if chance.random() < poison else chance.randint(0, 9),
    }


def _one(db: SyncedDb, chance: random.Random, mark: str) -> None:
    key = f"s{chance.randrange(SHARED):02}"
    what = chance.random()
    shared, strict = db.table("shared"), db.table("strict")
    if what < 0.55:
        _update_shared(db, chance, key, mark)
    elif what < 0.63:
        shared.delete(key)
    elif what < 0.72:
        shared.insert({"id": key, "title": f"new {mark}", "n": 0})
    elif what < 0.80:
        rows = db.execute("SELECT id FROM strict ORDER BY id").fetchall()
        if rows and chance.random() < 0.5:
            strict.delete(chance.choice(rows)[0])
        elif rows:
            strict.update({"id": chance.choice(rows)[0], "qty": -1 if chance.random() < 0.1 else chance.randint(0, 9)})
    else:
        strict.insert(_strict_row(chance, mark, poison=0.08))


def _one_part(db: SyncedDb, chance: random.Random, mark: str) -> None:
    parts, what = db.table("parts"), chance.random()
    # A batch has one large row at most: it is sent once more at the end, in one request.
    rows = db.execute(
        "SELECT id FROM parts WHERE coalesce(length(body), 0) < :large OR :first ORDER BY id",
        {"large": LARGE_BYTES[0], "first": mark.endswith(".0")},
    ).fetchall()
    if what < 0.3:
        _update_shared(db, chance, f"s{chance.randrange(SHARED):02}", mark)
    elif what < 0.55 or not rows:
        owner = "nobody" if chance.random() < 0.03 else f"s{chance.randrange(SHARED):02}"
        parts.insert({"id": f"{mark}-{chance.getrandbits(40):x}", "shared_id": owner, "body": mark})
    elif what < 0.85:
        # The first rows are written often, by every node.
        key = chance.choice(rows[:10] if chance.random() < 0.5 else rows)[0]
        parts.update({"id": key, "body": mark} if chance.random() < 0.9 else {"id": key, "shared_id": "s01"})
    else:
        parts.delete(chance.choice(rows)[0])


def _one_counted(db: SyncedDb, chance: random.Random, mark: str) -> None:
    name, what = chance.choice((NUMBERED, CHECKED)), chance.random()
    table = db.table(name)
    rows = db.execute(f"SELECT id FROM {name} ORDER BY id").fetchall()
    title = REFUSED if chance.random() < 0.04 else mark
    if what < 0.2:
        _update_shared(db, chance, f"s{chance.randrange(SHARED):02}", mark)
    elif what < 0.6 or not rows:
        table.insert({"id": f"{mark}-{chance.getrandbits(40):x}", "title": title})
    elif what < 0.85:
        table.update({"id": chance.choice(rows)[0], "title": title})
    else:
        table.delete(chance.choice(rows)[0])


def write_large(db: SyncedDb, chance: random.Random, mark: str) -> str:
    """Write a batch of one row, which is larger than most messages; return its id."""
    body = mark * (chance.randint(*LARGE_BYTES) // len(mark))
    with db.batch() as batch:
        db.table("parts").insert({"id": f"{mark}-large", "shared_id": f"s{chance.randrange(SHARED):02}", "body": body})
    return batch.id


def _update_shared(db: SyncedDb, chance: random.Random, key: str, mark: str) -> None:
    row: dict[str, Any] = {"id": key}
    for column in chance.sample(["title", "note", "n", "top", "tags"], chance.randint(1, 3)):
        row[column] = _value(db, chance, column, key, mark)
    db.table("shared").update(row)


def _value(db: SyncedDb, chance: random.Random, column: str, key: str, mark: str) -> Any:
    if column == "tags":
        return [f"t{chance.randrange(12)}" for _ in range(chance.randint(0, 3))]
    if column in ("n", "top"):
        return chance.randint(0, 1000)
    # Equal values are no conflict: some are.
    return "the same" if chance.random() < 0.1 else f"{column} {mark}"


def start(db: SyncedDb) -> None:
    """Start the device: the first pull resumes where it broke off, and is tried until it is done. Raises CallFailed."""
    again_and_again(db.start)


def again_and_again(call: Callable[[], object]) -> None:
    """Call until it is done. Raises CallFailed where it can't be, or not in time."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except CallFailed as error:
            if not error.again or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)  # no event reports that a broken network is up again


def until(db: SyncedDb, condition: Callable[[Status], bool], timeout_s: float) -> bool:
    """Wait until ``condition`` holds for the device's status; return whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not condition(db.status()):
        if time.monotonic() > deadline:
            return False
        db.network_up()
        time.sleep(0.05)  # between looks: no event reports a cursor that moves
    return True


def reach(db: SyncedDb, position: int) -> dict[str, Any]:
    """Wait until everything is sent, seen, read and pulled; return the device's state then."""

    def is_reached(status: Status) -> bool:
        return not status.queued and status.cursor >= position and not status.set_aside

    # A table of which the last change made another one is first asked for, then pulled.
    if until(db, is_reached, PATIENCE_S):
        again_and_again(db.read)
    if not until(db, is_reached, PATIENCE_S):
        return {"stuck": repr(db.status())}
    return {
        "sums": {name: [count, total.hex()] for name, (count, total) in db.table_sums().items()},
        "dead": {letter.id: letter.reason for letter in db.dead_letters()},
        "disagreeing": db.status().disagreeing,
        "node": db.status().node_id,
    }


def main() -> None:
    """The process."""
    config = json.loads(sys.argv[1])
    # Its standard output is for the run alone, so logs go into a file.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open(f"{config['record']}.log", "a")))  # noqa: SIM115
    record = Record(config["record"])
    chance = random.Random(config["seed"])
    told: queue.Queue[list[str]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            told.put(line.split())
        told.put(["end"])

    threading.Thread(target=listen, daemon=True).start()
    network = Network(verdicts=lambda verdict: record.note(verdict=verdict.hex()))
    remote = RemoteDb(**config["remote"], token=config["key"], interceptors=[network])
    db = SyncedDb(config["file"], remote, config["db"], reached=faults.reach)
    record.catch_up(config["file"])
    start(db)

    def saved(batch_id: str) -> None:
        query = " UNION ALL ".join(f"SELECT value FROM {table} WHERE id = :id" for table in _TABLES)
        (payload,) = db.execute(query, {"id": batch_id}).fetchone()
        record.note(made=batch_id, payload=bytes(payload).hex())

    filling = Filling(db, chance, saved, lambda text, places: record.note(nowhere=text, shown=places), _one_part)
    seed = f"{config['seed']:x}"
    print("started", flush=True)
    command = ["write"]
    number = 0
    network_up = 0.0
    while command == ["write"]:
        if db.status().unsent < MOST_UNSENT:
            mark = f"{seed}.{number}"
            changing = config.get("changing", False)
            made = (
                changing_writes.write(db, chance, mark)
                if changing
                else write(db, chance, mark, config.get("counted", False))
            )
            number += 1
            if made:
                saved(made)
        if time.monotonic() > network_up:
            # With its own backoff alone, a device would be idle for most of so short a run.
            network_up = time.monotonic() + NETWORK_UP_S
            db.network_up()
        try:
            command = told.get(timeout=chance.uniform(0, PAUSE_S))
        except queue.Empty:
            continue
        if command == ["large"]:
            saved(write_large(db, chance, f"{seed}.l{number}"))
            print("large", flush=True)
            number += 1
            command = ["write"]
        if command == ["full"]:
            print(f"refused {filling.run(f'{seed}.f{number}')}", flush=True)
            number += 1
            command = ["write"]
    while command[0] == "stop" or command[0] == "drained?":
        if command[0] == "drained?":
            print("yes" if until(db, lambda status: not status.unsent, 5.0) else "no", flush=True)
        command = told.get()
    if command[0] == "reach":
        print(json.dumps(reach(db, int(command[1]))), flush=True)
    db.close()


if __name__ == "__main__":
    main()
