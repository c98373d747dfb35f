"""A device as a process of its own, to be killed: writes and syncs until it dies, and says what it has committed.

Usage: device_process.py FILE DB INGEST SNAPSHOT RESOLVER KEY SEED. It prints "made ID" after each committed batch, and
"round" after each sync. It ends by itself when its input ends.
"""

from __future__ import annotations

import random
import sys
import threading
import time

from anabranch import faults
from anabranch.client import CallFailed, RemoteDb, RowExists, RowMissing, SyncedDb


def main() -> None:
    file, db_name, ingest, snapshot, resolver, key, seed = sys.argv[1:]
    ended = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    chance = random.Random(int(seed))
    remote = RemoteDb(ingest=ingest, snapshot=snapshot, resolver=resolver, token=key)
    with SyncedDb(file, remote, db_name, reached=faults.reach) as device:
        print("started", flush=True)
        while not ended.is_set():
            for _ in range(chance.randint(1, 6)):
                write(device, chance)
            try:
                device.sync(5.0)
            except CallFailed:
                time.sleep(0.05)
            print("round", flush=True)


def write(device: SyncedDb, chance: random.Random) -> None:
    with device.batch() as batch:
        for _ in range(chance.randint(1, 4)):
            key = f"k{chance.randint(0, 60):02}"
            table = device.table(chance.choice(["todo", "note"]))
            try:
                if chance.random() < 0.5:
                    table.update({"id": key, "body": f"text {chance.random()}"})
                elif chance.random() < 0.7:
                    table.insert({"id": key, "body": "new"})
                else:
                    table.delete(key)
            except (RowMissing, RowExists):
                continue
    if batch.id:
        print(f"made {batch.id}", flush=True)


if __name__ == "__main__":
    main()
