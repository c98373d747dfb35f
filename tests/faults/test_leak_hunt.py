"""A short hunt for leaks. The seed is printed; ANABRANCH_TEST_SEED repeats what is tried."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from anabranch.testkit.attack.leak_hunt import hunt


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_promise_10_nobody_gets_a_byte_of_a_row_that_they_may_not_read(tmp_path: Path) -> None:
    seed = int(os.environ.get("ANABRANCH_TEST_SEED") or secrets.randbelow(1_000_000))
    report = hunt(tmp_path, 40.0, seed, lambda line: print(line, flush=True))
    print(report)
    assert report.clean, str(report)
    # A hunt in which nobody got anything has looked at nothing.
    wanted = ("Get", "Subscribe", "Pull", "Compare", "Explain", "ListConflicts", "GetVerdict", "Describe")
    assert not [method for method in wanted if not report.calls.get(method)], str(report)
    assert report.from_parquet, str(report)
    assert all(report.marks.values()), str(report)
