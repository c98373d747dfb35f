"""Settings of the conflict-resolver, beside those that every service has."""

from __future__ import annotations

from pydantic import Field, SecretStr, model_validator

from anabranch.runtime.config import PREFIX, ServiceSettings
from anabranch.store.inbox.claim import session_options
from anabranch.store.session.engine import SessionOptions
from anabranch.store.writers.own_writer import is_superuser


class ResolverSettings(ServiceSettings):
    """The settings of the conflict-resolver."""

    writer_postgres_url: SecretStr | None = None
    """Where groups of all databases are committed: `postgres_url` with another role, a writer (`anabranch database
    writer`). Code of the synced tables' owners runs as this role. None: where `postgres_url` is a superuser's, as a
    writer of each database that is made for it; else as its role."""
    trust_owners: bool = False
    """Commit groups as the role of `postgres_url`, whatever it may do: for an installation where whoever owns a synced
    table may do the same."""
    resolver_workers: int = Field(2, ge=1, le=64)
    """Databases that this process commits groups of at the same time; each has a session of its own."""
    resolver_sessions: int = Field(16, ge=1, le=1_000)
    """The most sessions that this process commits groups with, and no fewer than workers: each database has a writer,
    and so a session, of its own. One that is needed beyond them takes the place of the one that was used longest ago;
    all but as many as there are workers are closed after a minute without work."""
    group_max_batches: int = Field(2_000, ge=1, le=20_000)
    """The most batches of one group. How many it really takes follows what waits and how long the last group took."""
    group_max_bytes: int = Field(8 * 1024 * 1024, ge=1)
    """The most payload bytes of one group; a larger batch has one of its own."""
    group_target_ms: int = Field(250, ge=1)
    """Groups that take longer than twice this get smaller."""
    group_statement_timeout_ms: int = Field(10_000, ge=100)
    """The longest that one statement of a group may run."""
    group_alone_timeout_ms: int = Field(60_000, ge=100)
    """The longest that a group takes of one batch that has failed alone before: its delete may cascade far. All others
    of the database wait so long, once; where it does not suffice, the batch is rejected."""
    group_lock_timeout_ms: int = Field(250, ge=1)
    """The longest that one statement of a group waits for another session's lock."""
    claim_idle_ms: int = Field(3_000, ge=100)
    """A resolver that does nothing for so long inside a transaction loses its claim."""
    poll_interval_ms: int = Field(500, ge=10)
    """How often the resolver looks for work that no notification has reported."""
    captured_poll_interval_ms: int = Field(200, ge=1)
    """The interval of looks for captured changes where none came for long; while they come it is every few
    milliseconds."""
    busy_ms: int = Field(100, ge=1)
    """How long a batch rests whose row another session has locked."""
    rest_ms: int = Field(1_000, ge=1)
    """How long a batch rests that failed alone for no fault that could be named; four times as long the next time."""
    function_timeout_ms: int = Field(500, ge=10, le=1_000)
    """The longest that one call of an application's merge function may run. Less than ``claim_idle_ms`` by so much that
    a group survives several that overrun."""
    explain_lock_timeout_ms: int = Field(100, ge=1)
    """The longest that a dry run waits for another session's lock."""
    explain_timeout_ms: int = Field(2_000, ge=10)
    """The longest that a dry run may take."""

    @model_validator(mode="after")
    def _one_of_both(self) -> ResolverSettings:
        if self.trust_owners and self.writer_postgres_url is not None:
            raise ValueError(f"{PREFIX}TRUST_OWNERS and {PREFIX}WRITER_POSTGRES_URL: give one of them")
        return self

    def shared_writer(self) -> str | None:
        """The URL of the sessions that commit the groups of all databases; None where each database has a writer of its
        own: for a superuser, unless its owner says otherwise.

        Raises:
            psycopg.Error: the server can't be reached.
        """
        if self.writer_postgres_url is not None:
            return self.writer_postgres_url.get_secret_value()
        url = self.postgres_url.get_secret_value()
        return url if self.trust_owners or not is_superuser(url) else None


def group_options(settings: ResolverSettings) -> SessionOptions:
    """The time limits of a group's session: for statements, for locks, and for silence."""
    return session_options(
        statement_timeout_ms=settings.group_statement_timeout_ms,
        lock_timeout_ms=settings.group_lock_timeout_ms,
        idle_timeout_ms=settings.claim_idle_ms,
    )


def explain_options(settings: ResolverSettings) -> SessionOptions:
    """The time limits of a dry run's session."""
    return session_options(
        statement_timeout_ms=settings.explain_timeout_ms,
        lock_timeout_ms=settings.explain_lock_timeout_ms,
        idle_timeout_ms=settings.claim_idle_ms,
    )
