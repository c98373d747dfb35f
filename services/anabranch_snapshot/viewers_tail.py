"""Follows the log of a database with restricted tables: each change is read once, and made into as many pages as there
are readers who see different things of it.

A piece of the log concerns some members (``members``), so that the work follows the audiences of a change and not the
number of streams. The others see of it what nobody's audiences give: the changes of open tables, in bytes that all
share, or nothing. Who gets nothing is told some time later where it stands, again in shared bytes: at the latest with
the next heartbeat.

Groups say how audiences change of those principals only that are known. One that has no node is forgotten in time: its
members fail then, and are learned when they come again.

Passages are kept for subscribers who come a little late, and not pages: any reader's page can be made of them.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping

from anabranch.clock import Clock
from anabranch.store.audiences.principals import Change
from anabranch.store.audiences.viewing import read_changes, read_known
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.reader import LoggedSum
from anabranch.store.session.engine import AsyncSession
from anabranch.v1 import change_pb2
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.log import Log
from anabranch_snapshot.members import Member, Members, PassagePiece
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.pages import to_sum
from anabranch_snapshot.passages import Passage
from anabranch_snapshot.subscriber import Shared, Subscriber
from anabranch_snapshot.tail import TailOf
from anabranch_snapshot.viewers import Viewer, Viewers
from anabranch_snapshot.visible import Eye

_NOBODY = Eye(frozenset())
CHECK_S = 60.0
"""How often it is looked, in seconds, whether the members' principals are known."""
_MOVE_S, _MOVE_EACH_S = 0.1, 0.001
"""Members who got nothing are told where they stand after so many seconds, and so many more for each member."""


class ViewersTail(TailOf[PassagePiece]):
    """The tail of a database with restricted tables, by the tables and rules of one schema version. Where these change
    its subscribers fail, and subscribe again."""

    def __init__(
        self, database: Database, log: Log, viewers: Viewers, settings: SnapshotSettings, clock: Clock
    ) -> None:
        super().__init__(database, log, settings, clock)
        self._viewers = viewers
        self._members = Members()
        self._check_at = time.monotonic() + CHECK_S

    def attach_viewer(self, place: Place, viewer: Viewer, memberships: frozenset[str]) -> Subscriber | None:
        """A live subscriber of a viewer that stands at ``place``, where queries give it ``memberships``; None where it
        has to read on by itself first."""
        if viewer.database.schema_version != self.database.schema_version:
            raise self._log.changed(self.database)
        missed = self._missed(place)
        if missed is None:
            return None
        subscriber = Subscriber(place, self._settings.subscriber_queue_bytes, gaps=True)
        member = Member(subscriber, viewer, memberships, place.cursor.least_needed - 1)
        for piece in missed:
            shared = piece.shared(member.eye(piece))
            piece.forget()
            if shared is not None and not subscriber.offer(shared):
                return None
        self._members.add(member)
        self._add(subscriber)
        return subscriber

    def detach(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        self._members.remove(subscriber)
        super().detach(subscriber)

    async def _advance(self, place: Place) -> bool:
        passage = await self._log.passage(self.database, place, self._settings.page_bytes, known=self._known)
        self._known = [SeenGroup(passage.stretch.head, passage.stretch.head_chain)]
        if passage.end == place:
            return False
        changes = await self._changes(passage)
        with self._delivering() as traceparent:
            piece = PassagePiece(self._log, passage, changes, traceparent)
            self._keep(piece)
            self._fan_out(piece)
            self._delivered(passage.stretch)
        return True

    async def _changes(self, passage: Passage) -> Mapping[int, Mapping[str, Change]]:
        if not self.database.audience_rules.read.memberships:
            return {}

        async def read(conn: AsyncSession) -> Mapping[int, Mapping[str, Change]]:
            return await read_changes(conn, self.database.id, passage.after, passage.up_to)

        return await self._log.with_session(read)

    def _fan_out(self, piece: PassagePiece) -> None:
        concerned = self._members.concerned(piece)
        lost = [member.subscriber for member in concerned if not self._show(member, piece)]
        shared = piece.shared(_NOBODY)
        self._reached = len(concerned)
        if shared is not None:
            others = self._members.all.keys() - {member.subscriber for member in concerned}
            lost += [subscriber for subscriber in others if not subscriber.offer(shared)]
            self._reached += len(others)
        else:
            self._move_at = min(self._move_at, time.monotonic() + _MOVE_S + _MOVE_EACH_S * len(self._members.all))
        piece.forget()
        self._drop(lost)

    def _show(self, member: Member, piece: PassagePiece) -> bool:
        """Offer a member its page of a piece; whether it is still live."""
        if member.subscriber.next.cursor >= piece.end.cursor:
            # It has read further by itself.
            return True
        before = member.audiences
        shared = piece.shared(member.eye(piece))
        if before != member.audiences:
            self._members.change(member, before)
        return shared is None or member.subscriber.offer(shared)

    def _drop(self, lost: list[Subscriber]) -> None:
        for subscriber in lost:
            self._members.remove(subscriber)
        self._overflowed(lost)

    async def _follow(self) -> None:
        await super()._follow()
        if time.monotonic() >= self._move_at:
            self._move_at = math.inf
            self._move()

    def _move(self) -> None:
        """Tell those who stand behind the tail only because they see nothing of what is between."""
        place = self._place
        if place is None or not self._recent or not place.cursor.between_groups:
            return
        last = self._recent[-1].passage.stretch
        response = change_pb2.SubscribeResponse(
            state=self._log.state(self.database, last.reached, last.chain, last.floor, last.schema_version)
        )
        shared = Shared(place, place, response.SerializeToString(), self._known[0])
        self._drop([one for one in self._members.all if one.next.cursor < place.cursor and not one.offer(shared)])

    async def _check_known(self) -> None:
        """Fail the members whose principals are no longer known.

        Raises:
            psycopg.Error: it can't be looked up.
        """
        principals = self._members.principals
        if not principals or not self.database.audience_rules.read.memberships:
            return

        async def read(conn: AsyncSession) -> set[str]:
            return await read_known(conn, self.database.id, principals)

        for principal in principals - await self._log.with_session(read):
            for member in self._members.of(principal):
                member.subscriber.fail(self._log.changed(self.database))

    async def _beat(self) -> bool:
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_S
            await self._check_known()
        sums, rows = await self._viewers.sums_of(self.database, self._members.by_audience.keys())
        place = self._place
        if place is None or not self._is_settled(sums):
            return False
        state = self._log.state(self.database, sums.head, sums.chain, sums.floor, sums.schema_version)
        by_audience: defaultdict[str, list[LoggedSum]] = defaultdict(list)
        for row in rows:
            by_audience[row.audience].append(row)
        beats: dict[frozenset[str], Shared] = {}
        lost: list[Subscriber] = []
        for subscriber, member in self._members.all.items():
            beat = beats.get(member.audiences)
            if beat is None:
                seen = [
                    row for audience in sorted(member.audiences & by_audience.keys()) for row in by_audience[audience]
                ]
                response = change_pb2.SubscribeResponse(state=state, sums=map(to_sum, [*sums.open_rows, *seen]))
                known = SeenGroup(sums.head, sums.chain)
                beat = beats[member.audiences] = Shared(place, place, response.SerializeToString(), known)
            if not subscriber.offer(beat):
                lost.append(subscriber)
        self._drop(lost)
        return True
