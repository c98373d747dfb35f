"""Decimals in a device's file: compared as numbers by plain SQL, kept to the last zero."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Context, Decimal
from itertools import pairwise
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.older import before_audiences

from anabranch.client import SyncedDb, add_decimals
from anabranch.client.file import layout, redeclare
from anabranch.merge import Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.testkit.unseen import write_unseen
from anabranch.values import Column, Kind, Table
from anabranch.values.decimals import compare

BILL = Table(
    "bill",
    (
        Column("id", Kind.STRING, "text"),
        Column("price", Kind.DECIMAL, "numeric"),
        Column('odd, "price" TEXT', Kind.DECIMAL, "numeric"),
        Column("note", Kind.STRING, "text"),
    ),
    ("id",),
)
EDGES = [
    "0", "0.0", "0.00", "1", "1.0", "1.1", "1.10", "-1", "-1.10", "9", "10", "9000", "9000.01", "12000", "-12000",
    "0.1", "NaN", "Infinity", "-Infinity",
    "9007199254740993", "9007199254740992", "9007199254740993.0", "1" + "0" * 400,
    "1" + "0" * 400 + ".5", "-1" + "0" * 400, "0." + "0" * 400 + "1", "0." + "0" * 400 + "2", "123456789012345678.90",
]  # fmt: skip
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {">": gt, ">=": ge, "<": lt, "<=": le, "=": eq, "<>": ne}


@pytest.fixture
def remote() -> MemoryRemote:
    server = MemoryServer({"bill": MemoryTable({c.name: None for c in BILL.columns})}, Policy(), park_ms=1000)
    server.head = 1_000
    return MemoryRemote(server, [BILL], lambda: time.time_ns() // 1_000_000)


@pytest.fixture
def bills(tmp_path: Path, remote: MemoryRemote) -> Iterator[SyncedDb]:
    with closing(SyncedDb(tmp_path / "d.db", remote, "d")) as device:
        device.start(background=False)
        device.table("bill").insert([{"id": key(i), "price": text} for i, text in enumerate(drawn())])
        yield device


def drawn() -> list[str]:
    chance = random.Random(13)
    some = [
        f"{chance.choice(('', '-'))}{chance.randrange(10 ** chance.randrange(1, 30))}"
        + chance.choice(("", "." + "".join(chance.choices("0123456789", k=chance.randrange(1, 25)))))
        for _ in range(150)
    ]
    return EDGES + [text for text in some if Decimal(text) != 0] + [f"{i / 4:.2f}" for i in range(-40, 40)]


def key(number: int) -> str:
    return f"{number:03}"


def order_of(text: str) -> tuple[bool, Decimal]:
    """Postgres's order of numerics: NaN is equal to itself and after all others."""
    return text == "NaN", Decimal(0 if text == "NaN" else text)


def test_every_operator_compares_numbers(bills: SyncedDb) -> None:
    stored = [text for (text,) in bills.execute("SELECT price FROM bill ORDER BY id")]
    assert stored == drawn()
    for value in [*EDGES, "-0.25", "0.250", "2.75", "100"]:
        there = order_of(value)
        for operator, holds in OPERATORS.items():
            (count,) = bills.execute(f"SELECT count(*) FROM bill WHERE price {operator} ?", (value,)).fetchone()
            assert count == sum(holds(order_of(text), there) for text in stored), (operator, value)


def test_literals_of_sql_compare_as_numbers(bills: SyncedDb) -> None:
    def count(where: str) -> int:
        (found,) = bills.execute(f"SELECT count(*) FROM bill WHERE {where}").fetchone()
        return int(found)

    finite = [Decimal(text) for text in drawn() if text not in ("NaN", "Infinity", "-Infinity")]
    assert count("price > 9000") == sum(d > 9000 for d in finite) + 2
    assert count("price > 9000.0") == count("price > 9e3") == count("9000 < price") == count("price > 9000")
    assert count("price = 1.1") == count("price = 1.10") == 2
    assert count("price IN (1.1, 9000, -0.25)") == 2 + 1 + finite.count(Decimal("-0.25"))
    assert count("price BETWEEN -1.10 AND 9") == sum(Decimal("-1.1") <= d <= 9 for d in finite)
    assert count("price > 1e300") == sum(d > Decimal("1e300") for d in finite) + 2
    assert count("CASE price WHEN 1.100 THEN 1 ELSE 0 END") == 2
    assert count("decimal_cmp(price, 9000) > 0") == count("price > 9000")


