"""The fault run sees a batch or a row that a device refused on a full disk, wherever it stands all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from anabranch.store.catalog.databases import Database
from anabranch.testkit.oracle import Entry, Recorded, Server, check_refused

TEXT = "1.f2.0!"
CLEAN = Recorded(made={"a": b"1.f2.1!0-", "b": b"1.f2.00!"}, nowhere={TEXT: 0, "1.f2.1!3-": 0})
LOG = (Entry(5, "a", "parts", "1.f2.1!0-", b"x 1.f2.1!0-"), Entry(5, "s", "parts", "k", b""))
SERVER = Server(cast(Database, None), LOG, {}, {}, (5,), {})


def test_what_is_nowhere_is_counted() -> None:
    assert check_refused(SERVER, [CLEAN, Recorded()], ["a"]) == 2


@pytest.mark.parametrize(
    ("server", "recorded", "sent", "said"),
    [
        (SERVER, replace(CLEAN, nowhere={TEXT: 1}), ["a"], "stands in 1 places"),
        (SERVER, replace(CLEAN, made={"a": TEXT.encode()}), ["a"], "is in the batches"),
        (replace(SERVER, log=[Entry(5, "c", "parts", TEXT, b"")]), CLEAN, ["a"], "is in the batches"),
        (replace(SERVER, log=[Entry(5, "c", "shared", "k", TEXT.encode())]), CLEAN, ["a"], "is in the batches"),
        (SERVER, CLEAN, ["a", "c"], "no device has saved"),
    ],
)
def test_what_is_somewhere_is_found(server: Server, recorded: Recorded, sent: list[str], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_refused(server, [recorded], sent)
