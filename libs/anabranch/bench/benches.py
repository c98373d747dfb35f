"""Every bench by its name, with the facts that a reader of its figure has to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from anabranch.bench import (
    capture,
    capture_drain,
    compact,
    ddl,
    drain,
    fanout,
    growth,
    ingest,
    latency,
    log,
    poison,
    pull,
    pull_parquet,
)
from anabranch.bench.report import Result


class Bench(NamedTuple):
    """``work``: the measured work. ``baseline``: the work that it is compared with. ``others``: figures of other
    systems for about the same work on a machine of two cores, in memory on the client and without a network; empty
    where they are not known."""

    run: Callable[..., Result]
    work: str
    baseline: str
    others: str = ""


BENCHES: Mapping[str, Bench] = MappingProxyType(
    {
        "ingest": Bench(
            ingest.ingest,
            "200,000 row changes, batches of 10, 8 clients, to verdict",
            "bare set statements, uncaptured, by libpq",
            "Zero (Postgres) 854 rows/s, Triplit (SQLite without fsync) 10,333 rows/s",
        ),
        "ingest1": Bench(
            ingest.ingest1,
            "batches of one row; the slower of 1 and 8 clients",
            "the same bare statements",
            "Zero 218/s, Triplit 7,582/s",
        ),
        "ingest_audiences": Bench(
            ingest.ingest_audiences, "rows of a hundred teams, each seen by its own", "the same rows, seen by all"
        ),
        "latency": Bench(latency.latency, "one change, idle, to verdict, p50", "two bare commits by libpq"),
        "propagate": Bench(
            latency.propagate,
            "one device's commit to another's file, p50",
            "the same change to its verdict",
            "PouchDB 13 ms, Zero 15 ms, Triplit 29 ms",
        ),
        "fanout": Bench(fanout.fanout, "200 changes/s to 1,000 subscribers, p99", "the lag that is allowed"),
        "fanout_audiences": Bench(
            fanout.fanout_audiences,
            "200 changes/s to 1,000 subscribers in 100 audiences, p99",
            "the lag that is allowed",
        ),
        "drain": Bench(
            drain.drain,
            "10,000 queued batches of ten rows, a fifth conflicting, from file to last verdict",
            "ingest on the same services",
            "Zero 219 writes/s, PouchDB 1,408, Triplit 9,814",
        ),
        "poison": Bench(
            poison.poison, "one batch in ten refused, by the constraint that costs most", "the same, none refused"
        ),
        "growth": Bench(growth.growth, "ingest with 5,000,000 changes in the log", "ingest with an empty log"),
        "pull": Bench(pull.pull, "a million rows to a client that throws them away", "binary COPY, read by psql"),
        "pull_parquet": Bench(
            pull_parquet.pull_parquet, "the same rows from a published base", "the pull from Postgres"
        ),
        "bootstrap": Bench(
            pull.bootstrap,
            "the same rows into a new device's file",
            "bare INSERTs of rows in memory",
            "44,000 to 52,000 rows/s, PouchDB 4,800 (first sync of 200,000 rows)",
        ),
        "log": Bench(
            log.log,
            "100,000 changes of others from the log into the file of a device with a million rows",
            "bootstrap of that million",
        ),
        "capture": Bench(
            capture_drain.capture,
            "100,000 rows of plain SQL to a device's file",
            "the rate that is asked for",
            "Zero 6,684 rows/s, lag 28 ms",
        ),
        "capture_writer": Bench(
            capture.capture_writer,
            "plain SQL with capture; the kind of statement furthest from its target",
            "without capture",
        ),
        "ddl": Bench(
            ddl.ddl,
            "a column with a constant added to a synced table of a million rows, which a device holds",
            "the same where nothing is synced",
        ),
        "compact": Bench(
            compact.compact,
            "a million changes with Spark on this machine, its start apart",
            "a bare reader and writer of the same bytes",
        ),
        "compact_later": Bench(compact.compact_later, "a run with 1 % new after 5,000,000", "the first run"),
    }
)
