"""A short attack. The seed is printed; ANABRANCH_TEST_SEED repeats what is tried."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from anabranch.testkit.attack.run import attack


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_nobody_stops_it(tmp_path: Path) -> None:
    seed = int(os.environ.get("ANABRANCH_TEST_SEED") or secrets.randbelow(1_000_000))
    # Other tests run beside it: how slow the neighbours are is told, and judged by `make attack`.
    report = attack(tmp_path, 60.0, seed, lambda line: print(line, flush=True), judge_times=False)
    print(report)
    assert report.clean, str(report)
    # An attack that nothing answered has attacked nothing.
    for wanted in (" OK", "UNAUTHENTICATED", "INVALID_REQUEST", "expanding: ", "http/2 ", "role: notified"):
        assert any(wanted in answer for answer in report.answers), wanted
