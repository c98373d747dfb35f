"""Tests of one group run in one process of pytest-xdist."""

from __future__ import annotations

from collections import defaultdict

import pytest

TESTS = """
import os
import time

import pytest


@pytest.mark.parametrize("group", ["a", "b"])
@pytest.mark.parametrize("number", range(4))
def test_of_none(group, number):
    pass


@pytest.mark.parametrize(
    ("group", "number"),
    [pytest.param(g, n, marks=pytest.mark.xdist_group(g)) for n in range(4) for g in ("a", "b")],
)
def test_of_a_group(group, number):
    time.sleep(0.05)  # so that no process can take all before the other is there
    print("RAN", group, os.environ["PYTEST_XDIST_WORKER"])
"""


@pytest.mark.slow
def test_tests_of_a_group_run_in_one_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess(
        "-p", "anabranch.testkit.groups", "-n", "2", "--dist", "loadgroup", "-rP", timeout=60
    )
    done.assert_outcomes(passed=16)
    workers = defaultdict(list)
    for line in done.outlines:
        if line.startswith("RAN "):
            _, group, worker = line.split()
            workers[group].append(worker)
    assert {group: (len(ran), len(set(ran))) for group, ran in workers.items()} == {"a": (4, 1), "b": (4, 1)}
