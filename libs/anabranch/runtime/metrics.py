"""Every metric of every service, in one table, and the instruments made from it.

A service counts through ``count``, ``record`` and ``gauge``, by the name in the table. Dashboards and alerts
are tested against ``prometheus_name``. Labels have few values (a status, a reason, a database); never a node
or a principal. Until ``telemetry.start`` has run, the instruments do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opentelemetry import metrics

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (
    0.0005,
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
    0.064,
    0.125,
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    8.0,
    16.0,
    32.0,
)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. ``unit`` is ``1`` for a plain count, ``s`` or ``By``; ``bounds`` are a
    histogram's."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    bounds: tuple[float, ...] = ()


METRICS: tuple[Metric, ...] = (
    # Every service.
    Metric("anabranch_calls", "counter", "1", ("method", "code"), "Calls that ended, by their gRPC code"),
    Metric(
        "anabranch_call_duration",
        "histogram",
        "s",
        ("method",),
        "From a unary call's arrival to its answer",
        SECONDS,
    ),
    Metric("anabranch_open_streams", "gauge", "1", (), "Streams open now"),
    Metric("anabranch_refused_credentials", "counter", "1", ("reason",), "Calls refused for their credentials"),
    Metric("anabranch_ready", "gauge", "1", (), "1 while the service is ready, else 0"),
    Metric("anabranch_pool_in_use", "gauge", "1", (), "Connections of the pool that are in use"),
    Metric("anabranch_pool_waiting", "gauge", "1", (), "Requests that wait for a connection of the pool"),
    # ingest.
    Metric("anabranch_batches_received", "counter", "1", ("database",), "Batches taken in, repeats included"),
    Metric(
        "anabranch_batch_bytes_received",
        "counter",
        "By",
        ("database",),
        "Payload bytes of the batches taken in",
    ),
    Metric("anabranch_append_size", "histogram", "1", (), "Batches that shared one commit of the inbox", SIZES),
    Metric(
        "anabranch_append_duration",
        "histogram",
        "s",
        (),
        "One append to the inbox, its commit included",
        SECONDS,
    ),
    Metric(
        "anabranch_verdict_wait",
        "histogram",
        "s",
        ("database",),
        "From a batch's append to its verdict's delivery",
        SECONDS,
    ),
    # conflict-resolver.
    Metric(
        "anabranch_verdicts",
        "counter",
        "1",
        ("database", "status", "reason"),
        "Verdicts by status and reason",
    ),
    Metric(
        "anabranch_mutations",
        "counter",
        "1",
        ("database", "outcome"),
        "Mutations of accepted batches by outcome",
    ),
    Metric("anabranch_groups", "counter", "1", ("database",), "Group commits"),
    Metric("anabranch_group_size", "histogram", "1", ("database",), "Batches decided by one group commit", SIZES),
    Metric(
        "anabranch_group_duration",
        "histogram",
        "s",
        ("database",),
        "One group commit, from claim to commit",
        SECONDS,
    ),
    Metric("anabranch_group_retries", "counter", "1", ("database", "cause"), "Groups rolled back and tried again"),
    Metric("anabranch_inbox_backlog", "gauge", "1", ("database",), "Batches in the inbox that could be decided"),
    Metric(
        "anabranch_inbox_parked",
        "gauge",
        "1",
        ("database",),
        "Batches in the inbox that wait for a row or a batch",
    ),
    # snapshot.
    Metric("anabranch_subscribers", "gauge", "1", ("database",), "Subscribers that follow the log now"),
    Metric("anabranch_log_sent_bytes", "counter", "By", ("database",), "Bytes of log pages sent"),
    Metric("anabranch_pull_rows", "counter", "1", ("database",), "Rows sent by pulls"),
    Metric(
        "anabranch_delivery_lag",
        "histogram",
        "s",
        ("database",),
        "From a group's position to its page's sending",
        SECONDS,
    ),
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}

_meter = metrics.get_meter("anabranch")
_counters = {
    metric.name: _meter.create_counter(metric.name, metric.unit, metric.meaning)
    for metric in METRICS
    if metric.kind == "counter"
}
_gauges = {
    metric.name: _meter.create_gauge(metric.name, metric.unit, metric.meaning)
    for metric in METRICS
    if metric.kind == "gauge"
}
_histograms = {
    metric.name: _meter.create_histogram(
        metric.name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metric.bounds
    )
    for metric in METRICS
    if metric.kind == "histogram"
}


def _check(name: str, labels: dict[str, str]) -> None:
    declared = BY_NAME[name].labels
    if len(labels) != len(declared) or any(label not in labels for label in declared):
        raise ValueError(f"{name} has the labels {declared}, not {tuple(labels)}")


def count(name: str, amount: int = 1, **labels: str) -> None:
    """Add to a counter. Raises KeyError for a name that is no counter in the table, ValueError for other
    labels."""
    _check(name, labels)
    _counters[name].add(amount, labels)


def record(name: str, value: float, **labels: str) -> None:
    """Put a value (seconds, or a count) into a histogram. Raises as ``count``."""
    _check(name, labels)
    _histograms[name].record(value, labels)


def gauge(name: str, value: float, **labels: str) -> None:
    """Set a gauge. Raises as ``count``."""
    _check(name, labels)
    _gauges[name].set(value, labels)


_UNIT_SUFFIX = {"1": "", "s": "_seconds", "By": "_bytes"}


def prometheus_name(metric: Metric) -> str:
    """The name that the Prometheus endpoint shows; a histogram's has ``_bucket``, ``_sum`` and ``_count``
    after it."""
    suffix = _UNIT_SUFFIX[metric.unit]
    name = metric.name if metric.name.endswith(suffix) else metric.name + suffix
    return f"{name}_total" if metric.kind == "counter" else name
