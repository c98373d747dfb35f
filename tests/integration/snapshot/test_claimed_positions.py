"""A claim to have seen a position costs the database's commits nothing: the claim, for which its resolver waits, is
taken to end an epoch, once, and for nothing that a caller makes up or repeats."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.integration.snapshot.pulled import rows

from anabranch.store.session.engine import connect
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.testkit.ingest_rig import FailedCallError
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.waiting import until
from anabranch.v1 import position_pb2

CALLERS = 8
QUEUED = """select count(*) from pg_locks l join pg_stat_activity a on a.pid = l.pid
            where a.datname = current_database() and not l.granted
              and (l.locktype = 'transactionid'
                   or l.locktype = 'tuple' and l.relation = 'anabranch.claims'::regclass)"""


@contextmanager
def claimed(place: Any, writer: LogWriter) -> Iterator[None]:
    """A resolver has the database's claim, as in the middle of a group."""
    with connect(place.rig.url, application_name="test") as resolver:
        wait_for_claim(resolver, writer.database.id)
        yield
        resolver.rollback()


def queued(place: Any) -> int:
    """How many sessions stand before the claim."""
    (count,) = place.conn.execute(QUEUED).fetchone()
    return int(count)


def reason(reader: Reader) -> str:
    with pytest.raises(FailedCallError) as caught:
        reader.get()
    return caught.value.reason


def lose(place: Any, position: int) -> None:
    """The server is an earlier one that has gone on: there it has another group now."""
    changed = place.conn.execute(
        """update anabranch.groups set chain = sha256(chain)::bytea
           where position >= %s and database_id = (select id from anabranch.databases where name = %s)""",
        (position, place.name),
    )
    assert changed.rowcount


def forged(seen: position_pb2.Position) -> list[position_pb2.Position]:
    """Positions that nobody gave: beyond the head, with another's token, without one, of another epoch."""
    beyond = seen.server_timestamp_ms + 60_000
    return [
        position_pb2.Position(epoch=seen.epoch, server_timestamp_ms=beyond, token=bytes(len(seen.token))),
        position_pb2.Position(epoch=seen.epoch, server_timestamp_ms=beyond, token=seen.token),
        position_pb2.Position(epoch=seen.epoch, server_timestamp_ms=beyond),
        position_pb2.Position(epoch="another", server_timestamp_ms=1, token=seen.token),
    ]


@pytest.mark.parametrize("which", range(4))
def test_a_forged_position_is_refused_while_a_group_is_committed(
    place: Any, writer: LogWriter, reader: Reader, which: int
) -> None:
    writer.insert("item", rows(3))
    reader.seen = forged(reader.get().state.settled)[which]
    with claimed(place, writer), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(reason, reader)
        until(answer.done, 5, lambda: f"the call waits for the claim, as {queued(place)} sessions do")
        assert answer.result() == "INVALID_POSITION"


def test_a_lost_position_is_told_again_and_again_without_the_claim(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    lost = writer.insert("item", rows(3))
    reader.seen = reader.get().state.settled
    lose(place, lost)
    assert reason(reader) == "HISTORY_REWOUND"
    with claimed(place, writer), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(reason, reader)
        until(answer.done, 5, lambda: f"the call waits for the claim, as {queued(place)} sessions do")
        assert answer.result() == "HISTORY_REWOUND"


def test_of_many_that_find_a_rewind_at_once_one_waits_for_the_claim(place: Any, writer: LogWriter) -> None:
    lost = writer.insert("item", rows(3))
    readers = [place.make_reader() for _ in range(CALLERS)]
    healthy = place.make_reader()
    seen = healthy.get().state.settled
    for one in readers:
        one.seen = seen
    lose(place, lost)
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        with connect(place.rig.url, application_name="test", autocommit=True) as conn:
            while not over.is_set():
                (count,) = conn.execute(QUEUED).fetchone() or (0,)
                most = max(most, count)

    watcher = threading.Thread(target=watch)
    with ThreadPoolExecutor(CALLERS) as pool:
        with claimed(place, writer):
            watcher.start()
            try:
                answers = [pool.submit(reason, one) for one in readers]
                until(lambda: queued(place) > 0, 10)
                # All the while others read.
                for _ in range(20):
                    assert healthy.get().page.reached.server_timestamp_ms == lost
            finally:
                over.set()
                watcher.join()
        assert [answer.result() for answer in answers] == ["HISTORY_REWOUND"] * CALLERS
    assert most == 1
    ended = place.conn.execute(
        "select count(*) from anabranch.epochs where database_id = %s", (writer.database.id,)
    ).fetchone()
    assert ended == (1,)
