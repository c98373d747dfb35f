"""One ground for all scenarios of a test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.scenario.run import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("scenarios")) as made:
        yield made
