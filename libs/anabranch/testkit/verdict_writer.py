"""A test double of the conflict-resolver, for tests and measurements of ingest alone: it accepts every waiting batch.

It decides nothing and writes neither rows nor log. It takes batches from the inbox as they come, stores a verdict for
each (REJECTED where ingest had found a reason, else APPLIED), commits a group, and notifies like the real one.
"""

from __future__ import annotations

import threading
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

import psycopg

from anabranch.store.session.channels import GROUPS_CHANNEL, INBOX_CHANNEL
from anabranch.store.session.engine import SessionOptions, connect
from anabranch.v1 import verdict_pb2

TAKE = """
delete from anabranch.inbox i using (
    select database_id, batch_id from anabranch.inbox where database_id = %s order by arrival limit %s
) q
where i.database_id = q.database_id and i.batch_id = q.batch_id
returning i.batch_id, i.node_id, i.principal, i.payload_sha256, i.refusal, i.refusal_message
"""
HEAD = "select coalesce(max(position), 0) from anabranch.groups where database_id = %s"
STORE = """
insert into anabranch.batches
    (database_id, batch_id, node_id, principal, payload_sha256, status, reason, position, place, verdict, decided_ms)
select %(db)s, v.id, v.node, v.principal, v.sha, v.status, v.reason, %(position)s, %(position)s, w.verdict, %(position)s
from unnest(%(ids)s::text[], %(nodes)s::text[], %(principals)s::text[], %(sha)s::bytea[], %(status)s::int[],
            %(reason)s::int[]) with ordinality v(id, node, principal, sha, status, reason, n),
     unnest(%(verdicts)s::bytea[]) with ordinality w(verdict, n)
where v.n = w.n
"""
# Two ingest processes may append an id once more in the moment in which it is decided.
KNOWN = "select batch_id from anabranch.batches where database_id = %s and batch_id = any(%s::text[])"
GROUP = """
insert into anabranch.groups (database_id, position, batches, changes, chain, sums, claimed)
values (%s, %s, %s, 0, %s, '{}', true)
"""
TELL = "select pg_notify(%s, %s)"
_NOTIFY_IDS = 270
"""Ids in one notification: below Postgres's 8,000 bytes."""


class VerdictWriter:
    """Decides batches in a thread of its own, until the block is left. ``telling`` false: in silence, as if every
    notification were lost. ``paused``: set it to leave batches undecided."""

    def __init__(self, url: str, *, telling: bool = True, most: int = 500) -> None:
        self._url = url
        self._telling = telling
        self._most = most
        self._stop = threading.Event()
        self.paused = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verdict-writer", daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        if self.failure is not None and error is None:
            raise self.failure

    def _run(self) -> None:
        try:
            options = SessionOptions(settings={"enable_seqscan": "off"})
            with (
                connect(self._url, application_name="verdict-writer", options=options) as conn,
                connect(self._url, application_name="verdict-writer", autocommit=True) as listener,
            ):
                listener.execute(f"listen {INBOX_CHANNEL}")
                while not self._stop.is_set():
                    if self.paused.is_set() or not self._group(conn):
                        for _ in listener.notifies(timeout=0.05, stop_after=1):
                            pass
        except BaseException as error:
            self.failure = error

    def _group(self, conn: psycopg.Connection[Any]) -> bool:
        worked = False
        for (database_id,) in conn.execute("select id from anabranch.databases").fetchall():
            taken = conn.execute(TAKE, (database_id, self._most)).fetchall()
            if taken and self.paused.is_set():
                # It was paused meanwhile: they wait as before.
                conn.rollback()
                return worked
            if taken:
                self._decide(conn, database_id, taken)
                worked = True
        conn.commit()
        return worked

    def _decide(self, conn: psycopg.Connection[Any], database_id: int, taken: list[tuple[Any, ...]]) -> None:
        row = conn.execute(HEAD, (database_id,)).fetchone()
        position = (row[0] if row else 0) + 1
        known = {k for (k,) in conn.execute(KNOWN, (database_id, [batch[0] for batch in taken])).fetchall()}
        taken = [batch for batch in taken if batch[0] not in known]
        if not taken:
            return
        ids = [batch[0] for batch in taken]
        conn.execute(
            STORE,
            {
                "db": database_id,
                "position": position,
                "ids": ids,
                "nodes": [batch[1] for batch in taken],
                "principals": [batch[2] for batch in taken],
                "sha": [batch[3] for batch in taken],
                "status": [2 if batch[4] else 1 for batch in taken],
                "reason": [batch[4] or 0 for batch in taken],
                "verdicts": [_verdict(batch, position) for batch in taken],
            },
        )
        conn.execute(GROUP, (database_id, position, len(taken), _chain(ids)))
        if self._telling:
            for start in range(0, len(ids), _NOTIFY_IDS):
                part = ",".join(ids[start : start + _NOTIFY_IDS])
                conn.execute(TELL, (GROUPS_CHANNEL, f"{database_id}:{position}:{part}"))


def _chain(ids: list[str]) -> bytes:
    """A chain that two histories share at a position only where they have the same batches there."""
    return blake2b(",".join(ids).encode(), digest_size=16).digest()


def _verdict(batch: tuple[Any, ...], position: int) -> bytes:
    reason: Any = batch[4] or 0
    verdict = verdict_pb2.Verdict(
        batch_id=batch[0],
        status=verdict_pb2.VERDICT_STATUS_REJECTED if batch[4] else verdict_pb2.VERDICT_STATUS_APPLIED,
        position=position,
        reason=reason,
        message=batch[5] or "",
    )
    return verdict.SerializeToString()
