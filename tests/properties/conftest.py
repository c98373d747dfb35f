"""Checks of every history that a device goes through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anabranch.testkit.standing_check import checked_standing


@pytest.fixture(autouse=True)
def standing_is_true() -> Iterator[None]:
    with checked_standing():
        yield
