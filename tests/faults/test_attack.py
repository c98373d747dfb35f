"""A short attack. The seed is printed; ANABRANCH_TEST_SEED repeats what is tried."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
import yaml

from anabranch.testkit.attack.memory import LIMIT_BYTES
from anabranch.testkit.attack.run import attack

VALUES = Path(__file__).parents[2] / "helm" / "anabranch" / "values.yaml"


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


def test_the_limit_of_memory_is_the_charts() -> None:
    limits = yaml.safe_load(VALUES.read_text())["services"]["defaults"]["resources"]["limits"]
    assert limits["memory"] == f"{LIMIT_BYTES // 2**30}Gi"
