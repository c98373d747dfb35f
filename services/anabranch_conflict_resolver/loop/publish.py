"""Publishes groups in metrics and traces, and rejections after repeated failures in the log."""

from __future__ import annotations

from collections import Counter

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.errors import reason_name
from anabranch.runtime.telemetry import span, tracing
from anabranch.v1 import errors_pb2, verdict_pb2
from anabranch.wire.enum_names import enum_name
from anabranch_conflict_resolver.batch.results import Applied, Rejection
from anabranch_conflict_resolver.blame.evidence import GIVEN_UP
from anabranch_conflict_resolver.group.outcome import Outcome

_log = structlog.get_logger()


def publish(outcome: Outcome, took_s: float) -> None:
    """Publish a group that took ``took_s`` seconds."""
    name = outcome.name
    verdicts: Counter[tuple[str, str]] = Counter()
    mutations: Counter[int] = Counter()
    for result in outcome.results:
        if isinstance(result, Applied):
            verdicts["APPLIED", ""] += 1
            mutations.update([int(one.outcome) for one in result.decision.outcomes])
        elif isinstance(result, Rejection):
            reason = errors_pb2.Reason.ValueType(result.reason)
            verdicts["REJECTED", reason_name(reason)] += 1
            if reason in GIVEN_UP:
                _log.error(
                    "batch rejected after failing alone",
                    database=name,
                    batch=result.taken.batch_id,
                    reason=reason_name(reason),
                    sqlstate=result.sqlstate,
                )
    if verdicts:
        for (status, reason_text), count in verdicts.items():
            metrics.count("anabranch_verdicts", count, database=name, status=status, reason=reason_text)
        for number, count in mutations.items():
            label = enum_name(verdict_pb2.Outcome, number)
            metrics.count("anabranch_mutations", count, database=name, outcome=label)
        metrics.count("anabranch_groups", database=name)
        metrics.record("anabranch_group_size", outcome.decided, database=name)
        metrics.record("anabranch_group_duration", took_s, database=name)
    if tracing():
        _trace(outcome)


def _trace(outcome: Outcome) -> None:
    """A mark in the trace of every batch that came with one, so that it can be followed from its device."""
    for result in outcome.results:
        taken = result.taken
        if taken.traceparent:
            with span("decided", parent=taken.traceparent) as mark:
                mark.set_attribute("anabranch.batch", taken.batch_id)
                mark.set_attribute("anabranch.position", outcome.position)
                mark.set_attribute("anabranch.result", type(result).__name__)
