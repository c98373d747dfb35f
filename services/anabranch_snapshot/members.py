"""Members of a tail: subscribers with what they see; and the pieces of the log that they are offered.

A *piece* is a passage that the tail has read, with how it changes audiences. It makes each page once, for all that see
the same of it. It concerns the members that have an audience which it touches, whose audiences it changes, or whose
node made one of its batches; these are found by indices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from anabranch.runtime import metrics
from anabranch.store.audiences.principals import Change
from anabranch.store.audiences.viewing import apply
from anabranch_snapshot.log import Log, Reading
from anabranch_snapshot.passages import Passage
from anabranch_snapshot.subscriber import Shared, Subscriber
from anabranch_snapshot.tail import to_response
from anabranch_snapshot.viewers import Viewer
from anabranch_snapshot.visible import Eye, narrowed, visible_page


class Member:
    """A subscriber, and what it sees where its queue ends: ``memberships`` are those at the position ``settled``."""

    __slots__ = ("audiences", "memberships", "settled", "subscriber", "viewer")

    def __init__(self, subscriber: Subscriber, viewer: Viewer, memberships: frozenset[str], settled: int) -> None:
        self.subscriber = subscriber
        self.viewer = viewer
        self.memberships = memberships
        self.settled = settled
        self.audiences = viewer.audiences(memberships)

    def eye(self, piece: PassagePiece) -> Eye:
        """Its eye for a piece that it has not got, which brings it to the piece's end."""
        passage = piece.passage
        own = piece.changes_of(self.viewer.principal)
        coming = {position: change for position, change in own.items() if position > self.settled}
        eye = Eye(self.audiences, self.viewer.changes(self.memberships, coming), self.viewer.node_id)
        for position, change in coming.items():
            # A group that goes on changes them again in its next part, from where they were.
            if position <= passage.settled:
                self.memberships = apply(self.memberships, change)
        self.settled = max(self.settled, passage.settled)
        if coming:
            self.audiences = self.viewer.audiences(self.memberships)
        return eye


class _Made(NamedTuple):
    shared: Shared | None
    silent: frozenset[str]


class PassagePiece:
    """A passage, the ``changes`` of audiences in it, and the responses that were made of it."""

    def __init__(
        self, log: Log, passage: Passage, changes: Mapping[int, Mapping[str, Change]], traceparent: str
    ) -> None:
        self.passage = passage
        self.start = passage.start
        self.end = passage.end
        self._log = log
        self._traceparent = traceparent
        self._size = passage.size
        self._by_principal: dict[str, dict[int, Change]] = {}
        for position, by_principal in sorted(changes.items()):
            for principal, change in by_principal.items():
                self._by_principal.setdefault(principal, {})[position] = change
        self._made: dict[Eye, _Made] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def principals(self) -> Iterable[str]:
        """The principals whose audiences it changes."""
        return self._by_principal

    def changes_of(self, principal: str) -> Mapping[int, Change]:
        """How it changes what queries give a principal, by position in order."""
        return self._by_principal.get(principal, {})

    def shared(self, eye: Eye) -> Shared | None:
        """The response for a reader; one object for all that see the same, None where they see nothing."""
        key = narrowed(self.passage, eye)
        made = self._make(key)
        if eye.node_id in made.silent:
            made = self._make(key._replace(node_id=eye.node_id))
        return made.shared

    def forget(self) -> None:
        """Drop the responses that were made."""
        self._made.clear()

    def _make(self, key: Eye) -> _Made:
        made = self._made.get(key)
        if made is None:
            passage = self.passage
            visible = visible_page(passage, key)
            shared = None
            if not visible.is_empty:
                metrics.count("anabranch_log_pages", database=passage.database.name)
                reading = Reading(visible.page, passage.end, passage.stretch, True)
                data = to_response(self._log, passage.database, reading, self._traceparent)
                shared = Shared(self.start, self.end, data, reading.known)
            made = self._made[key] = _Made(shared, visible.silent)
        return made


class Members:
    """All members, by what may concern them."""

    def __init__(self) -> None:
        self.all: dict[Subscriber, Member] = {}
        self.by_audience: defaultdict[str, set[Member]] = defaultdict(set)
        self._by_principal: defaultdict[str, set[Member]] = defaultdict(set)
        self._by_node: defaultdict[str, set[Member]] = defaultdict(set)

    def add(self, member: Member) -> None:
        """Take a member in."""
        self.all[member.subscriber] = member
        for index, name in self._entries(member):
            index[name].add(member)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a member, if it is one."""
        member = self.all.pop(subscriber, None)
        if member is not None:
            for index, name in self._entries(member):
                index[name].discard(member)
                if not index[name]:
                    del index[name]

    def change(self, member: Member, before: frozenset[str]) -> None:
        """A member's audiences are no longer those ``before``."""
        for audience in before - member.audiences:
            self.by_audience[audience].discard(member)
            if not self.by_audience[audience]:
                del self.by_audience[audience]
        for audience in member.audiences - before:
            self.by_audience[audience].add(member)

    @property
    def principals(self) -> set[str]:
        """The principals of the members."""
        return set(self._by_principal)

    def of(self, principal: str) -> set[Member]:
        """The members of a principal."""
        return set(self._by_principal.get(principal, ()))

    def concerned(self, piece: PassagePiece) -> set[Member]:
        """Those whom a piece concerns."""
        found: set[Member] = set()
        for index, names in (
            (self.by_audience, piece.passage.touched),
            (self._by_principal, piece.principals),
            (self._by_node, piece.passage.nodes),
        ):
            for name in names:
                if members := index.get(name):
                    found |= members
        return found

    def _entries(self, member: Member) -> Iterator[tuple[defaultdict[str, set[Member]], str]]:
        for audience in member.audiences:
            yield self.by_audience, audience
        yield self._by_principal, member.viewer.principal
        yield self._by_node, member.viewer.node_id
