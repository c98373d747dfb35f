"""The database of a leak hunt: tables of which nobody sees all, and their rules once in the product's form and once in
the hunt's own."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog import registration
from anabranch.store.session.engine import Session
from anabranch.testkit.attack.log_history import Row, Rows, Rules
from anabranch.testkit.attack.marks import Marks

DATABASE = "hunted"
PRINCIPALS = ("alice", "bob", "carol", "dave")
TEAMS = ("t1", "t2", "t3", "t4")
TABLES = ("member", "job", "part", "open")

_TABLES = """
create schema hunted;
create table hunted.member (id text primary key, user_id text not null, team text not null);
create table hunted.job (id text primary key, team text, other text, title text, note text,
                         code text constraint job_code unique);
create table hunted.part (id text primary key, job_id text references hunted.job (id) on delete cascade, owner text,
                          body text);
create table hunted.open (id text primary key, body text);
"""
_AUDIENCES = {
    "member": "'user:' || user_id",
    "job": "array['team:' || team, 'team:' || other]",
    "part": "'user:' || owner",
}
_RULES = {
    "claims": {"teams": "team"},
    "memberships": [
        "select 'team:' || team from member where user_id = :principal",
        "select 'user:' || :principal",
    ],
}


def make_hunted(conn: Session) -> None:
    """Make and register the tables."""
    conn.execute(_TABLES.encode())
    registration.create_database(conn, DATABASE, DATABASE, {"park_ms": 500})
    for table in TABLES:
        registration.add_table(conn, DATABASE, table, None, audience=_AUDIENCES.get(table))
    set_audience_rules(conn, DATABASE, _RULES)


def claimed(claims: Mapping[str, Any]) -> Collection[str]:
    """The audiences that a token's claims give."""
    return {f"team:{team}" for team in claims.get("teams", ())}


def _of_job(row: Row) -> Iterable[str]:
    return [f"team:{team}" for team in (row["team"], row["other"]) if team]


def _members(rows: Mapping[str, Rows]) -> Mapping[str, Iterable[str]]:
    given = {principal: {f"user:{principal}"} for principal in PRINCIPALS}
    for row in rows.get("member", {}).values():
        given.setdefault(str(row["user_id"]), set()).add(f"team:{row['team']}")
    return given


HUNTED = Rules(
    {
        "member": lambda row: [f"user:{row['user_id']}"],
        "job": _of_job,
        "part": lambda row: [f"user:{row['owner']}"] if row["owner"] else [],
    },
    _members,
    frozenset({"member"}),
)


@dataclass
class Known:
    """All that attackers know beforehand: keys, codes, ids of batches, tokens of others. Used by all threads."""

    marks: Marks = field(default_factory=Marks)
    jobs: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kept: list[Any], one: Any) -> None:
        """Add to one of the lists, which keep a few hundred."""
        with self._lock:
            kept.append(one)
            if kept is not self.sent and len(kept) > 500:
                del kept[:100]

    def any(self, kept: list[Any], chance: random.Random, default: Any) -> Any:
        """One of a list; ``default`` where it is empty."""
        with self._lock:
            return chance.choice(kept) if kept else default

    def job(self, chance: random.Random, team: str | None, other: str | None) -> Row:
        """A new job, every text of it marked."""
        under = [f"team:{one}" for one in (team, other) if one]
        row = {name: self.marks.new(under) for name in ("id", "title", "note", "code")}
        self.note(self.jobs, row["id"])
        self.note(self.codes, row["code"])
        return {**row, "team": team, "other": other}


def teams(chance: random.Random) -> tuple[str | None, str | None]:
    """Two teams of a job, each of them none at times."""
    return chance.choice([*TEAMS, None]), chance.choice([*TEAMS, None, None, None])
