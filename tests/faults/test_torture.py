"""Short fault runs. The seed is printed; ANABRANCH_TEST_SEED repeats what is tried."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from anabranch.testkit.torture.run import Report, torture


def run(folder: Path, seconds: float, *, with_lake: bool) -> Report:
    seed = int(os.environ.get("ANABRANCH_TEST_SEED") or secrets.randbelow(1_000_000))
    report = torture(folder, seconds, seed, lambda line: print(line, flush=True), with_lake=with_lake)
    print(report)
    assert report.clean, str(report)
    # A run in which nothing was decided holds nothing against the promises.
    wanted = {"APPLIED", "MERGED", "OVERWROTE", "CONSTRAINT", "ROW_EXISTS"}
    wanted |= {"by SQL: insert", "by SQL: update", "by SQL: delete"}
    wanted |= {"CONCURRENT_UPDATE"} if report.drawn.refuses else set()
    assert wanted <= report.verdicts.keys()
    return report


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_promises_1_to_7_and_every_rule_hold_whatever_goes_wrong(tmp_path: Path) -> None:
    run(tmp_path, 15.0, with_lake=False)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_promise_8_holds_while_the_log_is_compacted_and_cut_behind_all_that_goes_wrong(tmp_path: Path) -> None:
    report = run(tmp_path, 60.0, with_lake=True)
    cut, _, what = report.checked["8 safe to prune"].partition(" ")
    assert what.startswith("changes cut"), what
    assert int(cut) > 0, "nothing was cut"
