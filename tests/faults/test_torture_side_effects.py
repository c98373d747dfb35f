"""The fault run's judge sees where code of a table wrote too much, too little, or for somebody else."""

from __future__ import annotations

import pytest

from anabranch.testkit.torture.registers import At, Logged
from anabranch.testkit.torture.side_effects import CHECKED, NUMBERED, TALLY, SideEffects, broken
from anabranch.values import Cell

BEFORE: dict[At, dict[str, Cell]] = {
    (TALLY, NUMBERED): {"id": NUMBERED, "n": 7},
    (TALLY, CHECKED): {"id": CHECKED, "n": 0},
}


def counts(table: str, n: int) -> Logged:
    return Logged((TALLY, table), "update", {"n": n})


def row(table: str, key: str, kind: str = "insert", number: int | None = None) -> Logged:
    return Logged((table, key), kind, {"title": "t", "number": number} if table == NUMBERED else {"title": "t"})


NUMBERS = [row(NUMBERED, "a", number=8), row(NUMBERED, "b", number=9)]
CHECKS = [row(CHECKED, "a"), row(CHECKED, "a", "update"), row(CHECKED, "b", "delete")]


@pytest.mark.parametrize(
    "changes",
    [
        [*NUMBERS, counts(NUMBERED, 9)],
        [NUMBERS[0], counts(NUMBERED, 8), NUMBERS[1], counts(NUMBERED, 9)],
        [*CHECKS, counts(CHECKED, 2)],
        [*CHECKS, row(CHECKED, "c", "none"), counts(CHECKED, 2)],
        [*CHECKS, row(CHECKED, "c", "none"), counts(CHECKED, 3)],
        [row(NUMBERED, "a", "update"), row(NUMBERED, "a", "delete")],
    ],
)
def test_what_rows_ask_for_is_no_fault(changes: list[Logged]) -> None:
    assert SideEffects({"b": changes}).faults("b", BEFORE) == []


@pytest.mark.parametrize(
    "changes",
    [
        NUMBERS,
        [*NUMBERS, counts(NUMBERED, 8)],
        [*NUMBERS, counts(NUMBERED, 10)],
        [NUMBERS[0], NUMBERS[0], counts(NUMBERED, 9)],
        [*NUMBERS, counts(NUMBERED, 9), counts(NUMBERED, 9)],
        [*NUMBERS, Logged((TALLY, NUMBERED), "insert", {"n": 9})],
        [*CHECKS, counts(CHECKED, 3)],
        [*CHECKS, counts(CHECKED, 1)],
        [*CHECKS, row(CHECKED, "c", "none"), counts(CHECKED, 4)],
    ],
)
def test_what_they_do_not_ask_for_is_one(changes: list[Logged]) -> None:
    assert SideEffects({"b": changes}).faults("b", BEFORE)


def test_a_number_is_given_by_the_log_to_the_row_that_it_made_alone() -> None:
    found = SideEffects({"b": NUMBERS})
    assert found.handed_out("b", (NUMBERED, "b")) == {"number": 9}
    assert found.handed_out("b", (NUMBERED, "c")) == found.handed_out("c", (NUMBERED, "b")) == {}
    assert found.handed_out("b", (CHECKED, "b")) == {}


def test_a_refused_title_breaks_the_check_where_it_was_written() -> None:
    rows = {(CHECKED, "a"): {"title": "refused"}, (CHECKED, "b"): {"title": "t"}}
    assert broken([(CHECKED, "a")], rows) == {"checked_counted"}
    assert broken([(CHECKED, "b"), (CHECKED, "gone")], rows) == set()
