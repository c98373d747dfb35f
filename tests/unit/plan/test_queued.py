"""How much of the batches that wait is read, and held, for a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from anabranch.cli.schema.plan import MigrationPlan
from anabranch.cli.schema.plan_lines import plan_json, plan_lines
from anabranch.store.ddl.difference import TableChange
from anabranch.store.group.casts import CastCell
from anabranch.store.plan import queued
from anabranch.store.plan.queued import ReadBatches, WaitingBatch, pieces_of, queued_troubles
from anabranch.v1 import batch_pb2, value_pb2
from anabranch.values import Column, Kind, Table
from anabranch.values.table import FormerColumn

ID = Column("id", Kind.STRING, "text", not_null=True)
MINUTES = Column("minutes", Kind.INT64, "bigint")
SMALL = Column("minutes~2", Kind.INT64, "smallint", renamed="minutes", initial=(None,))
JOB = Table("job", (ID, MINUTES), ("id",), 1)
RETYPED = TableChange(JOB, replace(JOB, columns=(ID, SMALL)), dropped=(FormerColumn(MINUTES, 1, "minutes~2"),))


class Inbox:
    """A session with an inbox of payloads by arrival. ``asked``: the arrivals of each piece."""

    def __init__(self, payloads: dict[int, bytes], waiting: int = 0) -> None:
        self.payloads, self.waiting = payloads, waiting or len(payloads)
        self.asked: list[list[int]] = []
        self.found: list[Any] = []

    def execute(self, statement: str, given: tuple[Any, Any]) -> Inbox:
        if statement == queued._SIZES:
            last = sorted(self.payloads, reverse=True)[: given[1]]
            self.found = [(arrival, len(self.payloads[arrival]), self.waiting) for arrival in last]
        else:
            self.asked.append(list(given[1]))
            self.found = [(f"b{one}", "n", self.payloads[one]) for one in given[1] if one in self.payloads]
        return self

    def fetchall(self) -> list[Any]:
        return self.found


class Copy:
    """A session with the copy. ``cast``: how many values were cast at once."""

    def __init__(self) -> None:
        self.cast: list[int] = []

    @contextmanager
    def transaction(self, *, force_rollback: bool) -> Iterator[None]:
        assert force_rollback
        yield


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch) -> Copy:
    made = Copy()

    def cast_cells(_conn: Any, _former: Column, _column: Column, cells: Sequence[Any]) -> list[CastCell]:
        made.cast.append(len(cells))
        return [CastCell(cell, "22003" if cell >= 2**15 else "") for cell in cells]

    monkeypatch.setattr(queued, "cast_cells", cast_cells)
    return made


def batch(number: int, *minutes: int) -> WaitingBatch:
    rows = [
        value_pb2.Row(values=[value_pb2.Value(string_value=str(at)), value_pb2.Value(int64_value=one)])
        for at, one in enumerate(minutes)
    ]
    mutation = batch_pb2.DbMutation(table="job", columns=["id", "minutes"], rows=rows)
    return WaitingBatch(f"b{number}", "n", batch_pb2.DbMutationBatch(mutations=[mutation]).SerializeToString())


def test_batches_are_read_in_pieces_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "_AT_ONCE", 10)
    monkeypatch.setattr(queued, "MOST_BYTES", 30)
    assert pieces_of([]) == []
    assert pieces_of([(5, 4), (4, 6), (3, 1), (2, 12), (1, 7), (0, 1)]) == [[5, 4], [3], [2], [1]]
    assert pieces_of([(2, 50), (1, 1)]) == [[2]], "one is read, however large it is"
    inbox = Inbox(dict.fromkeys(range(12), b"x" * 4), waiting=20)
    batches = ReadBatches(inbox, 1)  # type: ignore[arg-type]
    assert (batches.read, batches.unread, inbox.asked) == (0, 13, [])
    found = iter(batches)
    assert next(found).id == "b11"
    assert inbox.asked == [[11, 10]], "no piece is read before the one before it is done"
    del inbox.payloads[8]
    assert [one.id for one in found] == ["b10", "b9", "b7", "b6", "b5"]
    assert (batches.read, batches.unread) == (6, 13)


def test_no_batch_waits() -> None:
    batches = ReadBatches(Inbox({}), 1)  # type: ignore[arg-type]
    assert (list(batches), batches.read, batches.unread) == ([], 0, 0)


def test_a_batch_has_one_trouble_for_each_column(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "_CELLS_AT_ONCE", 4)
    many = batch(1, 1, 1, 1, *range(40_000, 40_100))
    troubles = queued_troubles(copy, [many, batch(2, 5), batch(3, 50_000, 50_000)], [RETYPED])  # type: ignore[arg-type]
    assert [(one.batch_id, one.refused, one.why.split(" of ")[0]) for one in troubles] == [
        ("b1", True, "its value 40000"),
        ("b3", True, "its value 50000"),
    ]
    assert copy.cast == [4, 2], "no value twice, and none of a batch that is told"


def test_values_are_held_up_to_a_number_of_bytes(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "_CELL_BYTES_AT_ONCE", 6)
    assert queued_troubles(copy, [batch(1, *range(1, 10))], [RETYPED]) == []  # type: ignore[arg-type]
    assert copy.cast == [3, 3, 3]


def test_rows_of_a_column_that_goes_are_told_once(copy: Copy) -> None:
    gone = TableChange(JOB, replace(JOB, columns=(ID,)), dropped=(FormerColumn(MINUTES, 1),))
    [trouble] = queued_troubles(copy, [batch(1, 1, 2, 3)], [gone])  # type: ignore[arg-type]
    assert (trouble.batch_id, trouble.refused, trouble.why) == (
        *("b1", False),
        'its value of column "minutes" is kept as lost',
    )


def test_what_was_not_read_is_told() -> None:
    plan = MigrationPlan(
        "shop", 1, (), batches=7, unread=12_345, troubles=(), apps={}, left_out=(), missing=(), writes=0
    )
    words = " ".join(" ".join(line.plain for line in plan_lines(plan, 80)).split())
    assert "of 7 batches that wait (the last ones; 12,345 more were not read), 0 would be refused" in words
    assert "not read" not in " ".join(line.plain for line in plan_lines(replace(plan, unread=0), 80))
    assert plan_json(plan)["unread"] == 12_345
