"""A short fault run. The seed is printed; ANABRANCH_TEST_SEED repeats what is tried."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from anabranch.testkit.torture.run import torture


@pytest.mark.timeout(420)
def test_promises_1_to_7_and_every_rule_hold_whatever_goes_wrong(tmp_path: Path) -> None:
    seed = int(os.environ.get("ANABRANCH_TEST_SEED") or secrets.randbelow(1_000_000))
    report = torture(tmp_path, 15.0, seed, lambda line: print(line, flush=True))
    print(report)
    assert report.clean, str(report)
    # A run in which nothing was decided holds nothing against the promises.
    assert {"APPLIED", "MERGED", "OVERWROTE", "CONSTRAINT", "CONCURRENT_UPDATE", "ROW_EXISTS"} <= report.verdicts.keys()
