"""Knows the sets of readers: which audiences a caller sees at which position.

A *viewer* is a caller of a database with restricted tables: what its token's claims give, its choice, its node. What
membership queries give it is read with every page, from the position on at which the page begins, after the page: so it
covers all of it. A principal of which nothing is known yet is learned first.

Sets and pages are of one version of the rules: where these change meanwhile the call fails, and its caller calls again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.credentials.principal import Principal
from anabranch.runtime.errors import CallError
from anabranch.store.audiences.evaluated import QUERY_FAILS, read_failure
from anabranch.store.audiences.principals import Change
from anabranch.store.audiences.rules import claims_text
from anabranch.store.audiences.viewing import Memberships, apply, learn_principal, read_memberships
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.reader import NO_LIMIT, LoggedSum, Sums, read_audience_sums
from anabranch.store.session.engine import AsyncSession
from anabranch.v1 import errors_pb2, position_pb2
from anabranch.wire.audiences import digest
from anabranch_snapshot.log import Log, Reading
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.visible import Eye, SetChange, visible_page

_log = structlog.get_logger()
_NONE: frozenset[str] = frozenset()
MOST_CHOSEN = 10_000
"""The most audiences that a node may choose."""
MOST_EMPTY = 16
"""Stretches that are read for one page, where nothing of the first ones is the reader's."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A caller, by the rules of ``database``. ``claimed``: the audiences that its token gives; ``choice``: those that
    it wants, None for all; ``held``: the digest of those that its node holds. ``acting``: the role that tables are read
    as for it, and its claims as JSON, where row-level security decides, too."""

    database: Database
    principal: str
    node_id: str
    claimed: frozenset[str]
    choice: frozenset[str] | None
    held: bytes
    acting: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def has_memberships(self) -> bool:
        """Whether queries give it audiences, too."""
        return bool(self.database.audience_rules.read.memberships)

    def audiences(self, memberships: frozenset[str]) -> frozenset[str]:
        """The audiences that it sees, where queries give it ``memberships``."""
        every = self.claimed | memberships
        return every if self.choice is None else every & self.choice

    def holds(self, audiences: frozenset[str]) -> bool:
        """Whether its node holds just these."""
        return self.held == (digest(audiences) if self.held or audiences else b"")

    def changes(self, memberships: frozenset[str], changes: Mapping[int, Change]) -> tuple[SetChange, ...]:
        """How its audiences change, from where queries give it ``memberships``, by changes of these."""
        found: list[SetChange] = []
        for position, change in changes.items():
            after = apply(memberships, change)
            was, is_now = self.audiences(memberships), self.audiences(after)
            if was != is_now:
                found.append(SetChange(position, is_now - was, was - is_now))
            memberships = after
        return tuple(found)


def viewer_of(database: Database, principal: Principal, state: position_pb2.NodeState) -> Viewer:
    """The viewer of a call.

    Raises:
        CallError: INVALID_REQUEST.
    """
    held = state.held
    if len(held.choice) > MOST_CHOSEN:
        raise CallError(
            errors_pb2.REASON_INVALID_REQUEST, f"node_state.held.choice has more than {MOST_CHOSEN} entries"
        )
    role = database.audience_rules.rls_role
    return Viewer(
        database,
        principal.subject,
        state.node.id,
        database.audience_rules.read.claimed(principal.claims),
        frozenset(held.choice) if held.chosen else None,
        held.digest,
        (role, claims_text(principal.subject, principal.claims)) if role else None,
    )


@dataclass(frozen=True, slots=True)
class SeenPage:
    """A viewer's page. ``memberships``: what queries give it where the page ends, ``audiences``: what it sees there."""

    reading: Reading
    memberships: frozenset[str]
    audiences: frozenset[str]


