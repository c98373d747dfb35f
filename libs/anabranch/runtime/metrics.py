"""Every metric of every service, in one table, and the instruments made from it.

A name in the table has no unit: ``prometheus_name`` adds it. A service counts through ``count``, ``record`` and
``gauge``, by the name in the table. Dashboards and alerts are tested against ``prometheus_name``. Labels have few
values (a status, a reason, a database); never a node or a principal. Until ``telemetry.start`` has run, nothing is
exported.
"""

from __future__ import annotations

from collections.abc import Callable
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
    Metric("anabranch_key_set_reads", "counter", "1", ("result",), "Readings of the tokens' key set, by their result"),
    Metric("anabranch_ready", "gauge", "1", (), "1 while the service is ready, else 0"),
    Metric("anabranch_pool_in_use", "gauge", "1", (), "Connections of the pool that are in use"),
    Metric("anabranch_pool_open", "gauge", "1", (), "Connections of the pool"),
    Metric("anabranch_pool_waiting", "gauge", "1", (), "Requests that wait for a connection of the pool"),
    Metric("anabranch_pool_refused", "counter", "1", (), "Requests that got no connection of the pool in time"),
    Metric("anabranch_failures", "counter", "1", ("reason",), "Calls that failed, by the reason that the caller got"),
    Metric(
        "anabranch_notifications_ignored",
        "counter",
        "1",
        (),
        "Notifications that say nothing here: without the form of ours, or of a database that is not known",
    ),
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
    Metric(
        "anabranch_drain_failures",
        "counter",
        "1",
        ("database", "cause"),
        "Groups rolled back that had nothing but captured changes to drain",
    ),
    Metric("anabranch_schema_changes", "counter", "1", ("database",), "Changes of tables by DDL that entered the log"),
    Metric(
        "anabranch_schema_change_rows",
        "counter",
        "1",
        ("database",),
        "Rows of altered tables of which the log tells values that no captured change has",
    ),
    Metric(
        "anabranch_schema_change_duration",
        "histogram",
        "s",
        ("database",),
        "One group commit that takes a change of tables; batches wait meanwhile",
        SECONDS,
    ),
    Metric(
        "anabranch_membership_query_failures",
        "counter",
        "1",
        ("database",),
        "Failures of membership queries: the audiences of those for whom they fail stay as they were meanwhile",
    ),
    Metric(
        "anabranch_writer_excess",
        "gauge",
        "1",
        (),
        "1 while groups are committed as a role that may do more than that takes, as code of tables' owners then may",
    ),
    # The janitor reports the next four, too, when no resolver runs.
    Metric("anabranch_inbox_backlog", "gauge", "1", ("database",), "Batches in the inbox that could be decided"),
    Metric(
        "anabranch_inbox_parked",
        "gauge",
        "1",
        ("database",),
        "Batches in the inbox that wait for a row or a batch",
    ),
    Metric(
        "anabranch_captured_backlog",
        "gauge",
        "1",
        ("database",),
        "Captured changes of direct SQL that the log lacks yet, and what registrations that were cut off gather",
    ),
    Metric(
        "anabranch_captured_age",
        "gauge",
        "s",
        ("database",),
        "For how long the oldest of them has been seen to wait",
    ),
    Metric(
        "anabranch_schema_version",
        "gauge",
        "1",
        ("database",),
        "The schema version of a database: one more with each change of its synced tables by DDL",
    ),
    Metric(
        "anabranch_schema_changes_waiting",
        "gauge",
        "1",
        ("database",),
        "Changes of synced tables by DDL that the log lacks yet: until it has them no batches are decided",
    ),
    Metric(
        "anabranch_schema_change_age",
        "gauge",
        "s",
        ("database",),
        "For how long the oldest of them has been seen to wait",
    ),
    # snapshot.
    Metric("anabranch_subscribers", "gauge", "1", ("database",), "Subscribers that follow the log now"),
    Metric(
        "anabranch_log_pages",
        "counter",
        "1",
        ("database",),
        "Pages of the log encoded once for all subscribers together",
    ),
    Metric(
        "anabranch_subscriber_overflows",
        "counter",
        "1",
        ("database",),
        "Subscribers that were too slow for the live log and went back to paging",
    ),
    Metric("anabranch_unread", "gauge", "By", (), "Answers of the log that clients have not taken yet, in whole MiB"),
    Metric(
        "anabranch_calls_dropped",
        "counter",
        "1",
        ("why",),
        "Calls that were ended because others needed the room (unread) or the turn (slow) of a slow client, or because "
        "somebody waited to alter the table that was read (altered)",
    ),
    Metric("anabranch_log_sent_bytes", "counter", "By", ("database",), "Bytes of log pages sent"),
    Metric("anabranch_pulls", "gauge", "1", ("state",), "Pulls that are reading, and pulls that wait for their turn"),
    Metric(
        "anabranch_comparisons",
        "gauge",
        "1",
        ("state",),
        "Comparisons that are reading, and comparisons that wait for their turn",
    ),
    Metric(
        "anabranch_sums_disagreed",
        "counter",
        "1",
        ("database",),
        "Tables that a node found not to have the server's rows",
    ),
    Metric("anabranch_pull_rows", "counter", "1", ("database",), "Rows sent by pulls"),
    Metric("anabranch_pull_bytes", "counter", "By", ("database",), "Bytes of the rows sent by pulls, as Arrow"),
    Metric(
        "anabranch_pull_sources",
        "counter",
        "1",
        ("database", "source", "why"),
        "Pulls by what they were served from, parquet or postgres, and why Postgres",
    ),
    Metric(
        "anabranch_base_broken",
        "gauge",
        "1",
        ("database",),
        "1 while pulls go to Postgres because the published base is not as proven",
    ),
    Metric(
        "anabranch_delivery_lag",
        "histogram",
        "s",
        ("database",),
        "From a group's position to its page's sending",
        SECONDS,
    ),
    # compactor.
    Metric("anabranch_compacted_changes", "counter", "1", ("database",), "Changes in published runs"),
    Metric("anabranch_compaction_bytes", "counter", "By", ("database",), "Bytes of the files of published runs"),
    Metric("anabranch_compaction_files", "counter", "1", ("database",), "Files of published runs"),
    Metric(
        "anabranch_compaction_lag",
        "gauge",
        "s",
        ("database",),
        "From the compacted position to the head; reported by the janitor, too, when no run is under way",
    ),
    # retention-janitor.
    Metric(
        "anabranch_inbox_age",
        "gauge",
        "s",
        ("database",),
        "How long the oldest batch has waited that could be decided",
    ),
    Metric(
        "anabranch_tables_not_synced",
        "gauge",
        "1",
        ("database", "why"),
        "Tables that are registered and not synced: changed, torn, or with their capture turned off",
    ),
    Metric(
        "anabranch_nodes", "gauge", "1", ("database", "seen"), "Nodes, by the shortest time within which they called"
    ),
    Metric(
        "anabranch_floor_bound_age",
        "gauge",
        "s",
        ("database", "hold"),
        "From where each bound would let the floor be to now: the oldest one is what holds it",
    ),
    Metric(
        "anabranch_device_dead_letters",
        "gauge",
        "1",
        ("database", "reason"),
        "Dead letters that devices hold, as each last reported, by reason",
    ),
    Metric("anabranch_epochs_ended", "gauge", "1", ("database",), "Epochs that ended because the history was rewound"),
    Metric("anabranch_sweeps", "counter", "1", ("outcome",), "Sweeps: done, unfinished, failed, or another's turn"),
    Metric("anabranch_retention_removed", "counter", "1", ("database", "what"), "Rows removed by sweeps, by kind"),
    Metric("anabranch_floor_age", "gauge", "s", ("database",), "From the floor to the last sweep: how much is kept"),
    Metric(
        "anabranch_proof_broken",
        "gauge",
        "1",
        ("database",),
        "1 while the log is not cut because its files are not as proven",
    ),
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}

