"""A wave: batches of a group that are applied together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anabranch.store.group.waves import judge
from anabranch_conflict_resolver.batch.results import Accepting, Candidate, Made, Result
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.cuts import by_mutation, is_watched
from anabranch_conflict_resolver.group.rules import decide
from anabranch_conflict_resolver.group.setback import Setback
from anabranch_conflict_resolver.group.statements import Job, applied_result, carry_out
from anabranch_conflict_resolver.side_effects.cascades import write_step


def run_waves(
    context: Context, progress: Progress, waves: Sequence[Sequence[Candidate]], *, last: bool = False
) -> list[Result] | Setback:
    """Run waves one after the other, until one is set back. ``last``: with the last of them the constraints that wait
    are judged, too.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    results: list[Result] = []
    for wave in waves:
        of_wave = run_wave(context, progress, wave, last=last and wave is waves[-1])
        if isinstance(of_wave, Setback):
            return of_wave
        results += of_wave
    return results


def run_wave(
    context: Context, progress: Progress, wave: Sequence[Candidate], *, last: bool = False
) -> list[Result] | Setback:
    """Decide the batches of a wave and write what is accepted; the view is carried forward. ``last``: the constraints
    that wait are judged, too.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    results: list[Result] = []
    accepted: list[Accepting] = []
    for candidate in wave:
        decided = decide(context, progress, candidate)
        if isinstance(decided, Setback):
            return decided
        if isinstance(decided, Accepting):
            accepted.append(decided)
        else:
            results.append(decided)
    watched = progress.watched
    alone = {one for one in accepted if one.candidate.decoded.twice or (watched and is_watched(watched, one.candidate))}
    together: list[Job] = [(one, one.decision.writes) for one in accepted if one not in alone]
    conn, tables, view = context.conn, context.synced.tables, progress.view
    at_end = partial(judge, conn) if last else None
    written = carry_out(conn, tables, view, together, None if alone else at_end, progress.rights, context.role)
    if isinstance(written, Setback):
        return written
    made = {one: Made(changes) for (one, _), changes in zip(together, written, strict=True)}
    for one in accepted:
        if one not in alone:
            continue
        made[one] = Made()
        writes = one.decision.writes
        for step in by_mutation(writes) if one.candidate.decoded.twice else [writes]:
            setback = write_step(context, progress, one, step, made[one])
            if setback is not None:
                return setback
    if alone and at_end:
        carry_out(conn, tables, view, [], at_end)
    return [*results, *(applied_result(view, one, made[one]) for one in accepted)]
