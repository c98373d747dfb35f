"""Settings of the retention-janitor, beside those that every service has. How long things are kept is none of them:
that is a database's policy."""

from __future__ import annotations

from pydantic import Field

from anabranch.runtime.config import ServiceSettings

_HOUR_MS = 3_600_000


class JanitorSettings(ServiceSettings):
    """The settings of the janitor."""

    sweep_interval_ms: int = Field(600_000, ge=100)
    """From the end of a sweep to the begin of the next one."""
    census_interval_ms: int = Field(15_000, ge=100)
    """How often the nodes are counted and the floor's bounds looked at, for the metrics."""
    sweep_max_ms: int = Field(300_000, ge=100)
    """How long a sweep may take; the next one goes on where it ended."""
    sweep_statement_timeout_ms: int = Field(2_000, ge=10)
    """The longest that one statement of a sweep may run; what takes longer is done in smaller pieces."""
    sweep_lock_timeout_ms: int = Field(100, ge=1)
    """How long a statement waits for a lock that others may hold; then it is left for a later sweep."""
    sweep_max_rows: int = Field(10_000, ge=1, le=1_000_000)
    """The most rows that one statement removes."""
    floor_max_changes: int = Field(200_000, ge=1)
    """The most changes, if they are of more than one group, over which the floor moves in one step, each proven by
    itself."""
    tombstone_pages: int = Field(2_000, ge=1)
    """Pages of the row versions that are looked through at a time."""
    log_partition_ms: int = Field(24 * _HOUR_MS, ge=60_000)
    """How much time a partition of the log holds."""
    log_partitions_ahead: int = Field(3, ge=1, le=100)
    """Partitions that are made before they are needed, beside the one that is."""