def test_order_min_max_groups_and_distinct(bills: SyncedDb) -> None:
    stored = sorted(drawn(), key=order_of)
    ordered = [text for (text,) in bills.execute("SELECT price FROM bill ORDER BY price")]
    assert [order_of(t) for t in ordered] == [order_of(t) for t in stored]
    backwards = [text for (text,) in bills.execute("SELECT price FROM bill ORDER BY price DESC")]
    assert [order_of(t) for t in backwards] == [order_of(t) for t in reversed(stored)]
    finite = "price NOT IN ('NaN', 'Infinity', '-Infinity')"
    assert bills.execute("SELECT min(price), max(price) FROM bill").fetchone() == ("-Infinity", "NaN")
    least, greatest = bills.execute(f"SELECT min(price), max(price) FROM bill WHERE {finite}").fetchone()
    numbers = [Decimal(t) for t in stored if t not in ("NaN", "Infinity", "-Infinity")]
    assert (Decimal(least), Decimal(greatest)) == (min(numbers), max(numbers))
    different = len({order_of(t) for t in stored})
    assert bills.execute("SELECT count(DISTINCT price) FROM bill").fetchone() == (different,)
    assert len(bills.execute("SELECT price, count(*) FROM bill GROUP BY price").fetchall()) == different
    joined = bills.execute("SELECT count(*) FROM bill a JOIN bill b ON a.price = b.price").fetchone()
    assert joined == (sum(order_of(a) == order_of(b) for a in stored for b in stored),)


def test_an_index_of_the_app_serves_comparisons(bills: SyncedDb, tmp_path: Path) -> None:
    expected = bills.execute("SELECT id FROM bill WHERE price > 9000 ORDER BY price, id").fetchall()
    with closing(sqlite3.connect(tmp_path / "d.db")) as conn:
        add_decimals(conn)
        conn.execute("CREATE INDEX by_price ON bill (price)")
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert bills.execute("SELECT id FROM bill WHERE price > 9000 ORDER BY price, id").fetchall() == expected
    plan = bills.execute("EXPLAIN QUERY PLAN SELECT id FROM bill WHERE price > 9000 ORDER BY price, id").fetchall()
    assert "by_price" in plan[0][3]
    bills.table("bill").update({"id": key(5), "price": "1e5"})
    assert bills.execute("SELECT id FROM bill INDEXED BY by_price WHERE price = 100000").fetchall() == [(key(5),)]


def test_sums_and_means_are_exact(bills: SyncedDb) -> None:
    exact = Context(prec=2000)
    where = "WHERE price NOT IN ('NaN', 'Infinity', '-Infinity')"
    total = Decimal(0)
    finite = [Decimal(t) for t in drawn() if t not in ("NaN", "Infinity", "-Infinity")]
    for number in finite:
        total = exact.add(total, number)
    summed, mean = bills.execute(f"SELECT decimal_sum(price), decimal_avg(price) FROM bill {where}").fetchone()
    assert Decimal(summed) == total
    assert abs(exact.subtract(exact.multiply(Decimal(mean), Decimal(len(finite))), total)) <= abs(total) / 10**30
    one = bills.execute(
        "SELECT decimal_sum(x), decimal_avg(x) FROM (SELECT '0.10' AS x UNION ALL SELECT 0.2)"
    ).fetchone()
    assert one == ("0.30", "0.15")
    none = bills.execute("SELECT decimal_sum(price), decimal_avg(price) FROM bill WHERE id = ''").fetchone()
    assert none == (None, None)
    special = "SELECT decimal_sum(x) FROM (SELECT 'Infinity' AS x UNION ALL SELECT ?)"
    assert bills.execute(special, ("1",)).fetchone() == ("Infinity",)
    assert bills.execute(special, ("-Infinity",)).fetchone() == ("NaN",)
    assert bills.execute(special, ("NaN",)).fetchone() == ("NaN",)
    arithmetic = "SELECT decimal_add('0.1', '0.20'), decimal_sub(1, 0.1), decimal_mul('1.10', 3), decimal_add(NULL, 1)"
    assert bills.execute(arithmetic).fetchone() == ("0.30", "0.9", "3.30", None)
    with pytest.raises(sqlite3.OperationalError):
        bills.execute("SELECT decimal_sum('x')").fetchone()


def test_the_collation_is_an_order() -> None:
    texts = [*EDGES, "", "x", "1_0", " 7", "7 ", "nan", "1e400", "-1e400", "1e99999999999999999999", "+3", "3e0", "inf"]
    assert all(compare(a, b) == -compare(b, a) for a in texts for b in texts)
    chance = random.Random(1)
    for _ in range(3_000):
        a, b, c = (chance.choice(texts) for _ in range(3))
        if compare(a, b) <= 0 and compare(b, c) <= 0:
            assert compare(a, c) <= 0, (a, b, c)


