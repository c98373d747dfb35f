"""Tells operators of a change of tables that was taken: in the log, and in metrics."""

from __future__ import annotations

import structlog

from anabranch.runtime import metrics
from anabranch_conflict_resolver.schema.group import SchemaGroup

_log = structlog.get_logger()


def told(database: str, group: SchemaGroup, took_s: float) -> None:
    """Tell of a committed group that took a change, in ``took_s`` seconds."""
    if group.version is None:
        return
    metrics.count("anabranch_schema_changes", database=database)
    metrics.count("anabranch_schema_change_rows", group.rows, database=database)
    metrics.record("anabranch_schema_change_duration", took_s, database=database)
    _log.info(
        "tables were altered: the log has the change",
        database=database,
        version=group.version,
        rows=group.rows,
        drained=group.drained,
        took_s=round(took_s, 3),
        detail=group.words,
    )
