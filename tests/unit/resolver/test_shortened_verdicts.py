"""Verdicts that are too large for an answer."""

from __future__ import annotations

from anabranch.v1 import value_pb2, verdict_pb2
from anabranch_conflict_resolver.batch.verdicts import shorten


def large() -> verdict_pb2.Verdict:
    verdict = verdict_pb2.Verdict(batch_id="b", status=verdict_pb2.VERDICT_STATUS_REJECTED, message="no")
    mutation = verdict.mutations.add(table="t", key=[value_pb2.Value(string_value="k" * 100)])
    mutation.server_row.values.add(string_value="x" * 1_000)
    return verdict


def test_rows_go_first_then_mutations_and_never_the_verdict() -> None:
    whole, without_row, bare = large(), large(), large()
    assert shorten(whole, 5_000) == whole.ByteSize() == large().ByteSize()
    assert shorten(without_row, 500) == without_row.ByteSize() < 500
    assert not without_row.mutations[0].HasField("server_row")
    assert without_row.mutations[0].key[0].string_value == "k" * 100
    assert shorten(bare, 50) == bare.ByteSize() < 50
    assert (bare.batch_id, bare.message, len(bare.mutations)) == ("b", "no", 0)
