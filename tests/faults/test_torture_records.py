"""Processes of the fault run write records, and these are read: also large rows, and lines that a kill cut off."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from anabranch.testkit.oracle import effects_digest
from anabranch.testkit.torture import checks
from anabranch.testkit.torture.follower import Follower
from anabranch.testkit.torture.records import open_record
from anabranch.v1 import change_pb2


@pytest.mark.parametrize(
    ("there", "kept"),
    [(b"", b""), (b"a\nb\n", b"a\nb\n"), (b"a\nb", b"a\n"), (b"a", b""), (b"a\n" + b"b" * 9_000_000, b"a\n")],
)
def test_a_line_that_was_cut_off_goes_and_the_next_one_stands_alone(tmp_path: Path, there: bytes, kept: bytes) -> None:
    path = tmp_path / "record"
    path.write_bytes(there)
    descriptor = open_record(str(path))
    os.write(descriptor, b"next\n")
    os.close(descriptor)
    assert path.read_bytes() == kept + b"next\n"


def test_all_is_sent_again_in_requests_that_have_room() -> None:
    sizes = [1, 3_000_000, 600_000, 4_000_000, *[10] * (checks.RESEND_AT_ONCE + 1)]
    payloads = [bytes(size) for size in sizes]
    requests = checks._requests(payloads)
    assert [payload for request in requests for payload in request] == payloads
    assert [len(request) for request in requests] == [2, 1, 1, checks.RESEND_AT_ONCE, 1]


def test_an_effect_that_comes_in_parts_is_written_down_as_one(tmp_path: Path) -> None:
    record = tmp_path / "record"
    follower = Follower({"db": "d", "seed": 1, "key": "k", "snapshot": "localhost:1", "record": str(record)})

    def part(name: str, *effects: bytes, more: bool) -> change_pb2.LoggedBatch:
        return change_pb2.LoggedBatch(id=name, effects=effects, effect_incomplete=more)

    pages = [
        ([part("a", b"one", more=False), part("b", b"two", b"th", more=True)], True),
        ([part("b", b"re", more=True)], True),
        ([part("b", b"e", b"four", more=False)], False),
    ]
    for batches, goes_on in pages:
        follower.take(change_pb2.Page(groups=[change_pb2.LoggedGroup(position=7, batches=batches, incomplete=goes_on)]))
    [line] = map(json.loads, record.read_text().splitlines())
    wanted = [["a", effects_digest([b"one"])], ["b", effects_digest([b"two", b"three", b"four"])]]
    assert line == {"group": 7, "batches": wanted}
