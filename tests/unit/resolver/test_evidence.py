"""The failure of a batch that was alone, as evidence against it."""

from __future__ import annotations

import pytest

from anabranch.store.inbox.take import KILLED, LOST, PROGRAM
from anabranch.store.session.errors import Fault, Remedy
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.blame.evidence import (
    CONTROLS,
    CONTROLS_OF_A_LOST_SESSION,
    GIVEN_UP,
    Suspicion,
    given_up,
    of_captured,
    suspicion,
)


def fault(sqlstate: str, *, raised: bool = False) -> Fault:
    return Fault(Remedy.RETRY, sqlstate, raised=raised)


@pytest.mark.parametrize("sqlstate", ["53100", "53300", "57P03", "55P03"])
def test_what_postgres_says_of_itself_has_the_batch_rest_unless_a_function_raised_it(sqlstate: str) -> None:
    assert suspicion(fault(sqlstate), tried_long=False) == Suspicion(sqlstate, CONTROLS, counts=False)
    assert suspicion(fault(sqlstate, raised=True), tried_long=False) == Suspicion(sqlstate, CONTROLS)


@pytest.mark.parametrize("sqlstate", ["25006", "26000"])
@pytest.mark.parametrize("raised", [False, True])
def test_what_the_control_would_meet_as_well_counts(sqlstate: str, raised: bool) -> None:
    assert suspicion(fault(sqlstate, raised=raised), tried_long=False) == Suspicion(sqlstate, CONTROLS)


@pytest.mark.parametrize(("sqlstate", "kept"), [("", LOST), ("57P01", "57P01"), ("57P02", "57P02"), ("08006", "08006")])
def test_a_session_that_ended_needs_many_that_pass(sqlstate: str, kept: str) -> None:
    assert suspicion(fault(sqlstate), tried_long=True) == Suspicion(kept, CONTROLS_OF_A_LOST_SESSION)


def test_time_that_ran_out_counts_for_good_once_the_batch_had_more_of_it() -> None:
    assert suspicion(fault("57014"), tried_long=False) == Suspicion("57014", CONTROLS)
    assert suspicion(fault("57014"), tried_long=True) == Suspicion("57014", CONTROLS, last=True)
    assert suspicion(fault("40P01"), tried_long=True) == Suspicion("40P01", CONTROLS)


def test_a_fault_of_the_program_counts() -> None:
    assert suspicion(None, tried_long=True) == Suspicion(PROGRAM, CONTROLS)


@pytest.mark.parametrize(
    ("failure", "reason", "sqlstate"),
    [
        (PROGRAM, errors_pb2.REASON_INTERNAL, ""),
        (KILLED, errors_pb2.REASON_INTERNAL, ""),
        ("57014", errors_pb2.REASON_TOO_SLOW, "57014"),
        (LOST, errors_pb2.REASON_DATABASE_FAILURE, ""),
        ("XX000", errors_pb2.REASON_DATABASE_FAILURE, "XX000"),
    ],
)
def test_who_is_given_up_is_told_why(failure: str, reason: int, sqlstate: str) -> None:
    refusal = given_up(failure)
    assert (refusal.reason, refusal.sqlstate) == (reason, sqlstate)
    assert refusal.reason in GIVEN_UP
    assert refusal.message


@pytest.mark.parametrize("sqlstate", ["25006", "26000", "53100", "53300", "57P03", "55P03"])
def test_no_table_is_at_fault_for_what_postgres_or_a_session_was_in(sqlstate: str) -> None:
    assert not of_captured(fault(sqlstate))
    assert of_captured(fault(sqlstate, raised=True))


def test_any_other_failure_may_come_from_captured_changes() -> None:
    assert of_captured(None)
    assert of_captured(fault("54000"))
    assert of_captured(fault(""))
