"""A process that writes the synced tables by plain SQL, and keeps a journal of it.

Usage: ``python -m anabranch.testkit.torture.writer CONFIG``, a JSON object {url, seed, record}. Into ``record`` goes a
JSON object a line for each transaction, right before it is committed or rolled back: {"mark": a text of its own,
"transaction": its number, "steps": [[table, key, row before, row after], …]}, the rows as Postgres returned them.
The table ``WRITTEN`` holds the marks of the transactions that were committed, also of those whose answer was lost:
after a crash Postgres may use a number again whose transaction was not committed.

Single rows, statements of many rows, transactions of several statements with savepoints that are rolled back, deletes
that cascade, COPY, keys that change, transactions that stay open, TRUNCATE. A refused transaction is rolled back.

Commands on its input: "flood" writes many rows in one transaction and deletes them in another, "large row" writes a row
of some MB, "long keys" some rows with keys of some KB; it prints the same once it is done. "stop" ends it. It prints
"started" once it is connected.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from anabranch.errors import AnabranchError
from anabranch.testkit.torture.records import open_record
from anabranch.testkit.torture.side_effects import CHECKED, NUMBERED, REFUSED, TALLY
from anabranch.testkit.torture.tables import CODES, NAME, SHARED, WRITTEN

COLUMNS = {
    "shared": ("id", "title", "note", "n", "top", "tags"),
    "strict": ("id", "shared_id", "code", "qty"),
    "parts": ("id", "shared_id", "body"),
    NUMBERED: ("id", "title", "number"),
    CHECKED: ("id", "title"),
}
PAUSE_S = 0.2
PATIENCE_S = 60.0
LONGEST_OPEN_S = 3.0
MOST_PARTS = 300
FLOOD_ROWS = 6_000
"""Rows of a flood: more than a group drains at once."""
LARGE_BYTES = (1_000_000, 3_000_000)
LONG_KEY_BYTES = (2_700, 6_000)
UNPACKED_KEY_BYTES = 2_650
A_ROW = f"(select id from {NAME}.shared order by md5(id) limit 1) k"
TRIES = 20
_SETTINGS = "-c statement_timeout=10s -c lock_timeout=3s"
Conn = psycopg.Connection[Any]


class _Enough(AnabranchError):
    """The transaction is to be rolled back."""


class _TakenBack(AnabranchError):
    """The savepoint is to be rolled back to."""


class Writer:
    """Writes into the database at ``url``."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.chance = random.Random(config["seed"])
        self._url = config["url"]
        self._seed = config["seed"]
        self._out = open_record(config["record"])
        self._number = 0
        self._steps: list[list[Any]] = []
        self._conn = self._connected()

    def _connected(self) -> Conn:
        """Raises psycopg.OperationalError where there is no Postgres for too long."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return psycopg.connect(self._url, application_name="torture-writer", options=_SETTINGS)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)  # no event reports that a restarted server is back

    def transaction(self, work: Callable[[], object]) -> bool:
        """Run one transaction; return whether it was committed, as far as this session knows."""
        self._steps = []
        if self._conn.closed:
            self._conn = self._connected()
        try:
            # Begun here, so that nested transaction blocks are savepoints.
            level = b"repeatable read" if self.chance.random() < 0.1 else b"read committed"
            self._conn.execute(b"set transaction isolation level " + level)
            try:
                work()
            except _Enough:
                self._note()
                self._conn.rollback()
                return False
            self._note()
            self._conn.commit()
        except psycopg.Error:
            if not self._conn.closed:
                self._conn.rollback()
            return False
        return True

    def _note(self) -> None:
        mark = self.mark()
        statement = f"insert into {WRITTEN} values (%s) returning pg_current_xact_id()::text"
        row = self._conn.execute(statement.encode(), (mark,)).fetchone()
        assert row is not None
        line = {"mark": mark, "transaction": row[0], "steps": self._steps}
        os.write(self._out, (json.dumps(line) + "\n").encode())

    def mark(self) -> str:
        """A text that no other writer uses."""
        self._number += 1
        return f"w{self._seed:x}.{self._number}"

    def write(self, table: str, statement: str, *values: Any) -> int:
        """Run a statement and note its rows; return their number."""
        names = COLUMNS[table]
        returned = ", ".join(f"{side}.{name}" for side in ("old", "new") for name in names)
        rows = self._conn.execute(f"{statement} returning {returned}".encode(), values).fetchall()
        for row in rows:
            before = dict(zip(names, row[: len(names)], strict=True)) if row[0] is not None else None
            after = dict(zip(names, row[len(names) :], strict=True)) if row[len(names)] is not None else None
            if before is not None and after is not None and before["id"] != after["id"]:
                self._steps += [[table, before["id"], before, None], [table, after["id"], None, after]]
            else:
                self._steps.append([table, (before or after or {})["id"], before, after])
        return len(rows)

    # Writes

    def key(self) -> str:
        """The key of a row of ``shared``, which may or may not exist."""
        return f"s{self.chance.randrange(SHARED):02}"

    def update_shared(self) -> None:
        """Update some columns of some rows."""
        keys = self.chance.sample(range(SHARED), self.chance.choice((1, 1, 1, 3, 12)))
        names = self.chance.sample(COLUMNS["shared"][1:], self.chance.randint(1, 2))
        sets = []
        for name in names:
            if name in ("n", "top"):
                sets.append(f"{name} = coalesce({name}, 0) + {self.chance.randint(-5, 9)}")
            elif name == "tags":
                sets.append(f"tags = array['t{self.chance.randrange(12)}', 't{self.chance.randrange(12)}']")
            else:
                sets.append(f"{name} = '{self.mark()}'")
        self.write(
            "shared",
            f"update {NAME}.shared set {', '.join(sets)} where id = any(%s)",
            [f"s{key:02}" for key in keys],
        )

    def put_shared(self) -> None:
        """Insert rows, or write over existing ones."""
        over = self.chance.choice(("do nothing", "do update set title = excluded.title"))
        self.write(
            "shared",
            f"insert into {NAME}.shared (id, title) values (%s, %s) on conflict (id) {over}",
            self.key(),
            self.mark(),
        )

    def delete_shared(self) -> None:
        """Delete a row with all rows that refer to it: a cascade deletes the parts, and no statement returns those."""
        key = self.key()
        self._conn.execute(f"select from {NAME}.shared where id = %s for update".encode(), (key,))
        self.write("strict", f"delete from {NAME}.strict where shared_id = %s", key)
        # No other session can insert a child while its parent is locked.
        names = ", ".join(COLUMNS["parts"])
        children = self._conn.execute(
            f"select {names} from {NAME}.parts where shared_id = %s for update".encode(), (key,)
        ).fetchall()
        self.write("shared", f"delete from {NAME}.shared where id = %s", key)
        for child in children:
            self._steps.append(["parts", child[0], dict(zip(COLUMNS["parts"], child, strict=True)), None])

    def write_strict(self) -> None:
        """Write a row of ``strict``, now and then one that is refused."""
        what = self.chance.random()
        if what < 0.6:
            code = f"c{self.chance.randrange(CODES):02}" if self.chance.random() < 0.3 else None
            statement = f"insert into {NAME}.strict values (%s, %s, %s, %s)"
            self.write("strict", statement, self.mark(), self.key(), code, self.chance.randint(0, 9))
        elif what < 0.8:
            some = f"(select id from {NAME}.strict order by md5(id || %s) limit 3)"
            self.write("strict", f"update {NAME}.strict set qty = qty + 1 where id in {some}", self.mark())
        else:
            some = f"(select id from {NAME}.strict order by md5(id || %s) limit {self.chance.choice((1, 20))})"
            self.write("strict", f"delete from {NAME}.strict where id in {some}", self.mark())

    def write_parts(self) -> None:
        """Write many rows of ``parts``."""
        row = self._conn.execute(f"select count(*) from {NAME}.parts".encode()).fetchone()
        what = self.chance.random()
        if row is not None and row[0] > MOST_PARTS:
            what = 0.99
        if what < 0.45:
            many = self.chance.choice((1, 5, 40))
            statement = (
                f"insert into {NAME}.parts select %s || '.' || g, %s, 'b' || g from generate_series(1, {many}) g"
            )
            self.write("parts", statement, self.mark(), self.key())
        elif what < 0.7:
            self.write("parts", f"update {NAME}.parts set body = body || '.' where shared_id = %s", self.key())
        elif what < 0.8:
            some = f"(select id from {NAME}.parts order by md5(id || %s) limit 2)"
            self.write("parts", f"update {NAME}.parts set id = id || 'k' where id in {some}", self.mark())
        else:
            some = f"(select id from {NAME}.parts order by md5(id || %s) limit 60)"
            self.write("parts", f"delete from {NAME}.parts where id in {some}", self.mark())

    def copy_parts(self) -> None:
        """Copy rows in by COPY, which returns none: the journal notes the rows that were sent."""
        rows = [(self.mark(), self.key(), "copied") for _ in range(self.chance.choice((1, 20)))]
        names = COLUMNS["parts"]
        with (
            self._conn.cursor() as cursor,
            cursor.copy(f"copy {NAME}.parts ({', '.join(names)}) from stdin".encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)
        self._steps += [["parts", row[0], None, dict(zip(names, row, strict=True))] for row in rows]

    def truncate(self) -> None:
        """Truncate a table to which no other refers."""
        table = self.chance.choice(("strict", "parts"))
        names = COLUMNS[table]
        self._conn.execute(f"lock table {NAME}.{table} in access exclusive mode".encode())
        rows = self._conn.execute(f"select {', '.join(names)} from {NAME}.{table}".encode()).fetchall()
        self._conn.execute(f"truncate {NAME}.{table}".encode())
        self._steps += [[table, row[0], dict(zip(names, row, strict=True)), None] for row in rows]

    def write_counted(self) -> None:
        """Write rows of a table whose own code writes, and note the counter, too."""
        table, what = self.chance.choice((NUMBERED, CHECKED)), self.chance.random()
        first = self._tally(table)
        some = f"(select id from {NAME}.{table} order by md5(id || %s) limit 3 for update)"
        if what < 0.5:
            statement = f"insert into {NAME}.{table} (id, title) select %s || '.' || g, %s from"
            title = REFUSED if self.chance.random() < 0.1 else self.mark()
            many = self.chance.choice((1, 1, 3))
            self.write(table, f"{statement} generate_series(1, {many}) g", self.mark(), title)
        elif what < 0.8:
            mark = self.mark()
            self.write(table, f"update {NAME}.{table} set title = %s where id in {some}", mark, mark)
        else:
            self.write(table, f"delete from {NAME}.{table} where id in {some}", self.mark())
        for n in range(first, self._tally(table)):
            self._steps.append([TALLY, table, {"id": table, "n": n}, {"id": table, "n": n + 1}])

    def _tally(self, table: str) -> int:
        """The counter of a table, locked so that no other session counts from here on."""
        statement = f"select n from {NAME}.{TALLY} where id = %s for update"
        row = self._conn.execute(statement.encode(), (table,)).fetchone()
        assert row is not None
        return int(row[0])

    def several(self) -> None:
        """Run several statements; roll some of them back, now and then all of them."""
        for _ in range(self.chance.randint(2, 6)):
            noted = len(self._steps)
            try:
                with self._conn.transaction():
                    self.one()
                    if self.chance.random() < 0.3:
                        raise _TakenBack
            except (_TakenBack, psycopg.errors.IntegrityError):
                del self._steps[noted:]
        if self.chance.random() < 0.2:
            raise _Enough

    def one(self) -> None:
        """Run one statement, or several that belong together."""
        works: Sequence[tuple[Callable[[], None], int]] = (
            (self.update_shared, 40),
            (self.put_shared, 12),
            (self.delete_shared, 6),
            (self.write_strict, 20),
            (self.write_parts, 18),
            (self.copy_parts, 4),
            (self.write_counted, 4),
        )
        self.chance.choices([work for work, _ in works], [weight for _, weight in works])[0]()

    def held_open(self) -> None:
        """Write something, and hold the transaction open for a while."""
        self.one()
        time.sleep(self.chance.uniform(0.3, LONGEST_OPEN_S))  # the fault itself: locks that are held for long
        self.one()

    def flood(self) -> None:
        """Write many rows in one transaction, and delete them in the next."""
        mark = self.mark()
        statement = (
            f"insert into {NAME}.parts select %s || '.' || g, k.id, null from generate_series(1, {FLOOD_ROWS}) g,"
        )
        self.transaction(lambda: self.write("parts", f"{statement} {A_ROW}", mark))
        self.transaction(lambda: self.write("parts", f"delete from {NAME}.parts where id like %s", f"{mark}.%"))

    def large_row(self) -> None:
        """Write one row that is larger than a page of the log."""
        mark = self.mark()
        body = mark * (self.chance.randint(*LARGE_BYTES) // len(mark))
        statement = f"insert into {NAME}.parts select %s, k.id, %s from {A_ROW}"
        self._surely(lambda: self.write("parts", statement, mark, body))

    def long_keys(self) -> None:
        """Write keys that are too long for an index of the server's own tables: as text, or in any form."""
        mark = self.mark()
        keys = [f"{mark}.{'é€' * (self.chance.randint(*LONG_KEY_BYTES) // 5)}" for _ in range(2)]
        # It can't be compressed, and just fits into the table's own index.
        keys.append(f"{mark}.{self.chance.randbytes(1_325).hex()}"[:UNPACKED_KEY_BYTES])
        statement = f"insert into {NAME}.parts select u.key, k.id, 'long' from unnest(%s::text[]) u (key), {A_ROW}"
        self._surely(lambda: self.write("parts", statement, keys))

    def _surely(self, work: Callable[[], object]) -> None:
        for _ in range(TRIES):
            if self.transaction(work):
                return
        raise AssertionError(f"no transaction in {TRIES} was committed")

    def next(self) -> None:
        """Run the next transaction."""
        what = self.chance.random()
        if what < 0.6:
            self.transaction(self.one)
        elif what < 0.9:
            self.transaction(self.several)
        elif what < 0.985:
            self.transaction(self.held_open)
        else:
            self.transaction(self.truncate)


def main() -> None:
    """The process."""
    told: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            told.put(line.strip())
        told.put("stop")

    threading.Thread(target=listen, daemon=True).start()
    writer = Writer(json.loads(sys.argv[1]))
    works = {"flood": writer.flood, "large row": writer.large_row, "long keys": writer.long_keys}
    print("started", flush=True)
    while True:
        writer.next()
        try:
            line = told.get(timeout=writer.chance.uniform(0, PAUSE_S))
        except queue.Empty:
            continue
        if line == "stop":
            break
        works[line]()
        print(line, flush=True)
    print("stopped", flush=True)


if __name__ == "__main__":
    main()
