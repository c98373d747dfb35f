"""The history of restricted tables made from the server's log and conflicts when all is over: every effect in its
order, with each row's audiences computed by the hunt's own function of its columns. The columns in which the product
keeps audiences are not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from anabranch.store.session.engine import Session
from anabranch.testkit.attack.history import NOBODY, Audiences, History
from anabranch.testkit.attack.marks import marks_in
from anabranch.v1 import change_pb2, value_pb2

Row: TypeAlias = dict[str, str | None]
Rows: TypeAlias = Mapping[str, Row]
"""By key."""
Members: TypeAlias = Mapping[str, Audiences]
"""By principal."""

_LOG = """
select l.position, l.batch_id, t.name, l.key, l.effect
from anabranch.log l join anabranch.synced_tables t on t.id = l.table_id
join anabranch.databases d on d.id = l.database_id
where d.name = %s order by l.position, l.batch_id, l.ordinal
"""
_CONFLICTS = """
select c.position, c.batch_id, t.name, c.key, c.losing_value
from anabranch.conflicts c join anabranch.synced_tables t on t.id = c.table_id
join anabranch.databases d on d.id = c.database_id
where d.name = %s order by c.position, c.batch_id, c.ordinal
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of audiences in the hunt's own words. ``audiences``: by restricted table, a row's audiences;
    ``members``: what memberships give each principal, from the rows of every table by key, of which it reads
    ``read``."""

    audiences: Mapping[str, Callable[[Row], Iterable[str]]]
    members: Callable[[Mapping[str, Rows]], Mapping[str, Iterable[str]]]
    read: frozenset[str]


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of the log."""

    position: int
    batch: str
    table: str
    key: str
    effect: change_pb2.Effect


@dataclass(frozen=True, slots=True)
class Lost:
    """A value that lost."""

    position: int
    batch: str
    table: str
    key: str
    marks: frozenset[str]


def read_history(conn: Session, database: str, rules: Rules, start: Mapping[str, Rows]) -> History:
    """The history of a database whose tables had the rows ``start`` before the log."""
    log = [
        Effect(position, batch, table, key, change_pb2.Effect.FromString(bytes(effect)))
        for position, batch, table, key, effect in conn.execute(_LOG, (database,)).fetchall()
    ]
    conflicts = [
        Lost(position, batch, table, key, frozenset(marks_in(bytes(value))))
        for position, batch, table, key, value in conn.execute(_CONFLICTS, (database,)).fetchall()
    ]
    return history_of(rules, start, log, conflicts)


def history_of(
    rules: Rules, start: Mapping[str, Rows], log: Iterable[Effect], conflicts: Iterable[Lost] = ()
) -> History:
    """The history that a log and its conflicts tell, both in their order.

    A membership that SQL gives holds from its commit on, and the log has it a little later: the group before the one
    that has it may go by it already, also by one that is over again when the log has it.
    """
    past = History(frozenset(rules.audiences))
    rows: dict[str, dict[str, Row]] = defaultdict(dict)
    lost: dict[tuple[int, str, str, str], list[Lost]] = defaultdict(list)
    for loser in conflicts:
        lost[loser.position, loser.batch, loser.table, loser.key].append(loser)
    for table, found in start.items():
        for ordinal, (key, begun) in enumerate(found.items()):
            rows[table][key] = dict(begun)
            _put(past, rules, (0, ordinal), table, key, begun)
    members: list[tuple[int, Members, Members]] = [(0, _members(rules, rows), {})]
    for position, effects in _groups(log):
        past.groups.append(position)
        meanwhile: Members = {}
        for ordinal, one in enumerate(effects):
            before = _audiences(rules, one.table, rows[one.table].get(one.key))
            _apply(rows[one.table], one)
            if one.table in rules.read:
                meanwhile = _both(meanwhile, _members(rules, rows))
            row = rows[one.table].get(one.key)
            if row is None:
                past.remove((position, ordinal), one.table, one.key)
            else:
                _put(past, rules, (position, ordinal), one.table, one.key, row)
            for value in lost.pop((position, one.batch, one.table, one.key), ()):
                for mark in value.marks:
                    past.lose((position, ordinal), mark, before, _audiences(rules, one.table, row))
        members.append((position, _members(rules, rows), meanwhile))
    _join(past, members)
    _lose_without_effect(past, [one for many in lost.values() for one in many])
    return past


def _groups(log: Iterable[Effect]) -> Iterator[tuple[int, list[Effect]]]:
    group: list[Effect] = []
    for one in log:
        if group and group[0].position != one.position:
            yield group[0].position, group
            group = []
        group.append(one)
    if group:
        yield group[0].position, group


def _apply(rows: dict[str, Row], one: Effect) -> None:
    match one.effect.type:
        case change_pb2.EFFECT_TYPE_DELETE:
            rows.pop(one.key, None)
        case change_pb2.EFFECT_TYPE_INSERT:
            rows[one.key] = _cells(one.effect)
        case change_pb2.EFFECT_TYPE_UPDATE:
            rows.setdefault(one.key, {}).update(_cells(one.effect))


def _cells(effect: change_pb2.Effect) -> Row:
    return {name: _text(value) for name, value in zip(effect.columns, effect.values, strict=True)}


def _text(value: value_pb2.Value) -> str | None:
    kind = value.WhichOneof("kind")
    return None if kind in (None, "null_value") else str(getattr(value, str(kind)))


def _audiences(rules: Rules, table: str, row: Row | None) -> Audiences:
    given = rules.audiences.get(table)
    return NOBODY if row is None or given is None else frozenset(given(row))


def _put(past: History, rules: Rules, place: tuple[int, int], table: str, key: str, row: Row) -> None:
    if table in rules.audiences:
        marks = {mark for cell in row.values() if cell for mark in marks_in(cell.encode())}
        past.put(place, table, key, marks, _audiences(rules, table, row))


def _members(rules: Rules, rows: Mapping[str, Rows]) -> Members:
    return {principal: frozenset(audiences) for principal, audiences in rules.members(rows).items()}


def _both(one: Members, other: Members) -> Members:
    return {principal: one.get(principal, NOBODY) | other.get(principal, NOBODY) for principal in one.keys() | other}


def _join(past: History, members: Sequence[tuple[int, Members, Members]]) -> None:
    """Tell the history what memberships give: by position that at its end, and whatever it was during the next one."""
    before: Members = {}
    following = [meanwhile for _, _, meanwhile in members[1:]] + [{}]
    for (position, given, _), meanwhile in zip(members, following, strict=True):
        now = _both(given, meanwhile)
        for principal in sorted(before.keys() | now.keys()):
            if before.get(principal, NOBODY) != now.get(principal, NOBODY):
                past.join(position, principal, now.get(principal, NOBODY))
        before = now


def _lose_without_effect(past: History, lost: Iterable[Lost]) -> None:
    """Values that lost without an effect of their batch on the row: its audiences were those of that time."""
    for one in lost:
        audiences = past.at((one.position, 2**31), one.table, one.key)
        for mark in one.marks:
            past.lose((one.position, 2**31), mark, audiences, audiences)
