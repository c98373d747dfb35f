"""A rig with restricted tables: jobs of teams, notes of several audiences, and memberships that give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create table membership (id text primary key, user_id text, team_id text);
create table job (id text primary key, team_id text, title text, note text unique);
create table note (id text primary key, owner text, org text, body text, n bigint default 7);
create table open_to_all (id text primary key, title text);
"""
NAMES: Mapping[str, Any] = {"membership": None, "job": None, "note": None, "open_to_all": None}
AUDIENCES = {
    "membership": "'user:' || user_id",
    "job": "'team:' || team_id",
    "note": "array['user:' || owner, 'org:' || org]",
}
OF_TEAMS = "select 'team:' || team_id from membership where user_id = :principal"
OWN = "select 'user:' || :principal"
RULES: Mapping[str, Any] = {"claims": {"teams": "team"}, "memberships": [OF_TEAMS, OWN]}


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
