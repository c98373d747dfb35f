"""Change where the principals of a database have their audiences from.

A change is one transaction under the database's claim, so that every group is decided by one set of rules; it moves the
schema version, so that readers learn of it. All principals are evaluated anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from anabranch.store.audiences.acting import why_not_acted_as
from anabranch.store.audiences.evaluated import EvaluationError, evaluate_anew
from anabranch.store.audiences.query_judging import judge_query
from anabranch.store.audiences.rules import AudienceRules, Membership, SetRules, rules_to_json
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.judging import RegistrationError, find_database, refuse
from anabranch.store.catalog.refusals import Refused, TableRefusal
from anabranch.store.catalog.registration import RegistrationLimits, limit, tell
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.store.writers import writer

Connection = psycopg.Connection[Any]

MOST_RULES = 50
"""The most claims, and the most membership queries, of a set of rules."""
MAX_QUERY_BYTES = 10_000
"""The longest membership query, in UTF-8."""

_SET = "update anabranch.databases set audience_rules = %s where id = %s"


def set_audience_rules(
    conn: Connection,
    database: str,
    given: Mapping[str, Any],
    *,
    limits: RegistrationLimits | None = None,
) -> Database:
    """Give a database the rules ``given`` in place of those that it has: ``{"claims": {"teams": "team"}, "memberships":
    ["select …"], "write": {…}, "rls": "ROLE"}``, where ``write`` has keys of the first two names, and every key may be
    left out.

    Raises:
        RegistrationError: UNKNOWN_DATABASE, AUDIENCE_RULES, MEMBERSHIP_QUERY, MEMBERSHIP_TABLE, RLS_ROLE or BUSY; with
            every reason.
    """
    what = f'the audiences of database "{database}" can\'t be changed'
    if wrong := list(_wrong(given, ("claims", "memberships", "write", "rls"), "")):
        raise RegistrationError(what, [Refused(TableRefusal.AUDIENCE_RULES, text) for text in wrong])
    try:
        with conn.transaction():
            limit(conn, limits)
            wait_for_claim(conn, find_database(conn, what, database).id)
            found = find_database(conn, what, database)
            refused: list[Refused] = []
            read = _set_rules(conn, found, given, refused)
            write = _set_rules(conn, found, given["write"], refused) if given.get("write") is not None else None
            rls_role = given.get("rls") or ""
            if rls_role:
                refused += why_not_acted_as(conn, rls_role)
            if refused:
                raise RegistrationError(what, refused)
            rules = AudienceRules(read, write, rls_role)
            conn.execute(_SET, (Jsonb(rules_to_json(rules) if rules else {}), found.id))
            writer.let_act(conn)
            evaluate_anew(conn, replace(found, audience_rules=rules))
            tell(conn, found.id)
            return find_database(conn, what, database)
    except EvaluationError as error:
        raise refuse(what, TableRefusal.MEMBERSHIP_QUERY, str(error)) from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise refuse(what, TableRefusal.BUSY, "the database is being written to; try again") from error


def given_rules(rules: AudienceRules) -> dict[str, Any]:
    """Rules as ``set_audience_rules`` takes them."""
    made = _given(rules.read) | ({} if rules.write is None else {"write": _given(rules.write)})
    return made | ({"rls": rules.rls_role} if rules.rls_role else {})


def _given(rules: SetRules) -> dict[str, Any]:
    return {"claims": dict(rules.claims), "memberships": [one.query for one in rules.memberships]}


def _set_rules(conn: Connection, database: Database, given: Mapping[str, Any], refused: list[Refused]) -> SetRules:
    memberships: list[Membership] = []
    for query in given.get("memberships", ()):
        judged = judge_query(conn, database, query)
        if isinstance(judged, Membership):
            memberships.append(judged)
        else:
            refused += judged
    return SetRules(dict(given.get("claims", {})), tuple(memberships))


def _wrong(given: Any, keys: tuple[str, ...], place: str) -> Iterator[str]:
    """Whatever is not of the form of rules, in words."""
    if not isinstance(given, Mapping):
        yield f"{place or 'the rules'} is no object"
        return
    yield from (f"{place}{key} is no rule" for key in given if key not in keys)
    claims, queries = given.get("claims", {}), given.get("memberships", [])
    if not isinstance(claims, Mapping) or not all(map(_is_text, (*claims, *claims.values()))):
        yield f"{place}claims maps names of claims to prefixes"
    elif len(claims) > MOST_RULES:
        yield f"{place}claims has more than {MOST_RULES}"
    if not isinstance(queries, list) or not all(map(_is_text, queries)):
        yield f"{place}memberships is a list of queries"
    elif len(queries) > MOST_RULES or any(len(query.encode()) > MAX_QUERY_BYTES for query in queries):
        yield f"{place}memberships has more than {MOST_RULES} queries, or one of more than {MAX_QUERY_BYTES} bytes"
    if "rls" in keys and given.get("rls") is not None and not _is_text(given["rls"]):
        yield "rls is the name of a role"
    if "write" in keys and given.get("write") is not None:
        yield from _wrong(given["write"], ("claims", "memberships"), "write.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and "\0" not in value
