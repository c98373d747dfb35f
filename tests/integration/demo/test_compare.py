"""The demo's tables on a real Postgres, and the comparison of a tablet's file with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from anabranch.demo import compare, data, stage, sums
from anabranch.store.audiences.set_rules import given_rules
from anabranch.store.catalog.databases import Database
from anabranch.store.session.engine import Session, connect

ROWS = """
insert into airfield.airlines values ('AA', 'American'), ('UA', 'United');
insert into airfield.airports select faa, faa, 40, -73.5, 10, -5, 'A', null from unnest('{EWR,JFK,LGA}'::text[]) faa;
insert into airfield.weather (origin, time_hour, temp, precip, visib) values ('LGA', '2013-03-08 05:00Z', 39.50, 0, 10);
insert into airfield.flights (flight_date, carrier, flight, origin, dest, sched_dep_time, sched_arr_time, distance,
                              time_hour, gate)
select '2013-03-08', carrier, number, origin, 'LAX', 900, 1100, 2454, '2013-03-08 05:00Z', null
from (values ('AA', 1, 'JFK'), ('UA', 2, 'EWR'), ('UA', 3, 'EWR'), ('UA', 4, 'EWR')) f (carrier, number, origin);
insert into airfield.gate_notes
values ('n1', '2013-03-08', 'AA', 1, 'JFK', 'gate-jfk', 'late', '2013-03-08 05:00Z'),
       ('n2', '2013-03-08', 'UA', 2, 'EWR', 'gate-ewr-1', 'late', '2013-03-08 05:00Z');
"""
HOUR = 1_362_718_800_000_000
# The file of a tablet at EWR.
FILE = f"""
create table airlines (carrier, name);
insert into airlines values ('UA', 'United'), ('AA', 'American');
create table airports (faa, name, lat, lon, alt, tz, dst, tzone);
insert into airports select column1, column1, 40.0, -73.5, 10, -5, 'A', NULL from (values ('EWR'), ('JFK'), ('LGA'));
create table planes (tailnum, year, type, manufacturer, model, engines, seats, speed, engine);
create table weather (origin, time_hour, temp, dewp, humid, wind_dir, wind_speed, wind_gust, precip, pressure, visib);
insert into weather values ('LGA', {HOUR}, '39.50', NULL, NULL, NULL, NULL, NULL, '0.00', NULL, '10.00');
create table flights (flight_date, carrier, flight, origin, dest, tailnum, sched_dep_time, dep_time, dep_delay,
                      sched_arr_time, arr_time, arr_delay, air_time, distance, time_hour, gate);
insert into flights (flight_date, carrier, flight, origin, dest, sched_dep_time, sched_arr_time, distance, time_hour)
select 15772, 'UA', column1, 'EWR', 'LAX', 900, 1100, 2454, {HOUR} from (values (2), (3), (4));
create table gate_notes (id, flight_date, carrier, flight, origin, tablet, body, written_at);
insert into gate_notes values ('n2', 15772, 'UA', 2, 'EWR', 'gate-ewr-1', 'late', {HOUR});
"""


@pytest.fixture
def conn(migrated_url: str) -> Iterator[Session]:
    with connect(migrated_url, application_name="test", autocommit=True) as session:
        data.define(session)
        session.execute(ROWS)
        yield session


@pytest.fixture
def database(conn: Session) -> Database:
    return stage.register(conn)


def test_flights_and_notes_are_those_of_an_airport_and_claims_name_it(conn: Session, database: Database) -> None:
    assert set(database.tables) == set(data.TABLES)
    assert database.restricted.keys() == {"flights", "gate_notes"}
    assert given_rules(database.audience_rules) == {"claims": {"airports": "airport"}, "memberships": []}
    assert database.audience_rules.read.claimed({"airports": ["EWR"]}) == {"airport:EWR"}
    counts = {
        place: count
        for place, (count, _) in sums.of_server(conn, database).items()
        if place[0] in ("flights", "gate_notes")
    }
    assert counts == {
        ("flights", ""): 4,
        ("flights", "airport:EWR"): 3,
        ("flights", "airport:JFK"): 1,
        ("gate_notes", ""): 2,
        ("gate_notes", "airport:EWR"): 1,
        ("gate_notes", "airport:JFK"): 1,
    }


@pytest.mark.parametrize(
    ("damage", "compared", "differing"),
    [
        ("select 1", 10, 0),
        ("delete from flights where flight = 2", 10, 1),
        ("delete from flights where flight = 4", 10, 1),
        ("insert into flights select 15772, 'AA', 1, 'JFK', dest, tailnum, 900, NULL, NULL, 1100, NULL, NULL, NULL,"
         f" 2454, {HOUR}, NULL from flights where flight = 2", 11, 1),
        ("insert into gate_notes select 'n1', 15772, 'AA', 1, 'JFK', 'gate-jfk', 'late', written_at from gate_notes",
         11, 1),
        ("update flights set gate = 'A1' where flight = 3", 10, 1),
        ("update flights set flight = 5 where flight = 3", 11, 2),
        ("delete from airlines where carrier = 'UA'", 10, 1),
        ("insert into planes (tailnum) values ('N1')", 11, 1),
        ("alter table flights add column remote_stand", 10, 3),
        ("alter table gate_notes drop column body", 10, 1),
    ],
)  # fmt: skip
def test_each_row_that_differs_is_counted_once(
    conn: Session, database: Database, tmp_path: Path, damage: str, compared: int, differing: int
) -> None:
    file = tmp_path / "tablet.db"
    with closing(sqlite3.connect(file)) as device:
        device.executescript(FILE)
        device.executescript(damage)
    assert compare.whole(conn, database, file, "EWR") == (compared, differing)
