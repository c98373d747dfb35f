"""Rejections of batches that Postgres refused, or that had no effect."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.merge import MutationType, Write
from anabranch.store.group.rows import Row
from anabranch.store.group.waves import DatabaseError
from anabranch.store.session.errors import Fault, Remedy, read_error
from anabranch.v1 import errors_pb2
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.results import Candidate, Rejection, Result
from anabranch_conflict_resolver.blame.evidence import LOCK_NOT_AVAILABLE
from anabranch_conflict_resolver.blame.refusal_words import column_of, message
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.setback import Setback, Why
from anabranch_conflict_resolver.group.view import View

_FAILURES = frozenset({errors_pb2.REASON_CONSTRAINT, errors_pb2.REASON_NO_EFFECT, errors_pb2.REASON_FORBIDDEN})


def any_failed(results: Sequence[Result]) -> bool:
    """Whether one of the batches was rejected because of Postgres, and not by the rules."""
    return any(isinstance(result, Rejection) and result.reason in _FAILURES for result in results)


def fault_of(context: Context, error: DatabaseError, *, blame_keys: bool) -> Fault | Setback:
    """Judge a failed statement on the synced tables. ``blame_keys``: a duplicate primary key is the batch's fault,
    and no sign that the view is outdated.

    Raises:
        DatabaseError: no batch is at fault; roll back and try again.
    """
    fault = read_error(error, primary_keys=() if blame_keys else context.synced.primary_keys)
    if fault.remedy is Remedy.RESTART:
        return Setback(Why.OUTDATED)
    if fault.remedy is Remedy.RETRY and (fault.sqlstate != LOCK_NOT_AVAILABLE or fault.raised):
        # A function that says of itself that it waited for a lock may say so for ever.
        raise error
    return fault


def no_effect(view: View, candidate: Candidate, write: Write) -> Rejection:
    """The rejection of a batch with a write that changed nothing."""
    verb = {MutationType.INSERT: "insert", MutationType.UPDATE: "update", MutationType.DELETE: "delete"}
    message = (
        f"the {verb[write.type]} changed nothing: a trigger or rule of the table suppressed it" if write.type else ""
    )
    key, row = _row_of(view, candidate, write)
    return Rejection(
        candidate.taken, errors_pb2.REASON_NO_EFFECT, message, write.mutation, write.table, key, server_row=row
    )


def refused(
    context: Context,
    view: View,
    candidate: Candidate,
    step: Sequence[Write],
    fault: Fault,
    *,
    by_itself: bool = False,
) -> Rejection:
    """The rejection of a batch because of a step of its writes; its row is named where it is known to be the one."""
    tables = context.synced.tables
    write = next((write for write in step if tables[write.table].table.sql_name == fault.table), step[0])
    if fault.reason is None:
        raise AssertionError("a batch is rejected only for a fault of its own")
    column = column_of(context, write, fault)
    key, row = _row_of(view, candidate, write) if len(step) == 1 else ((), None)
    return Rejection(
        candidate.taken,
        int(fault.reason),
        message(context, write, fault, column),
        write.mutation,
        write.table,
        key,
        (column,) if column else (),
        row,
        fault.constraint,
        fault.sqlstate,
        by_itself,
    )


def _row_of(view: View, candidate: Candidate, write: Write) -> tuple[Sequence[Cell], Row | None]:
    at = (write.table, write.key)
    return candidate.decoded.keys[at], view.rows.get(at)
