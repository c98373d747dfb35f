"""Compares what a caller has seen with the very moment that it is served from.

A call is judged when it comes (``Log.check_seen``). After that it may wait for its turn, and a pull goes on from parts
that were sent in earlier calls; meanwhile the server may have been restored. So the transaction that gives the rows is
asked for the chains of those positions, too: where they are others, its rows belong to a history that the caller does
not follow, and none of them is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.runtime.calls.rewind import seen_of
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup, known_of
from anabranch.v1 import errors_pb2, position_pb2
from anabranch_snapshot.log import Log


@dataclass(frozen=True, slots=True)
class Past:
    """The positions that a moment must have: ``seen`` by the node (nothing where it has no seal), and ``shown`` by the
    earlier parts of a pull."""

    seen: Sequence[SeenGroup]
    shown: Sequence[SeenGroup]

    @property
    def positions(self) -> list[int]:
        """The positions for which the moment's chains are wanted."""
        return sorted({known.position for known in (*self.seen, *self.shown)})


@dataclass(frozen=True, slots=True)
class Moment:
    """The parts of a moment that are compared: ``chains`` are those at a past's positions."""

    head: int
    floor: int
    chains: Mapping[int, bytes]

    def lacks(self, past: Sequence[SeenGroup]) -> bool:
        """Whether one of these positions was lost."""
        return any(known.is_lost(self.chains.get(known.position), self.floor, self.head) for known in past)


def seen_by(database: Database, position: position_pb2.Position) -> list[SeenGroup]:
    """A node's greatest position, as far as its seal says something of the history."""
    known = known_of(database.seal_key, seen_of(position))
    return [] if known is None else [known]


async def require(
    log: Log, database: Database, moment: Moment, past: Past, greatest_seen: position_pb2.Position
) -> None:
    """Check that the moment has all of ``past``.

    Raises:
        CallError: INVALID_TOKEN where it lacks what earlier parts of a pull have shown; HISTORY_REWOUND,
        INVALID_POSITION where the server has lost what the node has seen; UNAVAILABLE where only this moment lacks it.
        psycopg.Error: the history can't be read.
    """
    if moment.lacks(past.seen):
        await log.check_seen(database, greatest_seen)
        raise CallError(errors_pb2.REASON_UNAVAILABLE, "what was read has not all that this node has seen: call again")
    if moment.lacks(past.shown):
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN,
            "the server was restored to a time before what this pull has brought: pull these tables from their start",
        )
