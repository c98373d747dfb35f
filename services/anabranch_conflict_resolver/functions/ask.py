"""Decisions that depend on the application's merge functions: asks them, checks the answers, hands them to the rules.

A function is foreign code in the middle of a group. So it runs in a process of its own (``functions``), one call has
a time limit, and so have all calls of a group together: past ``GROUP_S`` batches that would ask are put off to the next
group, and nothing else waits for them. An answer is kept for the group: however often a group is cut and tried again,
no question is asked twice, and a group that was tried again gets further than before.

A question that fails (an exception, no answer in time, a value that the column can't hold) rejects the batch that
asked, and no other.
"""

from __future__ import annotations

import json
import marshal
import time
from dataclasses import dataclass

from anabranch import limits
from anabranch.merge import Accepted, Asked, Batch, Parked, Question, Rejected, View, resolve
from anabranch.values import Cell, Column, Kind
from anabranch.values.messages import column_reader, column_writer
from anabranch_conflict_resolver.functions.child import Asking, NotNowError, plain
from anabranch_conflict_resolver.group.tables import SyncedDatabase

GROUP_S = 1.0
ROUNDS_AT_MOST = 64
"""How often one batch may change a row that asks each time."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The question that got no value, and why."""

    question: Question
    why: str


@dataclass(frozen=True, slots=True)
class PutOff:
    """There was no time for all questions."""


def with_answers(
    asking: Asking, synced: SyncedDatabase, batch: Batch, view: View, asked: Asked
) -> Accepted | Rejected | Parked | Unanswered | PutOff:
    """The decision on a batch that has questions."""
    answers: dict[tuple[int, int], dict[str, Cell]] = {}
    for _ in range(ROUNDS_AT_MOST):
        for question in asked.questions:
            column = synced.tables[question.table].table.by_name[question.column]
            try:
                value = _ask(asking, column, question)
            except NotNowError:
                return PutOff()
            except ValueError as error:
                return Unanswered(question, str(error))
            answers.setdefault((question.mutation, question.row), {})[question.column] = value
        decision = resolve(batch, view, synced.database.table_policy, answers)
        if not isinstance(decision, Asked):
            return decision
        asked = decision
    return Unanswered(asked.questions[0], f"the batch changes one row more than {ROUNDS_AT_MOST} times")


def _ask(asking: Asking, column: Column, question: Question) -> Cell:
    """The value. Raises NotNowError; ValueError says why there is none."""
    if asking.functions is None:
        raise ValueError("functions are not run here")
    known = marshal.dumps((question.function, *map(plain, (question.base, question.stored, question.incoming))))
    answer = asking.answers.get(known)
    if answer is None:
        if asking.spent_s >= GROUP_S:
            raise NotNowError
        started = time.monotonic()
        try:
            answer = asking.functions.ask(question.function, question.base, question.stored, question.incoming)
        finally:
            asking.spent_s += time.monotonic() - started
        asking.answers[known] = answer
    if answer.failure:
        raise ValueError(answer.failure)
    return fitting(column, answer.value)


def fitting(column: Column, value: Cell) -> Cell:
    """``value`` as a cell of ``column``, checked as a device's value is.

    Raises:
        ValueError: it is none.
    """
    if value is None:
        if column.not_null:
            raise ValueError("it returned None, and the column is not null")
        return None
    wrong = ValueError(f"it returned a {type(value).__name__}, which is no value of type {column.postgres_type}")
    if (column.kind is Kind.ARRAY) != isinstance(value, tuple):
        raise wrong
    try:
        cell = column_reader(column)(column_writer(column)(value))
        if column.kind is Kind.JSON:
            json.loads(str(cell))
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if _holds_nul(cell):
        raise ValueError("it returned text with a NUL character, which Postgres cannot hold")
    if isinstance(cell, str | bytes) and len(cell) > limits.MAX_VALUE_BYTES:
        raise ValueError(f"it returned a value of more than {limits.MAX_VALUE_BYTES} bytes")
    return cell


def _holds_nul(cell: Cell) -> bool:
    if isinstance(cell, tuple):
        return any(map(_holds_nul, cell))
    return isinstance(cell, str) and "\0" in cell
