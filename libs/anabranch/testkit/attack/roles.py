"""A role of Postgres that may connect and owns nothing of ours: notifications, locks, settings, look-ups."""

from __future__ import annotations

import random
import threading

import psycopg
from psycopg import sql

from anabranch.store.inbox.undertaken import OWNER_LOCK_CLASS
from anabranch.store.session import channels
from anabranch.testkit.attack.phases import Phases
from anabranch.testkit.attack.target import Findings, Target

CONNECT_S = 10
PAUSE_S = 0.1
HOLD_S = 1.0
MOST_PAYLOAD = 7_999
"""Postgres takes no longer one."""

CHANNELS = sorted(value for name, value in vars(channels).items() if name.endswith("_CHANNEL"))
LOCK_CLASSES = (OWNER_LOCK_CLASS, 0x616E6162, 0x616E616A, 0x616E6172)
"""The first keys of advisory locks: of processes that are alive, and of those that kept resolvers, janitors and
registrations apart in releases before."""
_FORBIDDEN = (
    "select key_hash from anabranch.api_keys",
    "select * from anabranch.databases",
    "select * from anabranch.captured",
    "insert into anabranch.inbox default values",
    "delete from anabranch.log",
    "create table anabranch.x (y int)",
    "set role postgres",
    "alter table attacked.item disable trigger all",
    "select * from attacked.item",
    "update anabranch.claims set database_id = database_id",
    "do $$ begin lock table anabranch.leads in exclusive mode nowait; end $$",
    "delete from anabranch.undertaken",
)


def act_as_role(target: Target, chance: random.Random, stop: Phases, found: Findings) -> None:
    """Act until ``stop``."""
    with psycopg.connect(target.role_url, autocommit=True, connect_timeout=CONNECT_S) as conn:
        while not stop.rest(PAUSE_S):
            _notify(conn, chance)
            found.answer("role: notified")
            if chance.random() < 0.2:
                _hold_locks(conn, chance, stop)
                found.answer("role: held advisory locks")
            statement = chance.choice(_FORBIDDEN)
            try:
                conn.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                found.answer("role: refused")
            else:
                found.breach("a role that may only connect was served", statement)


def _notify(conn: psycopg.Connection[tuple[object, ...]], chance: random.Random) -> None:
    number = str(chance.choice([0, 1, 2, 99, 10**6, 2**63, -1]))
    payload = chance.choice(
        ["", number, "9" * 5_000, "1" * MOST_PAYLOAD, "a", "1,2", f"{number}:{'f' * 32}", "\u0661", "1\n2", " 1", "1e9"]
    )
    conn.execute("select pg_notify(%s, %s)", [chance.choice(CHANNELS), payload])


def _hold_locks(conn: psycopg.Connection[tuple[object, ...]], chance: random.Random, stop: threading.Event) -> None:
    """All advisory locks that ours might be, for a moment."""
    for lock_class in LOCK_CLASSES:
        for number in range(4):
            conn.execute("select pg_try_advisory_lock(%s, %s)", [lock_class, number])
    stop.wait(HOLD_S)
    conn.execute(sql.SQL("select pg_advisory_unlock_all()"))
