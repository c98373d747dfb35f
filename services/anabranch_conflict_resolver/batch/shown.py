"""The audiences of a changed row before and after, and the effect that is logged because of it.

An update that moves a row to other audiences is logged with all of the row's columns: whoever sees the row from then on
has never had the rest. The sums of audiences change with the row: by its change where it stays, by all of it where it
comes or goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from anabranch.store.audiences.row_audiences import Audiences, RowAudiences
from anabranch.store.group.rows import Row
from anabranch.store.session.engine import Session
from anabranch.wire.effects import UPDATE, Effect, EffectBuilder
from anabranch.wire.large_effects import LargeEffect, LargeEffectBuilder

AudienceChanges = dict[tuple[str, str], tuple[int, int]]
"""By table and audience, what to add to the count and the hash of its rows."""
_NONE = (0, 0)


@dataclass(slots=True)
class Shown:
    """The audiences of a row before and after its change, none where there was no row. ``sums``: of a row that moves,
    by audience, what the change adds to the count and the hash of its rows; of another one, its effect says it. A value
    all the same: to make a frozen one for each change costs three times as much."""

    before: Audiences
    after: Audiences
    sums: Sequence[tuple[str, int, int]] = ()


def learn(conn: Session, restricted: Mapping[str, RowAudiences], rows: Iterable[tuple[str, Row | None]]) -> None:
    """Evaluate the audiences of rows, with their tables' names, as far as these are ``restricted``: a statement a
    table.

    Raises:
        psycopg.Error: Postgres refused an expression.
    """
    if not restricted:
        return
    by_table: dict[str, list[Row]] = {}
    for name, row in rows:
        if row is not None and name in restricted:
            by_table.setdefault(name, []).append(row)
    for name, of_table in by_table.items():
        restricted[name].learn(conn, of_table)


@overload
def shown(
    audiences: RowAudiences | None, effects_of: EffectBuilder, before: Row | None, after: Row | None, effect: Effect
) -> tuple[Effect, Shown | None]: ...


@overload
def shown(
    audiences: RowAudiences | None,
    effects_of: EffectBuilder | LargeEffectBuilder,
    before: Row | None,
    after: Row | None,
    effect: Effect | LargeEffect,
) -> tuple[Effect | LargeEffect, Shown | None]: ...


def shown(
    audiences: RowAudiences | None,
    effects_of: EffectBuilder | LargeEffectBuilder,
    before: Row | None,
    after: Row | None,
    effect: Effect | LargeEffect,
) -> tuple[Effect | LargeEffect, Shown | None]:
    """The effect as it is logged, and whom the row is for; None for an open table, which has no ``audiences``. Those of
    both rows are learned."""
    if audiences is None:
        return effect, None
    was = audiences.of(before) if before is not None else ()
    now = audiences.of(after) if after is not None else ()
    return shown_to(was, now, effects_of, before, after, effect)


@overload
def shown_to(
    was: Audiences, now: Audiences, effects_of: EffectBuilder, before: Row | None, after: Row | None, effect: Effect
) -> tuple[Effect, Shown]: ...


@overload
def shown_to(
    was: Audiences,
    now: Audiences,
    effects_of: EffectBuilder | LargeEffectBuilder,
    before: Row | None,
    after: Row | None,
    effect: Effect | LargeEffect,
) -> tuple[Effect | LargeEffect, Shown]: ...


def shown_to(
    was: Audiences,
    now: Audiences,
    effects_of: EffectBuilder | LargeEffectBuilder,
    before: Row | None,
    after: Row | None,
    effect: Effect | LargeEffect,
) -> tuple[Effect | LargeEffect, Shown]:
    """``shown`` of a row of a restricted table that was for some and is now for others, or the same."""
    if was == now or effect.type != UPDATE:
        return effect, Shown(was, now)
    assert before is not None
    assert after is not None
    old, new = effects_of.row_hash(before), effects_of.row_hash(after)
    sums = [(one, -1, -old) for one in was if one not in now]
    sums += [(one, 0, new - old) if one in was else (one, 1, new) for one in now]
    return effects_of.whole_update(before, after), Shown(was, now, sums)


def add_changes(changes: AudienceChanges, more: AudienceChanges) -> None:
    """Add further changes of sums."""
    for place, (count, total) in more.items():
        before = changes.get(place, (0, 0))
        changes[place] = (before[0] + count, before[1] + total)


def add_sums(sums: AudienceChanges, table: str, changed: Shown | None, effect: Effect | LargeEffect) -> None:
    """Add the change of a row, with its effect, to the changes of its audiences' sums."""
    if changed is None:
        return
    for audience, count, total in changed.sums:
        before = sums.get((table, audience), _NONE)
        sums[table, audience] = (before[0] + count, before[1] + total)
    if not changed.sums and (effect.count_change or effect.hash_change):
        add_to_all(sums, table, changed.after or changed.before, effect.count_change, effect.hash_change)


def add_to_all(sums: AudienceChanges, table: str, audiences: Audiences, count: int, total: int) -> None:
    """Add the same change of count and hash to the changes of the sums of all of these audiences."""
    for audience in audiences:
        before = sums.get((table, audience), _NONE)
        sums[table, audience] = (before[0] + count, before[1] + total)
