"""From batches that failed together to those that are to blame, by halves. No statement is run here.

Halves are tried in the order of the ids, so that a few bad batches cost a few times the group and not a statement for
every batch in it. The view has been carried forward over the batches that were kept before: every batch is resolved
against the rows as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch_conflict_resolver.batch.results import Candidate, Result
from anabranch_conflict_resolver.group.setback import Setback, Why

_OF_SOME = frozenset({Why.INEFFECTIVE, Why.REFUSED})
"""Setbacks that one of the batches is to blame for."""


def bisect(
    candidates: Sequence[Candidate],
    *,
    failed: bool,
    together: Callable[[Sequence[Candidate]], list[Result] | Setback],
    alone: Callable[[Candidate], Result | Setback],
    any_failed: Callable[[Sequence[Result]], bool],
) -> list[Result] | Setback:
    """Decide candidates that may have bad ones among them. ``failed``: they have failed together already. ``together``
    tries several, and leaves nothing behind where it is set back; ``alone`` decides one, and ``any_failed`` says
    whether one of those that were decided was bad. A setback is given on that no batch is to blame for."""
    if not candidates:
        return []
    if len(candidates) == 1:
        result = alone(candidates[0])
        return result if isinstance(result, Setback) else [result]
    if not failed:
        tried = together(candidates)
        if not isinstance(tried, Setback) or tried.why not in _OF_SOME:
            return tried
    middle = len(candidates) // 2
    first = bisect(candidates[:middle], failed=False, together=together, alone=alone, any_failed=any_failed)
    if isinstance(first, Setback):
        return first
    # Where no batch failed in the first half, one of the second half will.
    clean = not any_failed(first)
    second = bisect(candidates[middle:], failed=clean, together=together, alone=alone, any_failed=any_failed)
    return second if isinstance(second, Setback) else first + second
