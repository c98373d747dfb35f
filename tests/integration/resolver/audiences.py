"""A rig with restricted tables: jobs of teams, notes of several audiences, and memberships that give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.types.json import Jsonb

from anabranch.store.audiences.rules import AudienceRules, Membership, SetRules, rules_to_json
from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create table membership (id text primary key, user_id text, team_id text);
create table job (id text primary key, team_id text, title text, note text unique);
create table note (id text primary key, owner text, org text, body text, n bigint default 7);
create table open_to_all (id text primary key, title text);
"""
NAMES: Mapping[str, Any] = {"membership": None, "job": None, "note": None, "open_to_all": None}
RESTRICTED = {
    "membership": ("'user:' || user_id", ["user_id"], False),
    "job": ("'team:' || team_id", ["team_id"], False),
    "note": ("array['user:' || owner, 'org:' || org]", ["owner", "org"], True),
}
OF_TEAMS = Membership(
    "select 'team:' || team_id from membership where user_id = :principal", ("membership",), frozenset({"membership"})
)
OWN = Membership("select 'user:' || :principal", (), frozenset())


def restrict(rig: ResolverRig, rules: AudienceRules | None = None) -> ResolverRig:
    """Give the tables of a rig, which have no rows yet, their expressions, and the database its rules."""
    for table, (expression, columns, is_list) in RESTRICTED.items():
        rig.sql(
            "update anabranch.synced_tables set audience = %s, audience_columns = %s, audience_is_list = %s "
            "where database_id = %s and name = %s",
            [expression, columns, is_list, rig.database.id, table],
        )
    given = Jsonb(rules_to_json(rules or AudienceRules(SetRules({"teams": "team"}, (OF_TEAMS, OWN)))))
    rig.sql(
        "update anabranch.databases set audience_rules = %s, schema_version = schema_version + 1 where id = %s",
        [given, rig.database.id],
    )
    rig.check()
    return rig


def shown(rig: ResolverRig, table: str) -> list[tuple[str, int, list[str], list[str]]]:
    """Key, type, and audiences before and after, of the log's rows of a table, in order."""
    return [
        tuple(row)
        for row in rig.sql(
            "select key, type::int, audience_before, audience_after from anabranch.log where table_id = %s "
            "order by position, batch_id, ordinal",
            [rig.database.tables[table].id],
        )
    ]


def changes(rig: ResolverRig) -> list[tuple[str, Sequence[str], Sequence[str]]]:
    """Principal, gained and lost, of all changes of sets, in order."""
    return [
        tuple(row)
        for row in rig.sql(
            "select principal, gained, lost from anabranch.audience_changes order by position, principal"
        )
    ]
