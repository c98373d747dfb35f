"""Tells operators of a change of tables that was taken: in the log, and in metrics."""

from __future__ import annotations

import structlog

from anabranch.runtime import metrics

_log = structlog.get_logger()


def tell(database: str, version: int, words: str, *, rows: int, drained: int, took_s: float) -> None:
    """Tell of a committed group that took a change, which made a schema version: the change in words, the rows of which
    values were told, and the captured changes that were drained with it."""
    metrics.count("anabranch_schema_changes", database=database)
    metrics.count("anabranch_schema_change_rows", rows, database=database)
    metrics.record("anabranch_schema_change_duration", took_s, database=database)
    _log.info(
        "tables were altered: the log has the change",
        database=database,
        version=version,
        rows=rows,
        drained=drained,
        took_s=round(took_s, 3),
        detail=words,
    )
