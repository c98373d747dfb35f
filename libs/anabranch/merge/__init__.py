"""The conflict rules: values in, decision out. No clock, no I/O, no randomness; the standard library only.

``resolve`` decides a batch against a view of the rows it touches, ``applied`` carries a row's history forward over the
writes made, ``shown`` lays a device's pending changes over its base. ``order`` defines the order of writes, ``rows``
the rules and late arrival.
"""

from anabranch.merge.columns import COMPUTED, FUNCTION, check_policy, function_of
from anabranch.merge.equality import same
from anabranch.merge.forward import applied
from anabranch.merge.model import (
    Accepted,
    Answers,
    Asked,
    Batch,
    Conflict,
    Decision,
    Mutation,
    MutationOutcome,
    MutationType,
    Outcome,
    Parked,
    Policy,
    Question,
    Rejected,
    RejectionReason,
    RowChange,
    RowState,
    RowVersion,
    Stamp,
    View,
    Write,
)
from anabranch.merge.order import SERVER_NODE, place_of, ulid_time_ms
from anabranch.merge.overlay import Pending, shown
from anabranch.merge.resolve import resolve

__all__ = [
    "COMPUTED",
    "FUNCTION",
    "SERVER_NODE",
    "Accepted",
    "Answers",
    "Asked",
    "Batch",
    "Conflict",
    "Decision",
    "Mutation",
    "MutationOutcome",
    "MutationType",
    "Outcome",
    "Parked",
    "Pending",
    "Policy",
    "Question",
    "Rejected",
    "RejectionReason",
    "RowChange",
    "RowState",
    "RowVersion",
    "Stamp",
    "View",
    "Write",
    "applied",
    "check_policy",
    "function_of",
    "place_of",
    "resolve",
    "same",
    "shown",
    "ulid_time_ms",
]
