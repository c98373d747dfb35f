"""A look-up of keys that fails for one fails for that one alone; keys of open streams are read again in one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.clock import Clock
from anabranch.runtime.credentials import keys
from anabranch.runtime.credentials.auth import Authenticator, Identity
from anabranch.runtime.credentials.keys import KeyDirectory
from anabranch.runtime.credentials.principal import Principal
from anabranch.runtime.errors import CallError
from anabranch.store.nodes import api_keys
from anabranch.store.nodes.api_keys import ApiKey, split_key
from anabranch.v1 import errors_pb2

GOOD = [f"{number:016x}" for number in range(100)]


class Table(KeyDirectory):
    """Has all keys; a statement fails that asks for one whose id is ``bad``."""

    def __init__(self, bad: set[str]) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.bad = bad
        self.gone: set[str] = set()
        self.statements = 0

    async def _read(self, ids: list[str]) -> dict[str, ApiKey]:
        return self._keep(await self.read(None, ids))

    async def read(self, conn: object, ids: Sequence[str]) -> dict[str, ApiKey]:
        """The statement, of the pool or of a session."""
        self.statements += 1
        await asyncio.sleep(0)
        if self.bad.intersection(ids):
            raise ValueError("no text that Postgres takes")
        there = [key_id for key_id in ids if key_id not in self.gone]
        return {key_id: ApiKey(key_id, b"", key_id, None, "device", 0, None, None) for key_id in there}


async def found(table: Table, ids: list[str]) -> list[Any]:
    return await asyncio.gather(*(table.find(key_id) for key_id in ids), return_exceptions=True)


def test_a_look_up_that_fails_for_one_is_done_again_without_it() -> None:
    table = Table({GOOD[30], GOOD[31], GOOD[70]})
    answers = asyncio.run(found(table, GOOD))
    for key_id, answer in zip(GOOD, answers, strict=True):
        if key_id in table.bad:
            assert isinstance(answer, CallError)
            assert answer.reason == errors_pb2.REASON_UNAVAILABLE
        else:
            assert answer.subject == key_id


def test_each_caller_gets_an_error_of_its_own() -> None:
    """One that all raise would collect the traceback of each."""
    table = Table({GOOD[0]})
    first, second = asyncio.run(found(table, [GOOD[0], GOOD[1]]))[0], asyncio.run(found(table, [GOOD[0]]))[0]
    assert first is not second


def test_a_look_up_that_fails_for_all_ends_soon() -> None:
    table = Table(set(GOOD))
    answers = asyncio.run(found(table, GOOD))
    assert {type(answer) for answer in answers} == {CallError}
    assert table.statements < 6 * keys.MOST_FAULTS


@pytest.mark.parametrize("with_session", [True, False])
def test_keys_whose_rows_are_gone_cost_a_look_no_more_statements(
    monkeypatch: pytest.MonkeyPatch, with_session: bool
) -> None:
    table = Table(set())
    monkeypatch.setattr(api_keys, "afind", table.read)
    conn: Any = object() if with_session else None
    streams = [Identity(Principal(key_id, "device", None, None), key_id) for key_id in GOOD]
    judge = Authenticator(table, None, Clock())  # type: ignore[arg-type]

    async def looks() -> list[set[Identity]]:
        found = [await judge.ended(streams, conn)]
        table.gone = set(GOOD[10:])
        # A stream takes a moment to end: the look after it judges it again.
        return [*found, await judge.ended(streams, conn), await judge.ended(streams, conn)]

    assert asyncio.run(looks()) == [set(), set(streams[10:]), set(streams[10:])]
    assert table.statements == 3
    assert table.cached(GOOD[0]) is not None
    assert table.cached(GOOD[10]) is None


def test_a_look_keeps_the_keys_of_streams_and_forgets_those_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(set())
    now = 1_000.0
    monkeypatch.setattr(keys, "time", SimpleNamespace(monotonic=lambda: now))

    async def looks() -> None:
        nonlocal now
        await found(table, GOOD[:2])
        now += keys.IDLE_S + 1
        assert set(await table.confirm([GOOD[0]], None)) == {GOOD[0]}

    asyncio.run(looks())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ak_",
        "ak_0_0",
        "ak_0123456789abcde\0_" + "0" * 64,
        "ak_" + "0" * 16 + "_" + "0" * 63 + "\n",
        "ak_" + "٣" * 16,
    ],
)
def test_a_text_of_another_form_is_no_key(text: str) -> None:
    assert split_key(text) is None


def test_a_key_is_split() -> None:
    assert split_key(f"ak_{'a' * 16}_{'0' * 64}") == ("a" * 16, "0" * 64)
