"""Settings of ingest, beside those that every service has."""

from __future__ import annotations

from pydantic import Field

from anabranch.runtime.config import ServiceSettings


class IngestSettings(ServiceSettings):
    """The settings of ingest."""

    append_sessions: int = Field(1, ge=1, le=16)
    """Sessions that append: while one commits, the next collects."""
    append_max_batches: int = Field(2_000, ge=1)
    """The most batches that share one commit."""
    append_max_bytes: int = Field(8 * 1024 * 1024, ge=1)
    """The most payload bytes that share one commit; a larger batch has one of its own."""
    append_timeout_ms: int = Field(10_000, ge=100)
    """The longest that one append may run."""
    queue_max_batches: int = Field(50_000, ge=1)
    """Batches taken in and not yet appended; beyond, calls fail OVERLOADED."""
    queue_max_bytes: int = Field(128 * 1024 * 1024, ge=1)
    """Payload bytes taken in and not yet appended; beyond, calls fail OVERLOADED."""
    memory_max_bytes: int = Field(512 * 1024 * 1024, ge=1)
    """Bytes of requests under way and of payloads in parts; beyond, calls fail OVERLOADED."""
    principal_max_parts_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Bytes of one principal's unfinished payloads in parts; beyond, calls fail OVERLOADED. One payload is taken in any
    case."""
    part_wait_ms: int = Field(60_000, ge=10)
    """The longest that the next part of a payload may be waited for."""
    parts_max_ms: int = Field(900_000, ge=10)
    """The longest from the first part of a payload to its last; the largest then needs some 40 kB/s."""

    principal_max_waiting_batches: int = Field(50_000, ge=1)
    """Batches of one principal that wait for a verdict in one database; beyond, calls fail OVERLOADED."""
    principal_max_waiting_bytes: int = Field(1024 * 1024 * 1024, ge=1)
    """Payload bytes of one principal's batches that wait for a verdict in one database; beyond, calls fail OVERLOADED.
    One call is taken in any case."""
    principal_batches_per_s: float = Field(50_000.0, gt=0)
    """Batches of one principal a second, sent again or not; beyond, calls fail OVERLOADED, and streams wait."""
    principal_batches_burst: int = Field(100_000, ge=1)
    """Batches that it may send at once after a silence."""

    wait_default_ms: int = Field(10_000, ge=1)
    """How long a call without a deadline waits for its verdicts."""
    wait_max_ms: int = Field(60_000, ge=1)
    """The longest that any call waits for its verdicts."""
    answer_margin_ms: int = Field(100, ge=1)
    """A call is answered so long before its deadline, PENDING where there is no verdict; for short deadlines a tenth of
    the time that was left."""
    poll_interval_ms: int = Field(1_000, ge=10)
    """How often ingest looks for verdicts that no notification has reported."""

    stream_window_batches: int = Field(5_000, ge=1)
    """Batches of one stream without a verdict; beyond, nothing more is read from it."""
    stream_max_ms: int = Field(3_600_000, ge=1_000)
    """The longest that a stream without a deadline lasts."""