class Viewers:
    """The sets of all viewers, and the pages that come of them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._learning: dict[int, asyncio.Lock] = {}

    async def memberships(self, viewer: Viewer, position: int) -> Memberships:
        """The audiences that queries give a viewer at a position, and behind it.

        Raises:
            CallError: UNAVAILABLE: the rules have just changed, or a query fails for a principal of which nothing is
                known yet.
            psycopg.Error: it can't be read.
        """
        database = viewer.database
        if not viewer.has_memberships:
            return Memberships(_NONE, MappingProxyType({}), database.schema_version)

        async def read(conn: AsyncSession) -> Memberships | None:
            return await read_memberships(conn, database.id, viewer.principal, position)

        found = await self._log.with_session(read)
        if found is None:
            await self.learn(viewer)
            found = await self._log.with_session(read)
        if found is None:
            raise self._log.changed(database)
        self._log.require_version(database, found.schema_version)
        return found

    async def seen_since(self, viewer: Viewer, position: int) -> frozenset[str] | None:
        """The audiences of a viewer at a position; None where that is not known, or where it has lost one of them
        since. Raises as ``memberships``."""
        found = await self.memberships(viewer, position)
        if viewer.has_memberships and found.learned_ms >= position:
            return None
        seen = viewer.audiences(found.audiences)
        return seen if seen <= viewer.audiences(found.at_head) else None

    def now(self, viewer: Viewer, memberships: frozenset[str] | None) -> frozenset[str]:
        """The audiences of a viewer in a moment in which ``memberships`` were read for it. Raises CallError UNAVAILABLE
        where its principal was not known there."""
        if memberships is None and viewer.has_memberships:
            raise self._log.changed(viewer.database)
        return viewer.audiences(memberships or _NONE)

    async def learn(self, viewer: Viewer) -> None:
        """Have a viewer's principal known. Raises as ``memberships``."""
        database, now_ms = viewer.database, self._log.now_ms()

        async def learn(conn: AsyncSession) -> bool:
            return await learn_principal(conn, database, viewer.principal, now_ms)

        # One at a time: each waits for the claim, and the resolver waits for it meanwhile.
        async with self._learning.setdefault(database.id, asyncio.Lock()):
            try:
                learned = await self._log.with_claiming(learn)
            except QUERY_FAILS as error:
                raise _fails(database, read_failure(error)) from error
        if not learned:
            raise self._log.changed(database)

    async def read(
        self,
        viewer: Viewer,
        place: Place,
        max_bytes: int,
        up_to: int = NO_LIMIT,
        *,
        known: Sequence[SeenGroup] = (),
        resumed: SeenGroup | None = None,
        seen: bytes = b"",
        first: bool = True,
    ) -> SeenPage:
        """A viewer's next page, as ``Log.read`` has it for everybody. ``seen``: the digest of what the viewer must see
        where the page begins; ``first``: the page says all that it sees there, unless the viewer's node holds just
        that.

        Raises:
            CallError: as ``Log.read``.
            psycopg.Error: the log can't be read.
        """
        start = place
        for left in reversed(range(MOST_EMPTY)):
            passage = await self._log.passage(viewer.database, place, max_bytes, up_to, known=known, resumed=resumed)
            standing = await self.memberships(viewer, passage.after)
            audiences = viewer.audiences(standing.audiences)
            if seen and seen != digest(audiences):
                raise CallError(
                    errors_pb2.REASON_INVALID_TOKEN, "page_token was given to a node with other audiences: start again"
                )
            within = {position: one for position, one in standing.changes.items() if position <= passage.up_to}
            eye = Eye(audiences, viewer.changes(standing.audiences, within), viewer.node_id)
            visible = visible_page(passage, eye)
            reading = Reading(visible.page, passage.end, passage.stretch, passage.end != start)
            if not visible.is_empty or passage.stretch.exhausted or not left:
                break
            # Nothing of it is the viewer's, whose audiences are so the same behind it.
            place, known, resumed = passage.end, [*known, reading.known], None
        if first and not viewer.holds(audiences):
            reading.page.audiences.values.extend(sorted(audiences))
            reading.page.audiences.SetInParent()
        memberships = standing.audiences
        for position, change in within.items():
            if position <= passage.settled:
                memberships = apply(memberships, change)
        return SeenPage(reading, memberships, viewer.audiences(memberships))

    async def sums(self, viewer: Viewer, page: SeenPage) -> list[LoggedSum]:
        """The sums that a viewer may compare at the end of its page, as far as they have not changed since. Raises as
        ``sums_of``."""
        sums, rows = await self.sums_of(viewer.database, page.audiences)
        return [*sums.open_rows, *rows]

    async def sums_of(self, database: Database, audiences: Collection[str]) -> tuple[Sums, list[LoggedSum]]:
        """Head and sums of one moment, and of the restricted tables those of some audiences, as far as they have not
        changed since.

        Raises:
            CallError: UNAVAILABLE, UNKNOWN_DATABASE.
            psycopg.Error: they can't be read.
        """
        sums = await self._log.sums(database)
        self._log.require_version(database, sums.schema_version)
        rows: list[LoggedSum] = []
        if audiences:

            async def read(conn: AsyncSession) -> list[LoggedSum]:
                return await read_audience_sums(conn, database.id, audiences)

            rows = await self._log.with_session(read)
        return sums, [row for row in rows if row.position <= sums.head]


def _fails(database: Database, failure: Mapping[str, str | None]) -> CallError:
    """The failure of a call whose principal can't be learned, logged and counted."""
    metrics.count("anabranch_membership_query_failures", database=database.name)
    _log.error(
        "a membership query fails: new principals can't read until the query or what it reads is mended",
        database=database.name,
        **failure,
    )
    return CallError(
        errors_pb2.REASON_UNAVAILABLE,
        f"a membership query of {database.name!r} fails, which says what this principal may see: try again later",
    )
