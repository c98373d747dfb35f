"""Two principals present the same new node id before it is stored: the first whose call holds the log has it."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pytest

from anabranch.testkit import waiting
from anabranch.testkit.ingest_rig import FailedCallError
from anabranch.testkit.snapshot_reader import Reader

until = partial(waiting.until, timeout_s=10.0)


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    """Reports wait so long that both calls come before one is stored."""
    return {"ANABRANCH_NODE_REPORT_MS": "3000"}


@pytest.fixture
def other(place: Any, reader: Reader) -> Reader:
    """Another principal with the same node id."""
    made: Reader = place.make_reader()
    made.node.CopyFrom(reader.node)
    made.node.name = "other"
    return made


def stored(place: Any, reader: Reader) -> tuple[str, int] | None:
    found: tuple[str, int] | None = place.conn.execute(
        "select name, acknowledged from anabranch.nodes where node_id = %s", (reader.node.id,)
    ).fetchone()
    return found


@pytest.mark.slow
def test_the_first_report_is_not_overwritten(place: Any, writer: Any, reader: Reader, other: Reader) -> None:
    reader.acknowledged = writer.insert("item", [("a", "a", 1, b"")])
    other.acknowledged = writer.insert("item", [("b", "b", 1, b"")])
    reader.get()
    with pytest.raises(FailedCallError) as caught:
        other.get()
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.PERMISSION_DENIED, "WRONG_PRINCIPAL")
    assert stored(place, reader) is None
    until(lambda: stored(place, reader) is not None)
    assert stored(place, reader) == ("reader", reader.acknowledged)


@pytest.mark.slow
def test_who_only_asked_for_the_tables_has_no_node(place: Any, writer: Any, reader: Reader, other: Reader) -> None:
    """A device may ask, and then be given to another principal before it ever reads."""
    head = writer.insert("item", [("a", "a", 1, b"")])
    reader.acknowledged = head
    reader.describe()
    other.get()
    until(lambda: stored(place, reader) is not None)
    assert stored(place, reader) == ("other", 0)
