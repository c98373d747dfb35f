"""More calls than the log can be read for: those that wait for long are refused, the others are answered."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.integration.snapshot.conftest import Place

from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import FailedCallError
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2

WAIT_MS = 300
SESSIONS, ADMITTED = 1, 4
CALLERS = 10


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {"ANABRANCH_LOG_SESSIONS": str(SESSIONS), "ANABRANCH_LOG_WAIT_MS": str(WAIT_MS)}


@pytest.mark.parametrize(
    "call",
    [Reader.get, Reader.describe, lambda reader: reader.find_common([])],
    ids=["Get", "Describe", "FindCommon"],
)
def test_calls_that_wait_for_long_are_refused_and_those_before_them_answered(
    place: Place, writer: LogWriter, call: Callable[[Reader], Any]
) -> None:
    writer.insert("item", [("x", "title", 1, b"")])
    readers = [place.make_reader() for _ in range(CALLERS)]
    assert [len(page.groups) for page in readers[0].pages()] == [1]
    with ThreadPoolExecutor(CALLERS) as threads, connect(place.rig.url, application_name="test") as conn:
        conn.execute("lock table anabranch.groups in access exclusive mode")
        made = [threads.submit(call, reader) for reader in readers]
        refused = CALLERS - ADMITTED
        until(lambda: sum(one.done() for one in made) >= refused)
        failures = [one.exception() for one in made if one.done()]
        assert [failure.reason for failure in failures if isinstance(failure, FailedCallError)] == (
            ["OVERLOADED"] * refused
        )
        conn.rollback()
        answered = [one.result() for one in made if one.exception() is None]
    assert len(answered) == ADMITTED
    assert all(answer.state.settled.server_timestamp_ms for answer in answered)
    assert all(answer.page.groups for answer in answered if isinstance(answer, change_pb2.GetResponse))
