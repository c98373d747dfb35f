"""Settings of snapshot, beside those that every service has."""

from __future__ import annotations

from pydantic import Field

from anabranch.runtime.config import ServiceSettings


class SnapshotSettings(ServiceSettings):
    """The settings of snapshot."""

    log_sessions: int = Field(4, ge=1, le=64)
    """Sessions that read the log; a call that needs one when all are busy waits."""
    log_wait_ms: int = Field(2_000, ge=10)
    """How long Get, FindCommon and Describe wait for their turn to read the log; then they fail OVERLOADED. Less than
    callers wait. Streams have no deadline, and wait."""
    log_statement_timeout_ms: int = Field(10_000, ge=100)
    """The longest that one read of the log may run."""
    page_bytes: int = Field(1024 * 1024, ge=16 * 1024, le=2 * 1024 * 1024)
    """Bytes of a page where the caller does not say, and of every page of a subscription."""
    page_max_bytes: int = Field(2 * 1024 * 1024, ge=16 * 1024, le=3 * 1024 * 1024)
    """The most bytes of a page, whatever the caller says."""

    poll_interval_ms: int = Field(1_000, ge=10)
    """How often the log is looked at where no notification reports a change."""
    heartbeat_ms: int = Field(3_000, ge=50)
    """How often a subscriber gets the settled position and the sums."""
    subscriber_queue_bytes: int = Field(4 * 1024 * 1024, ge=1)
    """Pages that wait for one subscriber; beyond, it goes back to paging."""
    unread_max_bytes: int = Field(256 * 1024 * 1024, ge=1024 * 1024)
    """Answers of the log that clients have not taken yet; beyond, pages are small, and the slowest subscriber is sent
    away, back to paging."""
    unread_max_bytes_per_principal: int = Field(64 * 1024 * 1024, ge=1024 * 1024)
    """The share of it that the clients of one principal may have; beyond, the same for them."""
    unread_patience_ms: int = Field(5_000, ge=10)
    """How long a client may leave an answer untaken before its call can be ended for want of room."""
    recent_pages_bytes: int = Field(8 * 1024 * 1024, ge=1)
    """Pages of a database that are kept for subscribers who come a little late."""
    fan_out_pause_us: int = Field(100, ge=0)
    """For each subscriber that got a page, the next page waits so long, at most fan_out_pause_max_ms."""
    fan_out_pause_max_ms: int = Field(100, ge=0)
    """The longest that changes wait to travel together."""
    outage_ms: int = Field(5_000, ge=0)
    """How long subscribers are kept while the log can't be read; then they are sent away."""

    node_report_ms: int = Field(1_000, ge=10)
    """How often the acknowledged positions of nodes are stored."""

    pull_sessions: int = Field(4, ge=1, le=64)
    """Pulls that read at once; others wait, and principals take turns."""
    pull_sessions_per_principal: int = Field(3, ge=1, le=64)
    """Pulls of one principal that read at once; one that is not below pull_sessions lets it have all turns."""
    pull_waiting: int = Field(200, ge=0)
    """Pulls that may wait for their turn; beyond, calls fail OVERLOADED."""
    pull_waiting_per_principal: int = Field(100, ge=0)
    """Pulls of one principal that may wait."""
    pull_least_bytes_per_s: int = Field(64 * 1024, ge=1)
    """A pull or comparison whose client takes less in the long run gives its turn back where others wait for one; it
    goes on from its resume tokens."""
    pull_least_window_ms: int = Field(15_000, ge=10)
    """How long a client may pause before that."""
    pull_turn_ms: int = Field(120_000, ge=100)
    """How long a pull or comparison keeps its turn, however fast it is, while a principal waits that has none."""
    pull_lock_timeout_ms: int = Field(10_000, ge=1)
    """How long a pull waits for the locks of its tables, and until the log has how they were altered."""
    pull_stall_ms: int = Field(60_000, ge=10)
    """How long a pull's transaction stays open while its client takes nothing; then it ends and can be resumed."""
    pull_max_ms: int = Field(3_600_000, ge=100)
    """The longest that one pull's transaction stays open; then the pull ends and can be resumed."""
    pull_batch_bytes: int = Field(2 * 1024 * 1024, ge=4 * 1024, le=64 * 1024 * 1024)
    """About how many bytes one chunk of a pull has."""

    compare_sessions: int = Field(2, ge=1, le=64)
    """Comparisons that read at once, beside the pulls; others wait."""
    compare_sessions_per_principal: int = Field(1, ge=1, le=64)
    """Comparisons of one principal that read at once."""
    compare_waiting: int = Field(100, ge=0)
    """Comparisons that may wait for their turn; beyond, calls fail OVERLOADED."""
    compare_waiting_per_principal: int = Field(50, ge=0)
    """Comparisons of one principal that may wait."""

    base_proof_wait_ms: int = Field(10_000, ge=0)
    """How long a pull waits while the published base is proven by this process; then it reads from Postgres."""
    base_retry_ms: int = Field(60_000, ge=0)
    """How long a published base that was found missing or changed is not looked at again."""
