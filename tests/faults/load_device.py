"""A device under load, as a process of its own: it syncs in the background and writes rows that others write, too.

Usage: load_device.py CONFIG, a JSON object {file, db, ingest, snapshot, resolver, key, seed, record}. ``record`` is the
file of what it has made and been told, a JSON object a line: {"made": id, "payload": hex} after each local commit,
{"verdict": hex} for each verdict, before the device itself sees it.

It is told over its input: "stop" ends the writing; "drained?" waits until every batch has its verdict and prints "yes",
or "no" after a while; "reach P" waits until the queue is empty and position P is read, then prints a JSON object {sums,
dead, disagreeing} and ends. Where its input ends, it ends at once.
"""

from __future__ import annotations

import json
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from anabranch.client import RemoteDb, RowExists, RowMissing, Status, SyncedDb
from anabranch.testkit.network import Network

PAUSE_S = 0.05
NETWORK_UP_S = 0.3
MOST_UNSENT = 300
PATIENCE_S = 60.0
KEYS = [f"s{n:02}" for n in range(30)]
CODES = [f"c{n:02}" for n in range(60)]


class Record:
    """What the device has made and been told; written line by line from any thread."""

    def __init__(self, file: str) -> None:
        self._out = open(file, "w", buffering=1)  # noqa: SIM115 - for the life of the process
        self._lock = threading.Lock()

    def note(self, **what: str) -> None:
        with self._lock:
            self._out.write(json.dumps(what) + "\n")


def write(db: SyncedDb, chance: random.Random, number: int) -> str:
    """One batch; its id, "" where nothing fitted what is shown."""
    with db.batch() as batch:
        for part in range(chance.choice([1, 1, 1, 2, 4])):
            try:
                mutate(db, chance, f"{number}.{part}")
            except (RowMissing, RowExists):
                continue
    return batch.id


def mutate(db: SyncedDb, chance: random.Random, mark: str) -> None:
    key = chance.choice(KEYS)
    what = chance.random()
    shared, strict = db.table("shared"), db.table("strict")
    if what < 0.55:
        row: dict[str, Any] = {"id": key}
        for column in chance.sample(["title", "note", "n"], chance.randint(1, 2)):
            row[column] = chance.randint(0, 1000) if column == "n" else f"{column} {mark} of {chance.random()}"
        shared.update(row)
    elif what < 0.62:
        shared.delete(key)
    elif what < 0.70:
        shared.insert({"id": key, "title": f"new {mark}", "note": "", "n": 0})
    elif what < 0.75:
        rows = db.execute("SELECT id FROM strict ORDER BY id").fetchall()
        if rows:
            strict.delete(chance.choice(rows)[0])
    else:
        strict.insert(
            {
                "id": f"{mark}-{chance.getrandbits(40):x}",
                "shared_id": "nobody" if chance.random() < 0.1 else key,
                "code": chance.choice(CODES) if chance.random() < 0.3 else None,
                "qty": -1 if chance.random() < 0.1 else chance.randint(0, 9),
            }
        )


PAYLOAD = """
SELECT value FROM _db_mutations_queue WHERE id = :id
UNION ALL SELECT value FROM _db_confirmed WHERE id = :id
UNION ALL SELECT value FROM _db_mutations_queue_dead WHERE id = :id
"""


def main() -> None:
    config = json.loads(sys.argv[1])
    # What it prints is for the test alone.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open(f"{config['record']}.log", "w")))  # noqa: SIM115
    record = Record(config["record"])
    chance = random.Random(config["seed"])
    told: queue.Queue[list[str]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            told.put(line.split())
        told.put(["end"])

    threading.Thread(target=listen, daemon=True).start()
    network = Network(verdicts=lambda verdict: record.note(verdict=verdict.hex()))
    remote = RemoteDb(
        ingest=config["ingest"],
        snapshot=config["snapshot"],
        resolver=config["resolver"],
        token=config["key"],
        interceptors=[network],
    )
    db = SyncedDb(config["file"], remote, config["db"])
    db.start()
    print("started", flush=True)
    command = ["write"]
    number = 0
    network_up = 0.0
    while command == ["write"]:
        if db.status().unsent < MOST_UNSENT:
            made = write(db, chance, number)
            number += 1
            if made:
                (payload,) = db.execute(PAYLOAD, {"id": made}).fetchone()
                record.note(made=made, payload=bytes(payload).hex())
        if time.monotonic() > network_up:
            # A device's own backoff would have it sit out most of so short a test.
            network_up = time.monotonic() + NETWORK_UP_S
            db.network_up()
        try:
            command = told.get(timeout=chance.uniform(0, PAUSE_S))
        except queue.Empty:
            continue
    while (command := told.get())[0] == "drained?":
        print("yes" if until(db, lambda status: not status.unsent, 5.0) else "no", flush=True)
    if command[0] == "reach":
        print(json.dumps(reach(db, int(command[1]))), flush=True)
    db.close()


def until(db: SyncedDb, condition: Callable[[Status], bool], timeout_s: float) -> bool:
    """Wait until the device stands so."""
    deadline = time.monotonic() + timeout_s
    while not condition(db.status()):
        if time.monotonic() > deadline:
            return False
        db.network_up()
        time.sleep(0.05)  # between looks: no event tells of a cursor that moves
    return True


def reach(db: SyncedDb, position: int) -> dict[str, Any]:
    """Wait until everything is sent, seen and read; how the device then stands."""
    if not until(db, lambda status: not status.queued and status.cursor >= position, PATIENCE_S):
        return {"stuck": repr(db.status())}
    return {
        "sums": {name: [count, total.hex()] for name, (count, total) in db.table_sums().items()},
        "dead": {letter.id: letter.reason for letter in db.dead_letters()},
        "disagreeing": db.status().disagreeing,
    }


if __name__ == "__main__":
    main()
