"""A pytest plugin: tests of one ``xdist_group`` run in one process, with the services or the Spark that they share.

Loaded by `-p anabranch.testkit.groups`. pytest-xdist 3.8 writes a test's group behind its id, for its scheduler to
read; since pytest 9.2 an item's id is kept elsewhere, and what it writes has no effect: tests of a group were spread
over all processes, and each started the group's fixtures once more.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Write the groups where they are read, in a process of xdist's with ``--dist loadgroup``."""
    if not config.getoption("loadgroup", default=False):
        return
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = item.id.parse(f"{item.nodeid}@{mark.args[0]}")
