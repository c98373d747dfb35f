"""The judge of reports takes a verdict as answers carry it, and finds the one that says something else."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import pytest

from anabranch.testkit.oracle import Recorded, Server, check_once
from anabranch.v1 import value_pb2, verdict_pb2
from anabranch_ingest.answers import bounded

PAYLOAD = b"payload"


def _verdict(size: int) -> bytes:
    row = value_pb2.NamedRow(columns=["c"], values=[value_pb2.Value(string_value="x" * size)])
    one = verdict_pb2.MutationVerdict(server_row=row)
    return verdict_pb2.Verdict(
        batch_id="B", status=verdict_pb2.VERDICT_STATUS_APPLIED, mutations=[one]
    ).SerializeToString()


def _judged(stored: bytes, told: bytes, answer: bytes) -> int:
    server = Server(cast(Any, None), [], {"B": stored}, {"B": hashlib.sha256(PAYLOAD).digest()}, [], {})
    return check_once(server, [Recorded(made={"B": PAYLOAD}, told={"B": [told]})], {"B": answer})


@pytest.mark.parametrize("size", [10, 999_900, 1_000_000, 3_000_000])
def test_reports_that_are_as_answered_are_alike(size: int) -> None:
    stored = _verdict(size)
    assert _judged(stored, bounded(stored), bounded(stored)) == 1


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_report_that_says_something_else_is_found(size: int) -> None:
    stored = _verdict(size)
    other = verdict_pb2.Verdict.FromString(bounded(stored))
    other.status = verdict_pb2.VERDICT_STATUS_REJECTED
    with pytest.raises(AssertionError, match=r"2 different verdicts.*REJECTED"):
        _judged(stored, other.SerializeToString(), bounded(stored))
