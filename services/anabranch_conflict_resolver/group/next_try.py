"""The settings of a try of a group, and the next try after each setback. No statement is run here.

Each setback takes a batch away, is counted, or makes the next try more careful than the one before: so tries end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from anabranch.store.inbox.parking import Parking
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Candidate, Rejection, Result, Waiting, forbidden
from anabranch_conflict_resolver.blame.rejections import no_effect
from anabranch_conflict_resolver.group.cuts import levels
from anabranch_conflict_resolver.group.setback import RefusedKey, Setback, Why
from anabranch_conflict_resolver.group.view import View

OVERTAKEN_AT_MOST = 5
"""How often a group starts again from the locks because others came first, before its batches rest."""
_FOREIGN_KEY_VIOLATION = "23503"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The settings of a try. ``optimistic``: as if no change were caused beside those that batches name. ``drains``:
    captured changes wait, and are drained behind the locks. ``expects_bad``: batches that break a constraint are looked
    for before anything is written, as long as that succeeds (``sets_apart``). ``one_by_one``: the batches have failed
    together, and the bad ones are to be found. ``lock_too``: rows to lock beside those that the batches name, with
    their keys. ``held``: batches that were taken with the group and wait already, and their nodes. ``restarts``: how
    often the group may still start again where a primary key was there that the view did not have; after that it is the
    batch's fault. ``overtaken``: how often it has started again because others came first."""

    optimistic: bool = False
    drains: bool = False
    expects_bad: bool = False
    sets_apart: bool = True
    one_by_one: bool = False
    lock_too: Mapping[RowKey, tuple[Cell, ...]] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 3
    overtaken: int = 0

    def looks_first(self, batches: Sequence[Candidate]) -> bool:
        """Whether the bad ones among ``batches`` are looked for before anything is written."""
        return self.sets_apart and self.expects_bad and len(batches) > 1

    @property
    def blames_keys(self) -> bool:
        """Whether a duplicate primary key is the batch's fault."""
        return self.restarts <= 0


@dataclass(frozen=True, slots=True)
class Retry:
    """The try was undone. ``attempt`` is the next one, of the batches that are ``left``; ``results`` are those of
    batches that are decided, or wait, because of it."""

    attempt: Attempt
    left: Sequence[Candidate]
    why: Why
    results: Sequence[Result] = ()


@dataclass(frozen=True, slots=True)
class Tried:
    """A try that was set back. ``may_cause``: some tables' changes may cause others. ``rest_until_ms``: until when a
    batch rests that is put off. ``acts``: batches are written as another role, whose policies decide. ``called``: the
    tables' names in SQL."""

    attempt: Attempt
    batches: Sequence[Candidate]
    setback: Setback
    may_cause: bool
    rest_until_ms: int
    acts: bool = False
    called: Mapping[str, str] = field(default_factory=dict)


def next_try(tried: Tried) -> Retry:
    """Return the next try after a setback."""
    # Only a setback that asks to look for bad batches one by one leads to that again.
    at_first = replace(tried, attempt=replace(tried.attempt, one_by_one=False))
    attempt, left, results = TABLE[tried.setback.why](at_first)
    return Retry(attempt, left, tried.setback.why, results)


_Next = tuple[Attempt, Sequence[Candidate], Sequence[Result]]


def _without_batches(tried: Tried) -> _Next:
    return tried.attempt, (), ()


def _outdated(tried: Tried) -> _Next:
    # A change that came between was captured, if it was not made by a batch.
    attempt = replace(tried.attempt, optimistic=False, restarts=tried.attempt.restarts - 1, drains=True)
    return attempt, tried.batches, ()


def _overtaken(tried: Tried) -> _Next:
    attempt = replace(tried.attempt, drains=True, overtaken=tried.attempt.overtaken + 1)
    if attempt.overtaken <= OVERTAKEN_AT_MOST:
        return replace(attempt, lock_too={**attempt.lock_too, **tried.setback.caused}), tried.batches, ()
    # Rows that they cause to change are changed by others too often now, which is no batch's fault.
    why = "rows that it changes beside its own, and others at the same time"
    return _resting(replace(tried, attempt=replace(attempt, lock_too={})), tried.batches, why)


def _foreseen(tried: Tried) -> _Next:
    return replace(tried.attempt, optimistic=False), tried.batches, ()


def _only_the_first(tried: Tried) -> _Next:
    return tried.attempt, tried.batches[:1], ()


def _up_to_it(tried: Tried) -> _Next:
    # Those that come after it are for the next group.
    last = max(tried.setback.batches)
    return tried.attempt, [c for c in tried.batches if c.taken.batch_id <= last], ()


