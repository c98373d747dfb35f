"""One stack for the stories of a test process; each story has a database of its own in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.stack import Stack
from anabranch.testkit.story import Story, Teller


@pytest.fixture(scope="session")
def stack(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = databases.fresh()
    with Stack(url, folder=tmp_path_factory.mktemp("stack")) as running:
        yield running
    databases.release(url)


@pytest.fixture
def story(stack: Stack, tmp_path: Path) -> Iterator[Teller]:
    """Maker of stories. At the test's end each is synced a last time and must hold together (``Story.check``)."""
    told: list[Story] = []

    def tell(tables: dict[str, str], **options: Any) -> Story:
        made = Story(stack, tmp_path, tables, **options)
        told.append(made)
        return made

    yield tell
    try:
        for made in told:
            made.check()
    finally:
        for made in told:
            made.close()
