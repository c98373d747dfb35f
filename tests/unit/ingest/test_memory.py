"""How many bytes this process holds at most."""

from __future__ import annotations

import pytest

from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2
from anabranch_ingest.quota import HeldBytes


def test_beyond_the_limit_calls_are_told_to_come_later() -> None:
    memory = HeldBytes(100)
    memory.take(60)
    memory.take(40)
    with pytest.raises(CallError) as caught:
        memory.take(1)
    assert caught.value.reason == errors_pb2.REASON_OVERLOADED
    memory.give_back(60)
    memory.take(50)
    assert memory.held == 90


def test_what_is_larger_than_the_limit_goes_when_nothing_else_is_held() -> None:
    memory = HeldBytes(10)
    memory.take(50)
    memory.give_back(50)
    assert memory.held == 0
