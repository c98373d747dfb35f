"""The calendar reads texts as Postgres does, and prints them so: asked of a real one, text by text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest

from anabranch.store.session.engine import Session
from anabranch.values import calendar
from anabranch.values.calendar import OutOfRangeError, moment_rank, parse_date, parse_time, parse_timestamp
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Literal,
)

ASK = """
create function pg_temp.asked(value text, type text, number text, out printed text, out counted text, out refused text)
language plpgsql as $$
begin
  execute format('select v::text, (%s)::text from (select %L::%s as v) q', number, value, type) into printed, counted;
exception when others then
  refused := sqlstate;
end $$
"""
# By whole seconds: of all microseconds at once Postgres gives fewer digits, after the year 294247.
_MOMENT = (
    "case when isfinite(v) then extract(epoch from date_trunc('second', v)) * 1000000 "
    "+ extract(microseconds from v)::bigint % 1000000 end"
)
NUMBERS = {
    "date": "case when isfinite(v) then v - date '1970-01-01' end",
    "time": "extract(epoch from v) * 1000000",
    "timestamp": _MOMENT,
    "timestamptz": _MOMENT,
}
ZONED = {"timestamp": False, "timestamptz": True}

DATES = [
    *("1970-01-01", "1969-12-31", "2000-02-29", "1900-02-28", "2024-02-29", "0001-01-01", "0001-01-01 BC"),
    *("0001-12-31 BC", "0001-02-29 BC", "0005-02-29 BC", "0004-02-28 BC", "4714-11-24 BC", "0044-03-15 BC"),
    *("9999-12-31", "10000-01-01", "12345-06-07", "294277-01-01", "5874897-12-31", "0010000-01-01", "010000-01-01"),
    *("infinity", "-infinity", "1582-10-04", "1582-10-10", "1582-10-15"),
]
NO_DATES = [
    *("2020-00-01", "2020-13-01", "2020-01-00", "2020-01-32", "2020-04-31", "2023-02-29", "1900-02-29", "2100-02-29"),
    *(
        "0000-01-01",
        "0000-01-01 BC",
        "0004-02-29 BC",
        "4714-11-23 BC",
        "4715-01-01 BC",
        "5874898-01-01",
        "9999999-01-01",
    ),
]
TIMES = [
    *("00:00", "00:00:00", "23:59", "23:59:59", "23:59:59.999999", "24:00", "24:00:00", "24:00:00.000000", "12:00:60"),
    *("23:59:60", "00:00:00.1", "00:00:00.000001", "12:34:56.7", "12:34:56.123456", "12:00:60.5", "23:59:59.9999999"),
    *("00:00:00.0000005", "00:00:00.0000015", "00:00:00.1234565", "00:00:00.12345649999999999", "24:00:00.0000004"),
    *("00:00:00.9999995", "00:00:00.99999949999", "00:00:00.00000000000000000001"),
]
NO_TIMES = [
    *(
        "24:00:01",
        "24:01",
        "24:00:00.000001",
        "25:00",
        "99:00:00",
        "12:60",
        "12:60:00",
        "12:00:61",
        "12:00:99",
        "23:59:61",
    ),
    *("23:59:60.000001", "24:00:60", "24:00:00.0000006"),
]
OFFSETS = [
    *("", "Z", " Z", "+00", "-00", "+01", "-01", " +01", " -01", "+0530", "-0530", "+05:30", "-05:30", "+05:30:15"),
    *("-00:00:01", "+15", "-15", "+15:59:59", "-15:59:59", "-15:59"),
]
NO_OFFSETS = ["+16", "-16", "+16:00", "+99", "+01:60", "+01:00:60", "+0160", "-9999"]
TIMESTAMPS = [
    *DATES[:-9],
    *(f"{day}{between}{time}" for day, between, time in product(("2020-02-29", "1969-12-31"), " T", TIMES)),
    *(f"2020-02-29 12:34:56.789{offset}" for offset in OFFSETS),
    *(f"0044-03-15T00:30{offset} BC" for offset in OFFSETS),
    *("294247-01-10 04:00:54.775806", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808"),
    *("294276-12-31 23:59:59.999999", "294276-12-31 23:59:59.9999994", "4714-11-24 00:00:00 BC", "9999-12-31 24:00"),
    *("infinity", "-infinity", "1582-10-10 12:00", "2020-12-31 23:59:60", "10000-01-01", "294276-12-31"),
    *("4714-11-24 01:00:00+01 BC", "294276-12-31 23:00:00+01"),
]
NO_TIMESTAMPS = [
    *NO_DATES[:-2],
    *(f"2020-02-29 {time}" for time in NO_TIMES),
    *(f"2020-02-29 12:00{offset}" for offset in NO_OFFSETS),
    *("294277-01-01", "294276-12-31 24:00:00", "294276-12-31 23:59:60", "4714-11-23 23:59:59 BC"),
    *("294276-12-31 23:59:59.9999996", "5874898-01-01 00:00:00", "2020-02-30 12:00:00"),
]
NEITHER = [
    *("", " ", "yesterday-ish", "2020-01-01x", "x2020-01-01", "12:00:00:00", "2020-01-01 12:00:00 2", "-", ":"),
    *("2020-01-01 12", "inf-inity", "--infinity", "NaN", "12", "2020-01-01 12:0x", "２０２０-01-01"),
    *("2020-01-01 12:00:00+", "2020-01-01 12:00:00+0x", "20:20:20-01-01"),
]
"""No type reads them, and neither do we."""
OTHERWISE: dict[str, dict[str, list[str]]] = {
    "its moment depends on when it is read": {
        "date": ["now", "today", "tomorrow", "yesterday"],
        "time": ["now", "allballs"],
        "timestamp": ["now", "today", "tomorrow", "yesterday", "epoch"],
        "timestamptz": ["now", "today", "yesterday 04:05", "epoch"],
    },
    "its order of day, month and year depends on the session": {
        "date": ["1/8/1999", "01-02-2020", "8.1.1999", "1999/01/08", "1-1-1"],
        "timestamp": ["01-02-2020 10:00", "1/8/1999 04:05:06"],
    },
    "it has a name of a month, a day or a zone": {
        "date": ["January 8, 1999", "1999-Jan-08", "08-Jan-1999", "Sat Jan 01 2000"],
        "timestamp": ["1999-Jan-08 04:05", "Sat Jan 01 00:00:00 2000"],
        "timestamptz": ["1999-01-08 04:05 PST", "1999-01-08 04:05 Europe/Berlin", "1999-01-08 04:05 UTC"],
        "time": ["04:05:06 PST"],
    },
    "it has no dashes, or counts days otherwise": {
        "date": ["19990108", "990108", "1999.008", "J2451187", "2020--01-01", "2020-1-1", "200-01-01"],
        "time": ["040506", "0405", "T040506", "1:02:03", "1:2:3", "2020-01"],
        "timestamp": ["19990108 040506", "20200101T000000", "2020-1-1 00:00:00", "J2451187"],
    },
    "it has an era or a half of the day in words": {
        "date": ["2020-01-01 AD", "0044-03-15 bc", "0044-03-15BC"],
        "time": ["04:05 AM", "04:05 PM"],
        "timestamp": ["2020-01-01 04:05 PM", "2020-01-01 AD"],
    },
    "it has blanks or letters that are not printed": {
        "date": [" 2020-01-01", "2020-01-01 ", "Infinity", "INFINITY", "2020-01-01\n"],
        "time": [" 12:00", "12:00 ", "T12:00"],
        "timestamp": ["2020-01-01t12:00", "2020-01-01 12:00z", "2020-01-01  12:00", "Infinity", "2020-01-01 12:00\n"],
    },
    "it says more than its type holds": {
        "date": ["2020-01-01 12:00:00", "2020-01-01T00:00", "2020-01-01 12:00+05"],
        "time": ["12:00:00+01", "12:00Z", "2020-01-01 12:00"],
    },
    "it has an offset and no time, or says it otherwise": {
        "timestamptz": ["2020-01-01+01", "2020-01-01Z", "2020-01-01 12:00+5", "2020-01-01 12:00+530"],
        "timestamp": ["2020-01-01 12:00:00 zulu"],
    },
    "it ends in the middle": {
        "time": ["12:00:00."],
        "timestamp": ["2020-01-01 12:00:00.", "2020-01-01 "],
    },
}
"""Why to type to texts: Postgres reads them, and we don't, for the reason given."""

