"""The roles as which a process commits groups: by database, each looked up once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Lock

import structlog

from anabranch.runtime import metrics
from anabranch.store.session.engine import Session
from anabranch.store.writers.judged import JudgedRole, judge, lacking
from anabranch.store.writers.own_writer import own_writer, role_of
from anabranch.store.writers.retired import drop_retired

_log = structlog.get_logger()
_AGAIN_S = 30.0
"""How long, in seconds, groups are committed as a superuser until it is looked whether the server lets the writer
in."""


@dataclass(slots=True)
class Writers:
    """Shared by all threads. ``url``: the services'. ``shared``: that of the sessions that commit groups of all
    databases; None: each database has a writer of its own, which is made. ``trusting``: what is told of rights is meant
    so."""

    url: str
    shared: str | None = None
    trusting: bool = False
    _lock: Lock = field(default_factory=Lock)
    _urls: dict[int, str] = field(default_factory=dict)
    _again_s: dict[int, float] = field(default_factory=dict)
    """When to look anew, of those that have none (``time.monotonic``)."""
    _told: set[str | None] = field(default_factory=set)
    _excessive: set[str] = field(default_factory=set)

    @property
    def listens_as(self) -> str:
        """The URL of sessions that look at all databases, in which no code of the application's owners runs: their role
        sees the sessions of all writers, and may end them."""
        return self.url if self.shared is None else self.shared

    @property
    def reach_keys(self) -> bool:
        """Whether groups are committed as the services' role."""
        return self.shared == self.url

    def __call__(self, database_id: int) -> str:
        """The URL of sessions that commit a database's groups: a superuser's only where the server lets no writer in.
        It may take seconds, the first time.

        Raises:
            UnknownDatabaseError: there is no such database.
            psycopg.Error: a writer can't be made.
        """
        if self.shared is not None:
            return self.shared
        found = self._urls.get(database_id)
        if found is None or (found == self.url and time.monotonic() > self._again_s.get(database_id, 0.0)):
            return self._make(database_id)
        return found

    def forget(self, database_id: int) -> None:
        """Look a database's writer up anew: it was not let in."""
        self._urls.pop(database_id, None)

    def tell(self, session: Session) -> None:
        """Say of each role that commits groups, and was not told of yet, whether it may do more than that takes, and
        whether it may do all of it. ``session``: one of ``listens_as``. Raises psycopg.Error."""
        with self._lock:
            roles = {None if url == self.listens_as else role_of(url) for url in self._urls.values()}
        for role in ({None} if self.shared is not None else roles) - self._told:
            self._tell(judge(session, role), lacking(session, role))
            self._told.add(role)

    def _make(self, database_id: int) -> str:
        own = own_writer(self.url, database_id)
        with self._lock:
            if own is None:
                self._again_s[database_id] = time.monotonic() + _AGAIN_S
            self._urls[database_id] = own or self.url
        return own or self.url

    def _tell(self, judged: JudgedRole, lacks: list[str]) -> None:
        (self._excessive.add if judged.excess else self._excessive.discard)(judged.name)
        metrics.gauge("anabranch_writer_excess", int(bool(self._excessive)))
        if judged.excess and self.trusting:
            _log.info("code of the synced tables' owners is trusted", role=judged.name, rights=judged.excess)
        elif judged.excess:
            _log.warning(
                "code of the synced tables' owners (triggers, defaults) runs as a role that may do more than groups "
                "take: revoke it, give ANABRANCH_WRITER_POSTGRES_URL with a role of `anabranch database writer ROLE`, "
                "or say ANABRANCH_TRUST_OWNERS=true",
                role=judged.name,
                rights=judged.excess,
            )
        if lacks:
            text = (
                "the role that commits groups may not write to synced tables, or policies hide rows from it: run "
                "`anabranch database writer` again, and give it BYPASSRLS"
            )
            _log.error(text, role=judged.name, tables=lacks)


def drop_others(url: str) -> None:
    """Drop the writers of older releases and of databases that are gone, and say so. Raises psycopg.Error."""
    retired = drop_retired(url)
    if retired.dropped:
        _log.info("roles as which groups were committed once are dropped", roles=retired.dropped)
    if retired.owners:
        text = (
            "roles as which groups were committed once own something, and keep their rights: look at what it is, "
            "then drop them"
        )
        _log.warning(text, roles=retired.owners)
