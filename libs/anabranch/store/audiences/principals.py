"""Principals, with the audiences that membership queries give them.

``anabranch.principals`` has them as of the head; ``anabranch.audience_changes`` how groups changed them, so that a
reader's set at an earlier position is that of the head with the later changes undone. A principal stands there from its
first call on, at ``seen_ms``, which is not below the head's position then: so changes behind it are all known. Whoever
writes to either holds the database's claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anabranch.limits import MAX_AUDIENCE_BYTES
from anabranch.store.audiences.expression import array_text
from anabranch.store.audiences.queries import OUR_PATH, PRINCIPAL, PRINCIPALS, for_principals
from anabranch.store.audiences.rules import Membership
from anabranch.store.catalog.databases import Database
from anabranch.store.session.steps import Statement, Steps

MOST_GIVEN = 10_000
"""The most audiences that membership queries give a principal, for reading and for writing each: the first in the order
of their bytes."""

_SET_PATH = """
with was as materialized (select pg_catalog.current_setting('search_path') as path)
select was.path, pg_catalog.set_config('search_path', %(path)s, true) from was
"""
_PUT_BACK_PATH = "select pg_catalog.set_config('search_path', %(path)s, true)"
_EVALUATE = f"""
{{shadow}}select {PRINCIPAL},
       (pg_catalog.array_agg(distinct "_DB_given".audience::text collate "C"))[1:{MOST_GIVEN}]
from unnest(%(principals)s::text[]) as {PRINCIPALS} (principal)
cross join lateral (
{{query}}
) as "_DB_given" (audience)
where "_DB_given".audience <> '' and pg_catalog.octet_length("_DB_given".audience) <= {MAX_AUDIENCE_BYTES}
group by 1
"""
_CURRENT = """
select principal, memberships, coalesce(write_memberships, memberships) from anabranch.principals
where database_id = %(database)s and principal = any(%(principals)s::text[])
"""
_INSERT = """
insert into anabranch.principals (database_id, principal, memberships, write_memberships, seen_ms)
select %(database)s, v.principal, v.read::text[], v.write::text[],
       greatest(%(now_ms)s, (select max(position) from anabranch.groups where database_id = %(database)s))
from unnest(%(principals)s::text[], %(read)s::text[], %(write)s::text[]) v (principal, read, write)
on conflict (database_id, principal) do nothing
returning principal
"""
# Of one that retention has forgotten and that is back: they end somewhere, and what came later was noted for nobody.
_FORGET_CHANGES = """
delete from anabranch.audience_changes where database_id = %(database)s and principal = any(%(principals)s::text[])
returning position
"""


@dataclass(frozen=True, slots=True)
class Given:
    """The audiences that membership queries give a principal, for reading and for writing: the same where the database
    has no rules of its own for writing."""

    read: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """How a group changed what a principal's queries give for reading."""

    gained: frozenset[str]
    lost: frozenset[str]


def evaluate(database: Database, principals: Sequence[str]) -> Steps[dict[str, Given]]:
    """Run the membership queries now for each of ``principals``. Raises psycopg.Error where a query no longer fits its
    tables."""
    rules = database.audience_rules
    if not principals or not rules.memberships:
        return dict.fromkeys(principals, Given())
    # Nothing in another schema can take the place of what a query names.
    [(path, _)] = yield Statement(_SET_PATH, {"path": OUR_PATH})
    read = yield from _evaluate(rules.read.memberships, principals)
    write = read if rules.write is None else (yield from _evaluate(rules.write.memberships, principals))
    yield Statement(_PUT_BACK_PATH, {"path": path})
    return {one: Given(read[one], write[one]) for one in principals}


def current(database_id: int, principals: Sequence[str]) -> Steps[dict[str, Given]]:
    """The principals that are there, as of the head; others are missing in the result."""
    rows = yield Statement(_CURRENT, {"database": database_id, "principals": list(principals)})
    return {one: Given(frozenset(read), frozenset(write)) for one, read, write in rows}


def learn(database: Database, principals: Sequence[str], now_ms: int) -> Steps[dict[str, Given]]:
    """All of ``principals`` as of the head; those that are not there yet are evaluated and kept, ``now_ms``
    (milliseconds since 1970) as when they were seen. The caller holds the database's claim. Where the rules have no
    membership query, nothing is kept. Raises as ``evaluate``."""
    if not database.audience_rules.memberships:
        return dict.fromkeys(principals, Given())
    known = yield from current(database.id, principals)
    new = yield from evaluate(database, [one for one in dict.fromkeys(principals) if one not in known])
    if new:
        names, apart = sorted(new), database.audience_rules.write is not None
        parameters = {
            "database": database.id,
            "principals": names,
            "read": [array_text(new[one].read) for one in names],
            "write": [array_text(new[one].write) if apart else None for one in names],
            "now_ms": now_ms,
        }
        yield Statement(_FORGET_CHANGES, parameters)
        yield Statement(_INSERT, parameters)
    return known | new


def _evaluate(memberships: Iterable[Membership], principals: Sequence[str]) -> Steps[dict[str, frozenset[str]]]:
    given: dict[str, set[str]] = {one: set() for one in principals}
    for one in memberships:
        query, shadow = (text.replace("%", "%%") for text in (for_principals(one.printed), one.shadow))
        rows = yield Statement(_EVALUATE.format(query=query, shadow=shadow), {"principals": list(given)})
        for principal, audiences in rows:
            given[principal].update(audiences)
    return {one: frozenset(sorted(found)[:MOST_GIVEN]) for one, found in given.items()}
