"""A batch on its way through a group, and its possible results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from anabranch.merge import Accepted, Batch, Write
from anabranch.store.audiences.affected import ChangedRows
from anabranch.store.group.chain import Joined
from anabranch.store.group.rows import Row
from anabranch.store.inbox.parking import Parking
from anabranch.store.inbox.take import Taken
from anabranch.v1 import errors_pb2
from anabranch.values import Cell
from anabranch.wire.effects import Effect
from anabranch_conflict_resolver.batch.decode import Decoded
from anabranch_conflict_resolver.batch.shown import AudienceChanges, Shown

_FORBIDDEN = "its audiences are none of those that the principal may write to, or a policy of the table hides it"


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A batch that the rules decide. ``may_wait``: its park time is not over. ``may_await_row``: nor is the time for
    which it waits for a row that an earlier batch of its node may bring."""

    taken: Taken
    decoded: Decoded
    place: int
    may_wait: bool
    may_await_row: bool


@dataclass(frozen=True, slots=True, eq=False)
class Accepting:
    """A batch that the rules accept: as they took it, and the writes that they decided."""

    candidate: Candidate
    batch: Batch
    decision: Accepted


@dataclass(slots=True)
class Spill:
    """Effects of a batch that are in the log already: ``count`` of them, the first with the number ``ordinal``.
    ``place``: how many of the batch's changes that are held stand before them. ``hashes``: theirs, end to end, in
    pieces; ``sum_changes``, ``audience_changes`` and ``changed`` as in ``Records``."""

    place: int
    ordinal: int
    count: int = 0
    hashes: list[bytes] = field(default_factory=list)
    sum_changes: dict[str, tuple[int, int]] = field(default_factory=dict)
    audience_changes: AudienceChanges = field(default_factory=dict)
    changed: ChangedRows = field(default_factory=ChangedRows)


@dataclass(frozen=True, slots=True)
class Change:
    """A write that was carried out, and its effect. ``shown``: of a restricted table, whom the row was and is for;
    ``rows``: of a table that membership queries read, the row before and after."""

    write: Write
    effect: Effect
    shown: Shown | None = None
    rows: tuple[Row | None, Row | None] | None = None


@dataclass(slots=True)
class Made:
    """The results of a batch's statements so far. ``spills``: changes that they caused, too many to be held."""

    changes: list[Change] = field(default_factory=list)
    spills: list[Spill] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Applied:
    """The batch is in the tables. ``superseded``: by mutation, the row as it then stands (None: there is none) where a
    value of the mutation lost."""

    taken: Taken
    accepting: Accepting
    changes: Sequence[Change]
    spills: Sequence[Spill]
    superseded: Mapping[int, Row | None]

    @property
    def candidate(self) -> Candidate:
        """The batch."""
        return self.accepting.candidate

    @property
    def decision(self) -> Accepted:
        """The writes that the rules decided."""
        return self.accepting.decision


@dataclass(frozen=True, slots=True)
class Rejection:
    """Nothing of the batch is in the tables. ``reason`` is an ``anabranch.v1.Reason``; ``table`` is "" where no
    mutation is to blame, ``key`` empty where no row is; ``server_row`` the row as it stands, where there is one.
    ``by_itself``: it would be refused in whatever company."""

    taken: Taken
    reason: int
    message: str
    mutation: int = 0
    table: str = ""
    key: Sequence[Cell] = ()
    columns: Sequence[str] = ()
    server_row: Row | None = None
    constraint: str = ""
    sqlstate: str = ""
    by_itself: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The batch stays in the inbox. ``why`` names in words the thing that it waits for."""

    taken: Taken
    parking: Parking
    why: str


def forbidden(candidate: Candidate, write: Write, called: str) -> Rejection:
    """The rejection of a batch that writes to a row, or leaves one, that its principal may not write. ``called``: the
    table's name in SQL."""
    return Rejection(
        candidate.taken,
        errors_pb2.REASON_FORBIDDEN,
        f'this principal may not write the row of table "{called}", as it was or as it would be: {_FORBIDDEN}',
        write.mutation,
        write.table,
        candidate.decoded.keys[write.table, write.key],
    )


def numbered(changes: Sequence[Change], spills: Sequence[Spill]) -> Iterator[tuple[int, Change]]:
    """A batch's changes that are held, with the numbers of their effects."""
    past = [0] * (len(changes) + 1)
    for spill in spills:
        past[spill.place] += spill.count
    for place, (change, more) in enumerate(zip(changes, accumulate(past[:-1]), strict=True)):
        yield place + more, change


def joined(hashes: Sequence[bytes], spills: Sequence[Spill]) -> Joined:
    """The hashes of all effects of a batch in their order: ``hashes`` of those that are held, and the others."""
    pieces: list[bytes] = []
    done = 0
    for spill in spills:
        pieces += [*hashes[done : spill.place], *spill.hashes]
        done = spill.place
    return Joined(len(hashes) + sum(spill.count for spill in spills), [*pieces, *hashes[done:]])


Result = Applied | Rejection | Waiting
