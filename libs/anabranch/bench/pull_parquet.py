"""A whole table from its published base, against the same pull from Postgres.

The table is filled before it is registered, pulled from Postgres, and compacted; then it is pulled again, by the same
reader. The first pull that finds the base has it proven and is not counted: a process does that once. The service's own
count shows that Parquet, and not Postgres, was the source of the pulls that are counted.
"""

from __future__ import annotations

from anabranch.bench.pull import ROUNDS, Pulled, definition, pull_once
from anabranch.bench.report import Result
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import DATABASE
from anabranch.runtime.compactor_job import run_job
from anabranch.testkit.exposition import shown

TARGET = 1.0
_PROVING = 20


def _served(on: Stage) -> float:
    """How many pulls the service has served from Parquet."""
    address = on.stack.metrics_addresses["snapshot"]
    return shown(address, "anabranch_pull_sources_total", database=DATABASE, source="parquet")


def _from_parquet(on: Stage) -> list[Pulled]:
    """Pulls from the base, once it is proven. Raises RuntimeError where they come from elsewhere."""
    for _ in range(_PROVING):
        pull_once(on)
        if _served(on):
            break
    before = _served(on)
    pulls = [pull_once(on) for _ in range(ROUNDS)]
    if not before or _served(on) - before != ROUNDS:
        raise RuntimeError(f"{_served(on) - before:g} of {ROUNDS} pulls came from Parquet")
    return pulls


def pull_parquet(rows: int = 1_000_000) -> Result:
    """``rows`` rows through the service to a client that does nothing with them."""
    with stage(definition(rows)) as on:
        pull_once(on)
        postgres = [pull_once(on) for _ in range(ROUNDS)]
        for _ in run_job(on.url, str(on.folder / "lake"), database=DATABASE):
            pass
        parquet = _from_parquet(on)
    if any(found.rows != rows for found in [*postgres, *parquet]):
        raise RuntimeError(f"not all pulls brought {rows} rows")
    return Result(
        bench="pull_parquet",
        value=rows / min(found.seconds for found in parquet),
        baseline=rows / min(found.seconds for found in postgres),
        unit="rows/s",
        target=TARGET,
        direction="at least",
        details={
            "rows": rows,
            "rounds": ROUNDS,
            "parquet_per_s": [round(rows / found.seconds) for found in parquet],
            "postgres_per_s": [round(rows / found.seconds) for found in postgres],
        },
    )
