"""A device's decimals compare, sort and group as Postgres's."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import psycopg

from anabranch.client import add_decimals

NUMBERS = [
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "0",
        "0.00",
        "1.1",
        "1.10",
        "-1.1",
        "9",
        "10",
        "9000",
        "12000",
        "1e300",
        "1e-300",
    ),
    *("9007199254740993", "9007199254740992", "9007199254740992.5"),
]


def drawn() -> list[str]:
    chance = random.Random(5)
    return NUMBERS + [
        f"{chance.randrange(-(10**digits), 10**digits)}.{chance.randrange(10**places):0{places}}"
        for digits in (1, 2, 5, 16, 30)
        for places in (1, 2, 12)
        for _ in range(6)
    ]


def test_comparisons_orders_and_groups(database_url: str) -> None:
    with psycopg.connect(database_url) as there, closing(sqlite3.connect(":memory:")) as here:
        there.execute("create table t (n numeric)")
        there.cursor().executemany("insert into t values (%s)", [(text,) for text in drawn()])
        texts = [text for (text,) in there.execute("select n::text from t").fetchall()]
        add_decimals(here)
        here.execute("create table t (n text collate decimal)")
        here.executemany("insert into t values (?)", [(text,) for text in texts])
        pairs = "select a.n {text}, b.n {text}, {relation} from t a, t b where a.n {operator} b.n order by 1, 2"
        for operator in ("<", "<=", "=", ">", ">=", "<>"):
            asked = [
                sorted(conn.execute(pairs.format(text=cast, relation="1", operator=operator)).fetchall())
                for conn, cast in ((there, "::text"), (here, ""))
            ]
            assert asked[0] == asked[1], operator
        # Equal ones stand in any order: as one of theirs.
        in_order = "select min(n {binary}) from t group by n order by n"
        theirs = [text for (text,) in there.execute('select min(n::text collate "C") from t group by n order by n')]
        assert [text for (text,) in here.execute(in_order.format(binary="collate binary"))] == theirs
        for function in ("min", "max", "sum", "avg"):
            where = "where n::text not in ('NaN', 'Infinity', '-Infinity')"
            theirs_one = there.execute(f"select {function}(n)::text from t {where}").fetchone()
            name = function if function in ("min", "max") else f"decimal_{function}"
            ours = here.execute(f"select {name}(n) from t {where.replace('::text', '')}").fetchone()
            assert theirs_one is not None
            assert theirs_one[0].startswith(ours[0][:38]) if function == "avg" else theirs_one == ours
