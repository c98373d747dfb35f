"""The wheels, built once for all of these tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .environments import TOOL, Environment, Wheel, environment


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Wheel]:
    folder = tmp_path_factory.mktemp("wheels")
    return {name: TOOL.build(name, folder) for name in TOOL.WHEELS}


@pytest.fixture(scope="session")
def installed(built: dict[str, Wheel], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    def make(*names: str) -> Environment:
        return environment(tmp_path_factory.mktemp("installed"), [built[name] for name in names])

    return make
