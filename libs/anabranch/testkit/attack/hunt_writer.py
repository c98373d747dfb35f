"""Writes by SQL during a leak hunt: rows, moves, grants and revocations, several at once or alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.attack.hunted import PRINCIPALS, TEAMS, Known, teams

PAUSE_S = 0.01

_INSERT = "insert into job (id, team, other, title, note, code) values (%s, %s, %s, %s, %s, %s)"
_PART = "insert into part select %s, id, %s, %s from job where id = %s on conflict do nothing"


def write_by_sql(url: str, known: Known, chance: random.Random, stop: threading.Event) -> None:
    """Write until ``stop``; what Postgres refuses is left undone."""
    with connect(url, application_name="hunt-writer", autocommit=True) as conn:
        conn.execute(b"set search_path to hunted")
        while not stop.wait(PAUSE_S):
            try:
                with conn.transaction():
                    for change in chance.choices(_CHANGES, k=chance.choice([1, 1, 1, 2, 4])):
                        change(conn, known, chance)
            except conn.Error as error:
                if is_unavailable(error):
                    conn.execute(b"select 1")


def _run(conn: Session, statement: str, parameters: Sequence[Any]) -> None:
    conn.execute(statement.encode(), parameters)


def _insert(conn: Session, known: Known, chance: random.Random) -> None:
    row = known.job(chance, *teams(chance))
    _run(conn, _INSERT, [row[name] for name in ("id", "team", "other", "title", "note", "code")])


def _part(conn: Session, known: Known, chance: random.Random) -> None:
    owner = chance.choice(PRINCIPALS)
    body = known.marks.new([f"user:{owner}"])
    _run(conn, _PART, [known.marks.new([f"user:{owner}"]), owner, body, known.any(known.jobs, chance, "")])


def _edit(conn: Session, known: Known, chance: random.Random) -> None:
    column = chance.choice(["title", "note"])
    mark = known.marks.new(["by.sql"])
    _run(conn, f"update job set {column} = %s where id = %s", [mark, known.any(known.jobs, chance, "")])


def _move(conn: Session, known: Known, chance: random.Random) -> None:
    team, other = teams(chance)
    key = known.any(known.jobs, chance, "")
    _run(conn, "update job set team = %s, other = %s where id = %s", [team, other, key])


def _delete(conn: Session, known: Known, chance: random.Random) -> None:
    _run(conn, "delete from job where id = %s", [known.any(known.jobs, chance, "")])


def _grant(conn: Session, known: Known, chance: random.Random) -> None:
    user, team = chance.choice(PRINCIPALS), chance.choice(TEAMS)
    _run(conn, "insert into member values (%s, %s, %s)", [known.marks.new([f"user:{user}"]), user, team])


def _revoke(conn: Session, known: Known, chance: random.Random) -> None:
    parameters = [chance.choice(PRINCIPALS), chance.choice(TEAMS)]
    _run(conn, "delete from member where user_id = %s and team = %s", parameters)


def _exchange(conn: Session, known: Known, chance: random.Random) -> None:
    _run(conn, "update member set team = %s where user_id = %s", [chance.choice(TEAMS), chance.choice(PRINCIPALS)])


def _open(conn: Session, known: Known, chance: random.Random) -> None:
    key, body = str(chance.randrange(50)), str(chance.random())
    _run(conn, "insert into open values (%s, %s) on conflict (id) do update set body = excluded.body", [key, body])


Change = Callable[[Session, Known, random.Random], None]
_CHANGES: Sequence[Change] = (
    *(_insert, _insert, _insert, _part, _edit, _edit, _edit, _move, _move, _move, _delete),
    *(_grant, _grant, _revoke, _revoke, _exchange, _open),
)