ACCEPTED = {"date": DATES, "time": TIMES, "timestamp": TIMESTAMPS, "timestamptz": TIMESTAMPS}
OUT_OF_RANGE = {"date": NO_DATES, "time": NO_TIMES, "timestamp": NO_TIMESTAMPS, "timestamptz": NO_TIMESTAMPS}
TYPES = pytest.mark.parametrize("kind", sorted(ACCEPTED))


def reader(kind: str) -> Callable[[str], Any]:
    if kind == "date":
        return parse_date
    return parse_time if kind == "time" else lambda text: parse_timestamp(text, zone=ZONED[kind])


def printed(kind: str, cell: Any) -> str:
    if kind == "date":
        return calendar.date_text(cell)
    if kind == "time":
        return calendar.time_text(cell)
    return calendar.cell_timestamp_text(cell, zone=ZONED[kind])


@pytest.fixture(scope="module")
def conn(session: Session) -> Session:
    session.execute(ASK.encode())
    return session


def ask(conn: Session, kind: str, texts: Sequence[str]) -> list[tuple[str | None, str | None, str | None]]:
    """For each text what Postgres prints, the number that it counts, and the SQLSTATE of its refusal."""
    statement = (
        b"select a.printed, a.counted, a.refused from unnest(%s::text[]) with ordinality t (value, place), "
        b"lateral pg_temp.asked(t.value, %s, %s) a order by t.place"
    )
    return conn.execute(statement, [list(texts), kind, NUMBERS[kind]]).fetchall()


