"""A pytest plugin: quick tests run always, slow and long ones when they are asked for, none beyond a given moment.

Loaded by `-p anabranch.testkit.paces`. A test is quick unless it is marked ``slow`` or ``long``.
"""

from __future__ import annotations

import time

import pytest

BY = {"quick": "make test", "slow": "make test-slow", "long": "make test-long"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long`` runs what is left out otherwise, ``--only-slow`` and ``--only-long`` nothing but such tests."""
    parser.addoption("--long", action="store_true", help="also run the tests that are marked slow or long")
    parser.addoption("--only-slow", action="store_true", help="run the tests that are marked slow, and no others")
    parser.addoption("--only-long", action="store_true", help="run the tests that are marked long, and no others")
    parser.addoption("--until", type=int, help="run no test that would begin later: seconds since 1970 (date +%%s)")


def _pace(item: pytest.Item) -> str:
    """``long``, ``slow`` or ``quick``; of a slow file's tests some may be long."""
    return next((mark for mark in ("long", "slow") if item.get_closest_marker(mark)), "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow and long tests out unless they were asked for, and say so."""
    for only in ("slow", "long"):
        if config.getoption(f"--only-{only}"):
            items[:] = [item for item in items if _pace(item) == only]
            return
    if config.getoption("--long"):
        return
    for item in items:
        if (pace := _pace(item)) != "quick":
            item.add_marker(pytest.mark.skip(reason=f"it is {pace}: {BY[pace]} runs it"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test that comes too late, and say so."""
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip(f"the time for tests was used up by others: {BY[_pace(item)]} runs it")
