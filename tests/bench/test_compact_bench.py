"""Benches that compact measure what they say: small runs, whose figures are looked at for sense and not for size."""

from __future__ import annotations

import pytest

from anabranch.bench.compact import compact
from anabranch.bench.large_delete import large_delete
from anabranch.bench.pull_parquet import pull_parquet


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_bench_of_the_compactor_runs_the_job_twice() -> None:
    result = compact(changes=2_000)
    assert result.value > 0
    assert result.baseline > 0
    assert result.details["changes"] == 2_000
    assert result.details["later_run_s"] > 0
    assert result.details["later_share"] > 0
    assert result.details["first_peak_mib"]["java"] > 0
    assert result.details["log_mb"] > 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_bench_of_a_large_delete_goes_through_compactor_and_janitor() -> None:
    found = large_delete(2_000)
    assert (found["inserted_changes"], found["deleted_changes"]) == (2_000, 2_000)
    assert (found["log_rows_left"], found["tombstones_left"], found["unfinished"]) == (0, 0, False)
    assert found["deleted_peak_mib"]["python"] > 0
    assert found["janitor_mib"] > 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_bench_of_a_pull_from_parquet_pulls_from_both() -> None:
    result = pull_parquet(4_000)
    assert (len(result.details["parquet_per_s"]), len(result.details["postgres_per_s"])) == (3, 3)
    assert min(result.details["parquet_per_s"]) > 0
