"""A device as a process of its own, to be killed while it pulls and while it applies the log.

Usage: pulling_device.py CONFIG, a JSON object {file, db, snapshot, ingest, resolver, key}. It prints "rows N" for every
part of a pull, "pulled", then "cursor P" whenever it has read further, and ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import structlog

from anabranch.client import SyncedDb
from anabranch.testkit.remote import remote_of


def main() -> None:
    config = json.loads(sys.argv[1])
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    remote = remote_of(config, config["key"])

    def end_with_input() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_input, daemon=True).start()
    db = SyncedDb(config["file"], remote, config["db"])
    db.start(background=False, progress=lambda p: print(f"rows {p.rows_done}", flush=True))
    print("pulled", flush=True)
    cursor = 0
    while True:
        db.read()
        if db.status().cursor > cursor:
            cursor = db.status().cursor
            print(f"cursor {cursor}", flush=True)


if __name__ == "__main__":
    main()