def test_a_plain_connection_is_refused_and_never_answered_wrongly(bills: SyncedDb, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "d.db", isolation_level=None)) as conn:
        for query in (
            "SELECT id FROM bill WHERE price > 9000",
            "SELECT id FROM bill ORDER BY price",
            "SELECT max(price) FROM bill",
            "SELECT DISTINCT price FROM bill",
        ):
            with pytest.raises(sqlite3.OperationalError, match="no such collation sequence: decimal"):
                conn.execute(query).fetchall()
        assert len(conn.execute("SELECT * FROM bill").fetchall()) == len(drawn())
        assert conn.execute("SELECT count(*) FROM bill WHERE price + 0.0 > 9000 AND note IS NULL").fetchone()
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        with pytest.raises(sqlite3.OperationalError, match="no such collation sequence: decimal"):
            conn.execute("VACUUM")
        add_decimals(conn)
        conn.execute("VACUUM")
        assert conn.execute("SELECT max(price) FROM bill").fetchone() == ("NaN",)
    assert bills.verify() == ()


def test_a_pull_tells_of_a_value_that_only_gained_a_zero(bills: SyncedDb, remote: MemoryRemote) -> None:
    assert bills.sync()
    seen: list[Any] = []
    bills.on_change(lambda change: seen.append(change.row))
    with closing(sqlite3.connect(bills._file.path)) as conn, conn:
        add_decimals(conn)
        write_unseen(conn, "UPDATE bill SET price = '1.100' WHERE id = '005'")
    bills._reader.snapshot()
    assert [row["price"] for row in seen] == ["1.1"]


def before(path: Path, version: int) -> None:
    """Make the file what a former version left."""
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        add_decimals(conn)
        conn.execute("BEGIN")
        conn.execute("PRAGMA writable_schema = ON")
        conn.execute("UPDATE sqlite_master SET sql = replace(sql, ' COLLATE decimal', '') WHERE name = 'bill'")
        conn.execute("PRAGMA writable_schema = RESET")
        conn.execute("CREATE INDEX apps_own ON bill (price)")
        conn.execute("REINDEX")
        for column in ("credential", "chosen", "describe_due"):
            conn.execute(f"ALTER TABLE _db_state DROP COLUMN {column}")
        before_audiences(conn)
        conn.execute(f"PRAGMA user_version = {version}")
        conn.execute("COMMIT")
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("REINDEX")
        (first,) = conn.execute("SELECT max(price) FROM bill WHERE price < 'A'").fetchone()
        assert first.startswith("9")


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_a_file_from_before_compares_numbers_and_keeps_every_digit(
    tmp_path: Path, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, in_place: bool, added: bool
) -> None:
    path = tmp_path / "d.db"
    with closing(SyncedDb(path, remote, "d")) as device:
        device.start(background=False)
        device.table("bill").insert([{"id": key(i), "price": text} for i, text in enumerate(drawn())])
        assert device.sync()
        device.table("bill").update({"id": key(0), "price": "7.70"})
        if added:
            with device._file.transaction() as tx:
                tx.conn.execute('ALTER TABLE bill DROP COLUMN "price"')
                tx.conn.execute('ALTER TABLE bill ADD COLUMN "price" TEXT COLLATE decimal')
                with tx.writing(tx.tables["bill"], 500):
                    rows = [(text, key(i)) for i, text in enumerate(["7.70", *drawn()[1:]])]
                    tx.conn.executemany("UPDATE bill SET price = ? WHERE id = ?", rows)
    before(path, layout.PLAIN_DECIMALS)
    if not in_place:
        monkeypatch.setattr(redeclare, "_in_place", lambda *_: False)
    with closing(SyncedDb(path, remote, "d")) as device:
        device.start(background=False)
        assert device.execute("PRAGMA user_version").fetchone() == (layout.FORMAT,)
        assert device.execute("SELECT max(price) FROM bill").fetchone() == ("NaN",)
        prices = [text for (text,) in device.execute("SELECT price FROM bill ORDER BY price")]
        assert all(compare(a, b) <= 0 for a, b in pairwise(prices))
        assert device.execute('SELECT count(*) FROM bill WHERE "odd, ""price"" TEXT" > 1').fetchone() == (0,)
        assert device.verify() == ()
        assert device.sync()
    with closing(sqlite3.connect(path)) as conn:
        add_decimals(conn)
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        indexed = conn.execute("SELECT price FROM bill INDEXED BY apps_own WHERE price > 0 ORDER BY price").fetchall()
        assert len(indexed) == sum(order_of(t) > (False, Decimal(0)) for t in ["7.70", *drawn()[1:]])
        with pytest.raises(sqlite3.IntegrityError):
            conn.execute("DELETE FROM bill")