def _without_effect(tried: Tried) -> _Next:
    if tried.attempt.optimistic and tried.may_cause:
        # A row may be gone because of another batch's caused changes, which were not looked at yet.
        return _foreseen(tried)
    writes = tried.setback.writes
    if tried.acts:
        # A row that a policy hides is not there for a statement.
        return _without_forbidden(tried)
    rejected = [no_effect(View(), c, writes[c.taken.batch_id]) for c in tried.batches if c.taken.batch_id in writes]
    return tried.attempt, [c for c in tried.batches if c.taken.batch_id not in writes], rejected


def _without_forbidden(tried: Tried) -> _Next:
    writes = tried.setback.writes
    rejected = [
        forbidden(c, write, tried.called.get(write.table, write.table))
        for c in tried.batches
        if (write := writes.get(c.taken.batch_id)) is not None
    ]
    return tried.attempt, [c for c in tried.batches if c.taken.batch_id not in writes], rejected


def _without_refused_keys(tried: Tried) -> _Next:
    keys = tried.setback.keys
    rejected = [_refused(c, keys[c.taken.batch_id]) for c in tried.batches if c.taken.batch_id in keys]
    return tried.attempt, [c for c in tried.batches if c.taken.batch_id not in keys], rejected


def _refused(candidate: Candidate, key: RefusedKey) -> Rejection:
    return Rejection(
        candidate.taken,
        key.reason,
        key.message,
        key.mutation,
        key.at[0],
        candidate.decoded.keys[key.at],
        (key.column,),
        constraint=key.constraint,
        sqlstate=key.sqlstate,
    )


def _long_way(tried: Tried) -> _Next:
    return replace(tried.attempt, sets_apart=False), tried.batches, ()


def _first_on_their_rows(tried: Tried) -> _Next:
    return tried.attempt, levels(tried.batches)[0], ()


def _rest_of_table(tried: Tried) -> _Next:
    resting = [c for c in tried.batches if c.taken.batch_id in tried.setback.batches]
    return _resting(tried, resting, "a table that another session has locked")


def _look_for_bad(tried: Tried) -> _Next:
    attempt = replace(tried.attempt, optimistic=False)
    looked = attempt.looks_first(tried.batches)
    if attempt.sets_apart and not looked and len(tried.batches) > 1 and not tried.setback.waited:
        return replace(attempt, expects_bad=True), tried.batches, ()
    return replace(attempt, sets_apart=False, one_by_one=True), tried.batches, ()


def _resting(tried: Tried, batches: Sequence[Candidate], why: str) -> _Next:
    """Batches rest as long as one whose row is busy, and so do those that wait for them."""
    results = [Waiting(c.taken, Parking(c.taken.batch_id, tried.rest_until_ms), why) for c in batches]
    held = {**tried.attempt.held, **{c.taken.batch_id: c.taken.node_id for c in batches}}
    left = [c for c in tried.batches if c.taken.batch_id not in held]
    return replace(tried.attempt, held=held), left, results


TABLE: Mapping[Why, Callable[[Tried], _Next]] = MappingProxyType(
    {
        Why.TOO_MUCH_CAPTURED: _without_batches,
        Why.OUTDATED: _outdated,
        Why.OVERTAKEN: _overtaken,
        Why.UNFORESEEN: _foreseen,
        Why.ENTANGLED: _only_the_first,
        Why.OUT_OF_TURN: _up_to_it,
        Why.INEFFECTIVE: _without_effect,
        Why.FORBIDDEN: _without_forbidden,
        Why.MISJUDGED: _long_way,
        Why.IN_COMPANY: _first_on_their_rows,
        Why.TABLE_LOCKED: _rest_of_table,
        Why.REFUSED: _look_for_bad,
        Why.KEYS_REFUSED: _without_refused_keys,
    }
)
"""The function that gives the next try, by the reason of the setback."""


def is_in_company(candidates: Sequence[Candidate], results: Sequence[Result]) -> bool:
    """Whether a batch was refused for a foreign key after others of the group touched its rows.

    Postgres checks a row that its own transaction has written before against its foreign keys anew, even references
    that no write changed and that were never good (``not valid``). First on its rows, the same batch might be accepted.
    """
    refused = {
        r.taken.batch_id
        for r in results
        if isinstance(r, Rejection) and r.sqlstate == _FOREIGN_KEY_VIOLATION and not r.by_itself
    }
    touched: set[RowKey] = set()
    for candidate in candidates if refused else ():
        if candidate.taken.batch_id in refused and not touched.isdisjoint(candidate.decoded.keys):
            return True
        touched.update(candidate.decoded.keys)
    return False
