"""Cuts a group into waves, and a batch into steps: batches of one wave are applied together.

Two ways to cut a group into waves:

* ``levels``, tried first: a batch goes into the first wave after all that touched one of its rows, and never before an
  earlier batch of its node. A hot row costs a wave for each of its batches, and the other batches none. Batches of
  different nodes may change places; where that matters to a constraint, the group fails and is cut the other way.
* ``runs``: consecutive batches by id, as long as none touches a row already touched.

A batch that touches a row twice has statements of its own, one for each mutation. One whose changes may cause others
has a wave of its own, where that is watched (``apart``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from anabranch import limits
from anabranch.merge import MutationType, Write
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Candidate
from anabranch_conflict_resolver.group.tables import Kinds

_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
_BECOMES: Mapping[MutationType, frozenset[MutationType]] = MappingProxyType(
    {_INSERT: frozenset({_INSERT, _UPDATE}), _UPDATE: frozenset({_UPDATE}), _DELETE: frozenset({_DELETE})}
)
"""The types of writes that a mutation may become: a late insert of a live row is an update."""
GROWN_BYTES = limits.MAX_BATCH_BYTES
"""The most bytes of a group's batches as Postgres prints their values, where some of these grow; one of more than that
has a group of its own."""


def in_waves(candidates: Sequence[Candidate], watched: Kinds) -> Sequence[list[Candidate]]:
    """The candidates in as few waves as can be, with those that are watched apart."""
    return apart(watched, levels(candidates))


def in_order(candidates: Sequence[Candidate], watched: Kinds) -> Sequence[list[Candidate]]:
    """The candidates in waves that keep the order of their ids, with those that are watched apart."""
    return apart(watched, runs(candidates))


def levels(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """The candidates, which stand in the order of their ids, in waves."""
    waves: list[list[Candidate]] = []
    last_of_row: dict[RowKey, int] = {}
    last_of_node: dict[str, int] = {}
    for candidate in candidates:
        keys = candidate.decoded.keys
        node = candidate.taken.node_id
        level = last_of_node.get(node, 0)
        if not last_of_row.keys().isdisjoint(keys):
            level = max(level, *(last_of_row.get(at, -1) + 1 for at in keys))
        last_of_row.update(dict.fromkeys(keys, level))
        last_of_node[node] = level
        while len(waves) <= level:
            waves.append([])
        waves[level].append(candidate)
    return waves


def runs(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """The candidates, which stand in the order of their ids, in waves that keep this order."""
    waves: list[list[Candidate]] = []
    touched: set[RowKey] = set()
    for candidate in candidates:
        if not waves or not touched.isdisjoint(candidate.decoded.keys):
            waves.append([])
            touched.clear()
        touched.update(candidate.decoded.keys)
        waves[-1].append(candidate)
    return waves


def at_once(candidates: Sequence[Candidate], tables: frozenset[str]) -> Sequence[Candidate]:
    """The candidates that one group may decide; ``tables``: those of which it touches a row once only."""
    return before_touched_again(as_large_as_may_be(candidates), tables)


def before_touched_again(candidates: Sequence[Candidate], tables: frozenset[str]) -> list[Candidate]:
    """The candidates without those that touch a row of ``tables`` after another, and without the later ones of their
    nodes."""
    if not tables:
        return list(candidates)
    kept: list[Candidate] = []
    touched: set[RowKey] = set()
    ended: set[str] = set()
    for candidate in candidates:
        rows = {at for at in candidate.decoded.keys if at[0] in tables}
        if candidate.taken.node_id in ended or not touched.isdisjoint(rows):
            ended.add(candidate.taken.node_id)
        else:
            kept.append(candidate)
        touched |= rows
    return kept


def as_large_as_may_be(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The first of the candidates, as many as may be in a group when their values have grown."""
    if not any(one.decoded.grown for one in candidates):
        return candidates
    total = 0
    for place, one in enumerate(candidates):
        total += one.taken.size + one.decoded.grown
        if place and total > GROWN_BYTES:
            return candidates[:place]
    return candidates


def is_watched(watched: Kinds, candidate: Candidate) -> bool:
    """Whether a write of a batch is among ``watched``, by table: changes that may cause others."""
    return bool(watched) and any(
        not _BECOMES[mutation.type].isdisjoint(watched.get(mutation.table, ()))
        for mutation in candidate.decoded.mutations
    )


def apart(watched: Kinds, waves: Sequence[list[Candidate]]) -> Sequence[list[Candidate]]:
    """The waves, with each watched batch in one of its own, in the order of the ids within each."""
    if not watched:
        return waves
    result: list[list[Candidate]] = []
    for wave in waves:
        others: list[Candidate] = []
        for candidate in wave:
            if not is_watched(watched, candidate):
                others.append(candidate)
                continue
            if others:
                result.append(others)
                others = []
            result.append([candidate])
        if others:
            result.append(others)
    return result


def by_mutation(writes: Sequence[Write]) -> list[list[Write]]:
    """The writes of a batch in steps: one for each mutation, and a further one where it touches a row again."""
    steps: list[list[Write]] = []
    touched: set[str] = set()
    mutation = -1
    for write in writes:
        if write.mutation != mutation or write.key in touched:
            steps.append([])
            touched.clear()
            mutation = write.mutation
        touched.add(write.key)
        steps[-1].append(write)
    return steps


def plans(candidate: Candidate, writes: Sequence[Write]) -> list[list[Sequence[Write]]]:
    """The ways to cut a batch's writes into steps, from the coarsest to the finest; equal ones once."""
    mutations = by_mutation(writes)
    ways: list[list[Sequence[Write]]] = [] if candidate.decoded.twice else [[writes]]
    if not ways or len(mutations) > 1:
        ways.append(list(mutations))
    if len(writes) > len(mutations):
        ways.append([[write] for write in writes])
    return ways


def up_to(candidate: Candidate, writes: Sequence[Write], write: Write) -> list[Sequence[Write]]:
    """A batch's writes up to one of them, in steps of which it is the last. Empty where it is not among them."""
    for i, one in enumerate(writes):
        if one == write:
            before = writes[:i]
            steps: list[Sequence[Write]] = [*by_mutation(before)] if candidate.decoded.twice else [before]
            return [step for step in (*steps, [write]) if step]
    return []
