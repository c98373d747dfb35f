"""Answers are put together as bytes: they must be those of the messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.store.inbox.heads import DatabaseHead
from anabranch.store.log.seal import chain_of
from anabranch.v1 import errors_pb2, ingest_pb2, position_pb2, verdict_pb2
from anabranch_ingest import answers

ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
HEAD = DatabaseHead(1, "d", "epoch", 5, 7, 1000, b"k" * 32, 123_456_789_012, b"c" * 16)


@pytest.mark.slow
@given(
    verdicts=st.lists(
        st.builds(
            verdict_pb2.Verdict,
            batch_id=st.just(ID),
            status=st.sampled_from([1, 2]),
            message=st.text(max_size=300),
            position=st.integers(0, 2**63 - 1),
        ),
        max_size=5,
    ),
    token=st.binary(max_size=16),
    now_ms=st.integers(1, 2**60),
)
def test_an_answer_is_the_message(verdicts: list[verdict_pb2.Verdict], token: bytes, now_ms: int) -> None:
    state = answers.state(answers.state_head(HEAD), now_ms)
    made = answers.answer([v.SerializeToString() for v in verdicts], token, state)
    for message in (ingest_pb2.SendResponse, ingest_pb2.SendStreamResponse):
        expected = message(verdicts=verdicts, node_token=token, state=position_pb2.ServerState.FromString(state))
        assert message.FromString(made) == expected
        assert made == expected.SerializeToString()


def test_the_state_says_all_of_the_head() -> None:
    state = position_pb2.ServerState.FromString(answers.state(answers.state_head(HEAD), 99))
    assert (state.floor, state.schema_version, state.server_time_ms) == (5, 7, 99)
    assert (state.settled.epoch, state.settled.server_timestamp_ms) == ("epoch", 123_456_789_012)
    assert chain_of(HEAD.seal_key, "epoch", HEAD.position, state.settled.token) == b"c" * 16


def test_a_long_verdict_has_a_long_length() -> None:
    verdict = verdict_pb2.Verdict(message="x" * 70_000)
    made = ingest_pb2.SendResponse.FromString(answers.answer([verdict.SerializeToString()] * 2, b"", b""))
    assert list(made.verdicts) == [verdict, verdict]


def test_pending() -> None:
    assert verdict_pb2.Verdict.FromString(answers.pending(ID)) == verdict_pb2.Verdict(
        batch_id=ID, status=verdict_pb2.VERDICT_STATUS_PENDING
    )


def test_a_reuse_tells_nothing_of_the_batch_that_has_the_id() -> None:
    verdict = verdict_pb2.Verdict.FromString(answers.reused(ID))
    assert (verdict.batch_id, verdict.reason) == (ID, errors_pb2.REASON_ID_REUSED)
    assert (verdict.position, len(verdict.mutations), verdict.sqlstate) == (0, 0, "")


@pytest.mark.parametrize(("row_bytes", "key_bytes"), [(2_000_000, 10), (2_000_000, 900_000), (10, 900_000)])
def test_a_verdict_is_cut_until_it_fits(row_bytes: int, key_bytes: int) -> None:
    verdict = verdict_pb2.Verdict(
        batch_id=ID, status=verdict_pb2.VERDICT_STATUS_REJECTED, reason=errors_pb2.REASON_ROW_EXISTS
    )
    for _ in range(2):
        mutation = verdict.mutations.add(table="t")
        mutation.key.add(string_value="k" * key_bytes)
        mutation.server_row.values.add(string_value="r" * row_bytes)
    cut = answers.bounded(verdict.SerializeToString())
    assert len(cut) <= answers.MAX_VERDICT_BYTES
    left = verdict_pb2.Verdict.FromString(cut)
    assert (left.batch_id, left.status, left.reason) == (ID, verdict.status, 1)
    assert len(left.mutations) == (2 if key_bytes == 10 else 0)


def test_places_are_filled_in_order_and_up_to_the_limit() -> None:
    small, large = b"s" * 10, b"l" * 900_000
    found = {ID: large}
    places: list[bytes | str] = [small, ID, ID, ID, ID, small]
    filled = answers.in_place(places, found)
    assert filled[:4] == [small, large, large, large]
    assert filled[4:] == [answers.pending(ID), small]
    assert sum(map(len, filled)) <= answers.MAX_VERDICTS_BYTES
