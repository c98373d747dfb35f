"""A device as a process of its own, whose memory can be told apart. It follows the log.

Usage: large_device.py FILE DB INGEST SNAPSHOT RESOLVER KEY. It prints "ready" when it has pulled. To each line with a
number of rows it prints "watching", waits until its tables but the last have so many, and prints the other numbers that
it saw meanwhile and by how many bytes it has grown; to "sums" it prints its tables' sums, and which of them disagree.
It ends by itself when its input ends.
"""

from __future__ import annotations

import json
import sys
import time

from anabranch.client import RemoteDb, SyncedDb
from anabranch.testkit.process_memory import forget_peak, has_bytes, peak_bytes

_LOOK_S = 0.02


def main() -> None:
    file, db_name, ingest, snapshot, resolver, key = sys.argv[1:]
    remote = RemoteDb(ingest=ingest, snapshot=snapshot, resolver=resolver, token=key)
    with SyncedDb(file, remote, db_name) as db:
        count = " + ".join(f"(SELECT count(*) FROM {name})" for name in ("list", "todo", "note"))
        tell("ready")
        for line in sys.stdin:
            if line.strip() == "sums":
                sums = {name: [rows, total.hex()] for name, (rows, total) in db.table_sums().items()}
                tell([sums, list(db.status().disagreeing)])
                continue
            before = has_bytes("self")
            forget_peak("self")
            tell("watching")
            seen = set()
            while (now := db.execute(f"SELECT {count}").fetchone()[0]) != int(line):
                seen.add(now)
                time.sleep(_LOOK_S)
            tell([sorted(seen), peak_bytes("self") - before])


def tell(what: object) -> None:
    """One line."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
