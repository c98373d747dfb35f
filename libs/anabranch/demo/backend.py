"""The airline's own backend: a process that knows nothing of sync, and writes to Postgres with plain SQL while the
tablets are away.

It enters the day's arrivals (row by row), moves the gates of one airline (one statement over many rows), deletes a
cancelled flight (its notes are deleted with it), and inserts a charter flight. In the middle of it a new release brings
a column for flights that park far from the gates, and marks those of the moved airline. Its work depends on the
departures alone.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.queues import Queue
from typing import Any, NamedTuple

from anabranch.demo import plan
from anabranch.store.catalog.databases import Database
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.waiting import until

APPLICATION = "airline-backend"
MOVED = "UA"
"""The airline whose gates are moved."""
ADDED = ("flights", "remote_stand")
"""The table that gets a column while the tablets are away, and the column."""
_ROWS_A_TRANSACTION = 50
_PATIENCE_S = 120.0
_LOGGED_S = 30.0

_ARRIVED = """
update airfield.flights set arr_time = %(arr_time)s, arr_delay = %(arr_delay)s, air_time = %(air_time)s
where (flight_date, carrier, flight, origin) = (%(flight_date)s, %(carrier)s, %(flight)s, %(origin)s)
"""
_MOVE = """
update airfield.flights set gate = 'T' || (1 + flight %% 9) where flight_date = %s and carrier = %s
"""
_RELEASE = f"alter table airfield.{ADDED[0]} add column {ADDED[1]} boolean not null default false"
_MARK = f"update airfield.{ADDED[0]} set {ADDED[1]} = true where flight_date = %s and carrier = %s"
_TAKE_OUT = """
delete from airfield.flights
where (flight_date, carrier, flight, origin) = (%(flight_date)s, %(carrier)s, %(flight)s, %(origin)s)
"""
_CHARTER = """
insert into airfield.flights (flight_date, carrier, flight, origin, dest, sched_dep_time, sched_arr_time, distance,
                              time_hour)
select flight_date, carrier, 9001, origin, dest, sched_dep_time, sched_arr_time, distance, time_hour
from airfield.flights where flight_date = %s order by carrier, flight, origin limit 1
"""

_CLOSE = """
update airfield.flights set gate = gate || ' closed'
where flight_date = %s and gate is not null and dep_delay > 60 returning origin
"""


class Done(NamedTuple):
    """The backend's work: rows that it changed by SQL, in how many transactions, in how many seconds."""

    rows: int
    transactions: int
    seconds: float


def work(url: str, departures: Sequence[Mapping[str, Any]]) -> Done:
    """Have the backend do its work, in a process of its own.

    Raises:
        RuntimeError: it failed, or took longer than two minutes.
    """
    context = multiprocessing.get_context("spawn")
    answer: Queue[Done] = context.Queue()
    process = context.Process(target=_run, args=(url, list(departures), answer), name=APPLICATION, daemon=True)
    process.start()
    process.join(_PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise RuntimeError("the backend did not come to an end")
    if process.exitcode:
        raise RuntimeError(f"the backend ended with {process.exitcode}")
    return answer.get(timeout=1)


def close_the_day(conn: Session) -> Counter[str]:
    """Write as the backend does once the Parquet is published: mark the gate of every flight that left late. Returns
    the number of rows changed, by airport. Raises psycopg.Error."""
    return Counter(origin for (origin,) in conn.execute(_CLOSE, (plan.DAY,)))


def wait_until_logged(conn: Session, database: Database) -> None:
    """Wait until the backend's writes are in the log. Raises AssertionError where it takes too long, psycopg.Error."""
    waiting = "select exists (select from anabranch.captured where database_id = %s)"
    until(
        lambda: conn.execute(waiting, (database.id,)).fetchone() == (False,),
        _LOGGED_S,
        "the backend's changes were not in the log in time",
    )


def _run(url: str, departures: Sequence[Mapping[str, Any]], answer: Queue[Done]) -> None:
    started = time.perf_counter()
    arrived = [d for d in departures if d["arr_time"] is not None]
    cancelled = [d for d in departures if d["dep_time"] is None]
    rows = transactions = 0
    with connect(url, application_name=APPLICATION) as conn, conn.cursor() as cursor:
        for first in range(0, len(arrived), _ROWS_A_TRANSACTION):
            cursor.executemany(_ARRIVED, arrived[first : first + _ROWS_A_TRANSACTION])
            rows += cursor.rowcount
            conn.commit()
            transactions += 1
        for statement, parameters in (
            (_MOVE, (plan.DAY, MOVED)),
            (_RELEASE, None),
            (_MARK, (plan.DAY, MOVED)),
            (_TAKE_OUT, cancelled[-1]),
            (_CHARTER, (plan.DAY,)),
        ):
            cursor.execute(statement, parameters)
            rows += max(0, cursor.rowcount)
            conn.commit()
            transactions += 1
    answer.put(Done(rows, transactions, time.perf_counter() - started))