def require_same(conn: Session, kind: str, text: str, told: tuple[str | None, str | None, str | None]) -> None:
    """The cell of a text that both take is the number that Postgres counts, and prints as Postgres prints it."""
    shown, counted, refused = told
    assert refused is None, f"{kind} {text!r}: Postgres refuses it ({refused})"
    cell = reader(kind)(text)
    if type(cell) is Literal:
        # Held as it was written: what it stands for is looked at by its rank.
        number = moment_rank(str(shown))[1]
        assert counted is not None
        assert (number >= TIMESTAMP_INFINITY, number) == (True, int(float_free(counted))), f"{kind} {text!r}"
        assert calendar.timestamp_text(number, zone=ZONED[kind]) == shown
        return
    if counted is None:
        assert cell in (DATE_INFINITY, DATE_MINUS_INFINITY, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY)
    else:
        assert cell == int(float_free(counted)), f"{kind} {text!r}: {cell}, and for Postgres {counted}"
    assert printed(kind, cell) == shown, f"{kind} {text!r}"
    assert reader(kind)(str(shown)) == cell, f"{kind} {text!r}: {shown!r} does not read back"


def float_free(number: str) -> str:
    whole, _, part = number.partition(".")
    assert not part.strip("0"), number
    return whole


@TYPES
def test_what_both_take_is_one_value(conn: Session, kind: str) -> None:
    texts = ACCEPTED[kind]
    for text, told in zip(texts, ask(conn, kind, texts), strict=True):
        require_same(conn, kind, text, told)


@TYPES
def test_what_is_out_of_range_is_so_for_both(conn: Session, kind: str) -> None:
    texts = OUT_OF_RANGE[kind]
    for text, (shown, _, refused) in zip(texts, ask(conn, kind, texts), strict=True):
        # An offset out of range has a number of its own.
        assert refused in ("22008", "22009"), f"{kind} {text!r}: Postgres says {shown or refused}"
        with pytest.raises(OutOfRangeError):
            reader(kind)(text)


@TYPES
def test_what_no_type_reads_nobody_reads(conn: Session, kind: str) -> None:
    told = ask(conn, kind, NEITHER)
    taken = {text: shown for text, (shown, _, refused) in zip(NEITHER, told, strict=True) if refused is None}
    assert not taken, f"Postgres takes these as {kind}"
    for text in NEITHER:
        with pytest.raises(ValueError, match="as Postgres prints it"):
            reader(kind)(text)


@pytest.mark.parametrize("why", OTHERWISE)
def test_what_only_postgres_takes_is_refused_and_why(conn: Session, why: str) -> None:
    for kind, texts in OTHERWISE[why].items():
        told = ask(conn, kind, texts)
        assert not [text for text, (_, _, refused) in zip(texts, told, strict=True) if refused is not None], kind
        for text in texts:
            with pytest.raises(ValueError, match="as Postgres prints it"):
                reader(kind)(text)


def made(random: random.Random, kind: str) -> str:
    """A text in the calendar's form, often a little out of range."""
    year = f"{random.choice((random.randint(0, 5_000), random.randint(1_890, 2_110), random.randint(0, 5_900_000))):04}"
    day = f"{year}-{random.randint(0, 13):02}-{random.randint(0, 32):02}"
    time = f"{random.randint(0, 25):02}:{random.randint(0, 61):02}"
    if random.random() < 0.8:
        time += f":{random.randint(0, 61):02}"
        if random.random() < 0.6:
            time += "." + "".join(random.choices("0123456789", k=random.randint(1, 9)))
    era = random.choice(("", "", " BC"))
    if kind == "date":
        return day + era
    if kind == "time":
        return time
    offset = random.choice(("", "", f"{random.choice('+-')}{random.randint(0, 16):02}:{random.randint(0, 60):02}"))
    return f"{day}{random.choice(' T')}{time}{offset}{era}"


@TYPES
def test_made_texts_are_taken_by_both_or_by_none(conn: Session, kind: str) -> None:
    source = random.Random(kind)
    texts = [made(source, kind) for _ in range(4_000)]
    taken = 0
    for text, told in zip(texts, ask(conn, kind, texts), strict=True):
        if told[2] is None:
            taken += 1
            require_same(conn, kind, text, told)
        else:
            with pytest.raises(OutOfRangeError):
                reader(kind)(text)
    assert 1_000 < taken < 3_990, "the texts that are made are nearly all good, or nearly all bad"


def test_an_offset_that_does_not_count_is_left_out(conn: Session) -> None:
    texts = [*TIMESTAMPS, *NO_TIMESTAMPS, *NEITHER, "294276-12-31 23:00:00-05", "4714-11-24 01:00:00+05 BC"]
    for text, told in zip(texts, ask(conn, "timestamp", texts), strict=True):
        kept = calendar.without_offset(text)
        assert kept == text or (kept == told[0] and "+" not in kept)
        if told[2] is None:
            assert calendar.moment_rank(kept) == calendar.moment_rank(str(told[0]))
        else:
            assert kept == text
