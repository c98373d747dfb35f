"""The demo's stage: the tables and their rows, registered with those rules by which a tablet sees its airport's rows,
and the tablets' processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anabranch.demo import airports, data, lake, plan, tablet
from anabranch.demo.changes import KEY
from anabranch.demo.tablet import DATABASE, Tablet
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import Database
from anabranch.store.session.engine import Session
from anabranch.testkit.stack import Stack

_REAL_COLUMNS = (
    *KEY,
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "tailnum",
    "arr_time",
    "arr_delay",
    "air_time",
)
_REAL = """
select flight_date, carrier, flight, origin, sched_dep_time, dep_time, dep_delay, tailnum, arr_time, arr_delay, air_time
from airfield.flights where flight_date = %s
"""
_BLANK = """
update airfield.flights set dep_time = null, dep_delay = null, arr_time = null, arr_delay = null, air_time = null
where flight_date = %s
"""


def load(conn: Session) -> tuple[dict[str, int], Sequence[Mapping[str, Any]]]:
    """Fill the tables. Returns the number of rows of each, and the day's departures as they really were: they are not
    known yet when it begins. Raises psycopg.Error."""
    rows = data.load(conn)
    departures = [dict(zip(_REAL_COLUMNS, row, strict=True)) for row in conn.execute(_REAL, (plan.DAY,))]
    conn.execute(_BLANK, (plan.DAY,))
    return rows, departures


def register(conn: Session) -> Database:
    """Register the tables for sync, and say who sees which rows. Raises RegistrationError."""
    registration.create_database(conn, DATABASE, data.SCHEMA, {"retention_days": lake.RETENTION_DAYS})
    for table in data.TABLES:
        audience = airports.EXPRESSION if table in airports.RESTRICTED else None
        registration.add_table(conn, DATABASE, table, audience=audience)
    return set_audience_rules(conn, DATABASE, airports.RULES)


def start_tablet(stack: ExitStack, name: str, folder: Path, services: Stack, issuer: airports.Issuer) -> Tablet:
    """Start a tablet, which ends with ``stack``."""
    context = multiprocessing.get_context("spawn")
    started = tablet.start(context, name, folder, services.addresses, issuer.token(name))
    stack.callback(started.end)
    return started
