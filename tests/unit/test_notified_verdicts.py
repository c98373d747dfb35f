"""Verdicts in a notification are believed as the resolver sealed them, and in no other way."""

from __future__ import annotations

import base64

import pytest

from anabranch.store.inbox.notified import Verdict, open_verdicts, seal_verdicts
from anabranch.store.inbox.verdicts import DecidedBatch

KEY, CHAIN, SHA256 = b"k" * 32, b"c" * 16, bytes(range(32))
VERDICTS = [Verdict("A", SHA256, "user:é", b"yes"), Verdict("B", SHA256[::-1], "", b"")]
ROOM = 1_000


def told() -> str:
    text = seal_verdicts(KEY, 3, 17, CHAIN, VERDICTS, ROOM)
    assert text is not None
    return text


def test_what_is_told_is_heard() -> None:
    assert open_verdicts(KEY, 3, 17, told()) == (
        CHAIN,
        [("A", DecidedBatch(SHA256, "user:é", b"yes", 17)), ("B", DecidedBatch(SHA256[::-1], "", b"", 17))],
    )


def test_a_text_has_nothing_that_parts_a_notification() -> None:
    assert not set(told()) & set(",;:")


@pytest.mark.parametrize("at", range(0, 150, 7))
def test_one_changed_bit_is_not_believed(at: int) -> None:
    raw = bytearray(base64.b64decode(told()))
    raw[at % len(raw)] ^= 1
    assert open_verdicts(KEY, 3, 17, base64.b64encode(raw).decode()) is None


@pytest.mark.parametrize(("key", "database", "position"), [(b"x" * 32, 3, 17), (KEY, 4, 17), (KEY, 3, 18)])
def test_another_key_database_or_position_is_not_believed(key: bytes, database: int, position: int) -> None:
    assert open_verdicts(key, database, position, told()) is None


@pytest.mark.parametrize("text", ["x", "====", "AAAA", "é"])
def test_what_anybody_may_send_is_not_believed(text: str) -> None:
    assert open_verdicts(KEY, 3, 17, text) is None


def test_what_has_no_room_is_not_told() -> None:
    length = len(told())
    fits = seal_verdicts(KEY, 3, 17, CHAIN, VERDICTS, length)
    assert fits is not None
    assert open_verdicts(KEY, 3, 17, fits) == open_verdicts(KEY, 3, 17, told())
    assert fits != told(), "nobody who listens sees that it is the same"
    assert seal_verdicts(KEY, 3, 17, CHAIN, VERDICTS, length - 1) is None
    assert seal_verdicts(KEY, 3, 17, CHAIN, [Verdict("A", SHA256, "", bytes(100_000))], ROOM) is None