Values = dict[tuple[str, ...], float]
"""Of one counter or gauge: the labels' values, in the table's order, to the value."""

_totals: dict[str, Values] = {metric.name: {} for metric in METRICS if metric.kind == "counter"}
_levels: dict[str, Values] = {metric.name: {} for metric in METRICS if metric.kind == "gauge"}


def _observe(metric: Metric, values: Values) -> Callable[[metrics.CallbackOptions], list[metrics.Observation]]:
    def observe(_options: metrics.CallbackOptions) -> list[metrics.Observation]:
        # Called in the reader's thread; list() of a dict is one step that no other thread can interrupt.
        return [
            metrics.Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for labels, value in list(values.items())
        ]

    return observe


# Counters and gauges are kept here and read when they are exported: that costs a call a tenth of what OpenTelemetry's
# own instruments do.
_meter = metrics.get_meter("anabranch")
_histograms: dict[str, metrics.Histogram] = {}
for _metric in METRICS:
    if _metric.kind == "histogram":
        _histograms[_metric.name] = _meter.create_histogram(
            _metric.name, _metric.unit, _metric.meaning, explicit_bucket_boundaries_advisory=_metric.bounds
        )
    elif _metric.kind == "counter":
        _callbacks = [_observe(_metric, _totals[_metric.name])]
        _meter.create_observable_counter(_metric.name, _callbacks, _metric.unit, _metric.meaning)
    else:
        _callbacks = [_observe(_metric, _levels[_metric.name])]
        _meter.create_observable_gauge(_metric.name, _callbacks, _metric.unit, _metric.meaning)


def _label_values(name: str, labels: dict[str, str]) -> tuple[str, ...]:
    declared = BY_NAME[name].labels
    try:
        values = tuple([labels[label] for label in declared])
    except KeyError:
        values = ()
    if len(labels) != len(declared) or len(values) != len(declared):
        raise ValueError(f"{name} has the labels {declared}, not {tuple(labels)}")
    return values


def count(name: str, amount: int = 1, **labels: str) -> None:
    """Add to a counter; from the event loop's thread only. Raises KeyError for a name that is no counter in the
    table, ValueError for other labels."""
    totals = _totals[name]
    values = _label_values(name, labels)
    totals[values] = totals.get(values, 0) + amount


def record(name: str, value: float, **labels: str) -> None:
    """Put a value (seconds, or a count) into a histogram. Raises as ``count``."""
    histogram = _histograms[name]
    _label_values(name, labels)
    histogram.record(value, labels)


def gauge(name: str, value: float, **labels: str) -> None:
    """Set a gauge. Raises as ``count``."""
    _levels[name][_label_values(name, labels)] = value


def gauges(name: str, values: Values) -> None:
    """Set all values of a gauge, by its labels' values in the table's order: values that are not among them are
    removed. Raises KeyError for a name that is no gauge in the table."""
    levels = _levels[name]
    levels.update(values)
    for labels in [labels for labels in levels if labels not in values]:
        del levels[labels]


_UNIT_SUFFIX = {"1": "", "s": "_seconds", "By": "_bytes"}


def prometheus_name(metric: Metric) -> str:
    """The name that the Prometheus endpoint shows; a histogram's has ``_bucket``, ``_sum`` and ``_count``
    after it."""
    suffix = _UNIT_SUFFIX[metric.unit]
    name = metric.name if metric.name.endswith(suffix) else metric.name + suffix
    return f"{name}_total" if metric.kind == "counter" else name
