"""A service that leaks is found out by a hunt of seconds, whichever kind of leak it is. The seed is printed;
ANABRANCH_TEST_SEED repeats what is tried."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
from tests.faults.planted.sitecustomize import PLANTS

from anabranch.testkit.attack.leak_hunt import hunt

PLANTED = Path(__file__).parent / "planted"
FOUND = {
    "row in log": {("value", "Get"), ("value", "Subscribe")},
    "row in pull": {("value", "Pull")},
    "row in pull from Parquet": {("value", "Pull")},
    "row in Explain": {("value", "Explain")},
    "server row in verdict": {("value", "Send"), ("value", "SendStream"), ("value", "GetVerdict")},
    "losing value in log": {("value", "Get"), ("value", "Subscribe")},
    "losing value in list": {("value", "ListConflicts")},
    "sum": {("sum", "Get"), ("sum", "Subscribe")},
    "count": {("count", "Describe")},
}
"""By what is planted: the leaks of which the hunt finds one at least, by kind and method."""


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("planted", PLANTS)
def test_a_planted_leak_is_found(planted: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("ANABRANCH_TEST_SEED") or secrets.randbelow(1_000_000))
    environment = {"ANABRANCH_TEST_PLANT": planted, "PYTHONPATH": str(PLANTED)}
    report = hunt(tmp_path, 20.0, seed, lambda line: print(line, flush=True), environment)
    print(report)
    found = {(leak.kind, leak.method.rpartition("/")[2]) for leak in report.leaks}
    assert found & FOUND[planted], str(report)
