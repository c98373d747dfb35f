"""Verdicts put together by hand are what protobuf makes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.merge import MutationOutcome, Outcome
from anabranch.v1 import value_pb2, verdict_pb2
from anabranch.values import Column, Kind, Table
from anabranch_conflict_resolver.batch.verdict_bytes import applied_as_written, mutation_writer

TABLES = {
    "t": Table("t", (Column("id", Kind.STRING, "text"),), ("id",)),
    "Größe": Table("Größe", (Column("a", Kind.INT64, "bigint"), Column("b", Kind.UUID, "uuid")), ("b", "a")),
}
WRITERS = {name: mutation_writer(table) for name, table in TABLES.items()}
UUID = "0b4f5c5e-4a57-4c5e-9a6e-000000000001"
rows = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: ("t", (text,))),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: ("Größe", (UUID, n))),
)


@given(st.integers(1, 2**62), st.lists(rows, min_size=1, max_size=200))
def test_they_are_equal(position: int, touched: list[tuple[str, tuple[str | int, ...]]]) -> None:
    keys = {(table, str(i)): key for i, (table, key) in enumerate(touched)}
    outcomes = [MutationOutcome(Outcome.APPLIED, table, str(i)) for i, (table, _) in enumerate(touched)]
    verdict = verdict_pb2.Verdict(
        batch_id="01HZY0000000000000000000AA", status=verdict_pb2.VERDICT_STATUS_APPLIED, position=position
    )
    for i, (table, key) in enumerate(touched):
        values = (
            [value_pb2.Value(string_value=str(key[0]))]
            if table == "t"
            else [value_pb2.Value(uuid_value=UUID), value_pb2.Value(int64_value=int(key[1]))]
        )
        verdict.mutations.add(index=i, outcome=verdict_pb2.OUTCOME_APPLIED, table=table, key=values)
    made = applied_as_written(verdict.batch_id, position, outcomes, keys, WRITERS)
    assert made == verdict.SerializeToString(deterministic=True)


def test_what_is_more_than_applied_is_left_to_protobuf() -> None:
    for outcome in (
        MutationOutcome(Outcome.MERGED, "t", "k", ("a",)),
        MutationOutcome(Outcome.APPLIED, "t", "k", ("a",)),
    ):
        assert applied_as_written("b", 1, [outcome], {("t", "k"): ("k",)}, WRITERS) is None
