"""Devices whose server's tables are altered at any moment: random histories of writes, DDL, plain SQL, networks and
restarts, one device tied to the first schema version as long as that can be told, then updated.

After every step: shown rows are base and queue, sums are those of the rows, the file's schema is sound. At the end,
with everybody online: each device has exactly the server's rows, column by column, both queues are empty, every batch
ever made is in the log or a dead letter, and nothing was pulled but what can't go on and what fell behind the floor.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.client.schema.altered import is_consistent

from anabranch.client import AppOutdated, CallFailed, NotReady, RowExists, RowMissing, SyncedDb
from anabranch.merge import SERVER_NODE, Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.testkit.own_folder import MEMORY
from anabranch.values import Cell, Column, Kind, Table

TODO = Table(
    "todo",
    (Column("id", Kind.STRING, "text"), Column("title", Kind.STRING, "text"), Column("n", Kind.INT64, "bigint")),
    ("id",),
)
NOTE = Table("note", (Column("id", Kind.STRING, "text"), Column("body", Kind.STRING, "text")), ("id",))
NAMES = ("title", "n", "body", "a", "b")
TABLES = ("todo", "note", "task", "visit")
KEYS = ("x", "y", "z")
FEW, MANY = 15, 400
ACTIONS = ("write", "write", "write", "ddl", "ddl", "sql", "read", "read", "flush", "offline", "online", "open")
RARE = ("lose", "cut", "behind")
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS * 3 + RARE), st.integers(0, 1), st.integers(0, 2**60)), min_size=4, max_size=30
)


class Bits:
    """Choices out of one number."""

    def __init__(self, number: int) -> None:
        self._left = number

    def choose(self, among: Any) -> Any:
        self._left, place = divmod(self._left, len(among))
        return among[place]


class World:
    def __init__(self, folder: Path) -> None:
        self.now = 1_700_000_000_000
        tables = {t.name: MemoryTable(dict.fromkeys(t.column_names)) for t in (TODO, NOTE)}
        self.server = MemoryServer(tables, Policy(), park_ms=1000)
        self.server.head = self.now - 1
        self.server.preset("todo", "x", {"id": "x", "title": "there before", "n": 1})
        self.server.preset("note", "y", {"id": "y", "body": "there before"})
        self.remotes = [MemoryRemote(self.server, [TODO, NOTE], lambda: self.now) for _ in range(2)]
        first, second = self.remotes
        second._sums, second.schema, second.lost_values = first._sums, first.schema, first.lost_values
        self.folder = folder
        self.pins: list[int | None] = [None, 1]
        self.devices = [self.open(i) for i in range(2)]
        self.made: list[str] = []
        self.counted: Counter[str] = Counter()

    def open(self, i: int) -> SyncedDb:
        device = SyncedDb(
            self.folder / f"{i}.db", self.remotes[i], "d", now_ms=lambda: self.now, schema_version=self.pins[i]
        )
        with contextlib.suppress(AppOutdated):
            device.start(background=False)
        return device

    def step(self, action: str, i: int, bits: Bits) -> None:
        self.now += 7
        device, remote = self.devices[i], self.remotes[i]
        if action == "write":
            self.write(device, bits)
        elif action == "ddl":
            self.ddl(bits)
        elif action == "sql":
            self.remotes[0].alter(lambda ddl: by_sql(ddl, bits, self.now))
        elif action in ("read", "flush"):
            self.sync(i, action)
        elif action in ("offline", "online"):
            remote.offline = action == "offline"
        elif action == "lose":
            remote.lose_answers = 1
        elif action == "cut":
            remote.cut_pull_after = bits.choose((0, 1, 2))
        elif action == "behind":
            remote.floor = self.server.head
        else:
            device.close()
            self.devices[i] = self.open(i)
        self.counted[action] += 1

    def sync(self, i: int, action: str) -> None:
        device = self.devices[i]
        try:
            device.flush(0.05) if action == "flush" else device.read()
        except AppOutdated:
            self.counted["outdated"] += 1
            assert device.status().needs_schema_version > 1
            device.close()
            self.pins[i] = None
            self.devices[i] = self.open(i)
        except CallFailed as error:
            if not error.again:
                raise

    def write(self, device: SyncedDb, bits: Bits) -> None:
        tables = list(device._file.tables().values())
        with device.batch() as batch:
            for _ in range(bits.choose((1, 1, 2))):
                if not tables:
                    break
                table = bits.choose(tables)
                names = [n for n, c in table.writable.items() if c.name != "id"]
                given = {n: self.value(table.writable[n], bits) for n in names if bits.choose((True, False))}
                row = {table.told("id"): bits.choose(KEYS), **given}
                synced = device.table(table.sql_name)
                kind = bits.choose(("insert", "update", "update", "delete"))
                with contextlib.suppress(RowMissing, RowExists, NotReady):
                    if kind == "insert":
                        synced.insert(row)
                    elif kind == "delete":
                        synced.delete(row[table.told("id")])
                    elif given:
                        synced.update(row)
        if batch.id:
            self.made.append(batch.id)

    def value(self, column: Column, bits: Bits) -> Cell:
        number = bits.choose((None, 0, 1, 2, 7))
        return number if column.kind is Kind.INT64 or number is None else f"text {number}"

    def ddl(self, bits: Bits) -> None:
        """Some DDL in one transaction; what does not fit the tables is left out."""
        before = self.remotes[0].schema.version

        def change(ddl: Ddl) -> None:
            for _ in range(bits.choose((1, 1, 2, 3))):
                self.one(ddl, bits)
            if bits.choose((True, False)):
                by_sql(ddl, bits, self.now)

        self.remotes[0].alter(change)
        self.counted["changes"] += self.remotes[0].schema.version - before

    def one(self, ddl: Ddl, bits: Bits) -> None:
        kind = bits.choose(("add", "add", "drop", "rename", "rename", "retype", "rename table", "create", "rare"))
        self.counted[kind] += 1
        taken = {t.sql_name for t in ddl.tables.values()}
        if kind == "create" or not ddl.tables:
            name = bits.choose(TABLES)
            identity = name if name not in ddl._schema.ever else f"{name}~{len(ddl._schema.ever)}"
            if name not in taken:
                renamed = "" if identity == name else name
                ddl.create(Table(identity, NOTE.columns, ("id",), renamed=renamed), [{"id": "x", "body": "came"}])
            return
        table = ddl.tables[bits.choose(sorted(ddl.tables))]
        free = [n for n in NAMES if n not in {c.sql_name for c in table.columns}]
        columns = [c for c in table.columns if c.name != "id"]
        if kind == "rename table":
            if names := [n for n in TABLES if n not in taken]:
                ddl.rename_table(table.name, bits.choose(names))
        elif kind == "rare":
            if table.name in ddl.created:
                return
            if bits.choose((True, False)):
                ddl.drop_table(table.name)
            else:
                rows = [{**row, "id": row["id"]} for row in ddl._live(table.name).values()]
                ddl.make_anew(table, rows)
        elif kind == "add" and free:
            numeric = bits.choose((True, False))
            column_kind, postgres_type = (Kind.INT64, "bigint") if numeric else (Kind.STRING, "text")
            initial: Cell = bits.choose((None, 3 if numeric else "three"))
            values = bits.choose((None, None, (lambda row: 9) if numeric else (lambda row: f"of {row['id']}")))
            ddl.add_column(table.name, bits.choose(free), column_kind, postgres_type, initial, values)
        elif columns and kind in ("drop", "rename", "retype"):
            column = bits.choose(columns)
            if kind == "drop":
                ddl.drop_column(table.name, column.name)
            elif kind == "rename" and free:
                ddl.rename_column(table.name, column.name, bits.choose(free))
            elif kind == "retype" and table.name not in ddl.created:
                ddl.retype(table.name, column.name, *cast_of(column))

    def settle(self) -> None:
        for remote in self.remotes:
            remote.offline, remote.lose_answers, remote.cut_pull_after = False, 0, None
        for _ in range(4):
            for i in range(2):
                self.now += 60
                self.sync(i, "flush")
                self.now += 1_100
                self.remotes[0].commit()
                self.sync(i, "read")


def cast_of(column: Column) -> tuple[Kind, str, Any, Any]:
    if column.kind is Kind.INT64:
        return Kind.STRING, "text", lambda cell: None if cell is None else f"text {cell}", None
    return Kind.INT64, "bigint", to_number, using


def to_number(cell: Cell) -> Cell:
    if cell is None:
        return None
    text = str(cell).removeprefix("text ")
    # As Postgres refuses a value of a queued batch; USING gives the stored ones something.
    if text == "7":
        raise ValueError(text)
    return int(text) if text.isdecimal() else -1


def using(cell: Cell) -> Cell:
    return -7 if cell == "text 7" else to_number(cell)


def by_sql(ddl: Ddl, bits: Bits, now: int) -> None:
    if not ddl.tables:
        return
    table = ddl.tables[bits.choose(sorted(ddl.tables))]
    if table.name in ddl.pulled:
        return
    key, live = bits.choose(KEYS), ddl._live(table.name)
    values = {
        c.name: now % 100 if c.kind is Kind.INT64 else f"sql {now % 100}" for c in table.columns if c.name != "id"
    }
    if key not in live:
        ddl.insert(table.name, {"id": key, **values})
    elif bits.choose((True, False)):
        ddl.delete(table.name, key)
    elif values:
        ddl.update(table.name, key, **dict([bits.choose(sorted(values.items()))]))


def has_the_servers_rows(world: World, i: int) -> None:
    device, remote = world.devices[i], world.remotes[0]
    is_consistent(device)
    tables = device._file.tables()
    known: Mapping[str, Any] = remote.tables
    if world.pins[i]:
        known = {name: table for name, table in remote.tables.items() if name in remote.schema.versions[0]}
    assert tables.keys() == known.keys()
    for name, table in remote.tables.items():
        if name not in tables:
            continue
        here = tables[name]
        assert set(here.table.column_names) == set(table.column_names)
        places = [here.table.index[c] for c in table.column_names]
        stored = device.execute(f"SELECT {here.columns_sql} FROM {here.quoted}").fetchall()
        found = {row[0]: row for row in (tuple(here.codec.load(one)[p] for p in places) for one in stored)}
        assert found == {row[0]: tuple(row) for row in remote.rows(table)}, name
        if not world.pins[i]:
            assert [here.told(c.name) for c in table.columns] == [c.sql_name for c in table.columns]
            assert here.sql_name == table.sql_name
    status = device.status()
    assert (status.queued, status.disagreeing) == (0, ())


def tell(steps: list[tuple[str, int, int]]) -> Counter[str]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        world = World(Path(folder))
        try:
            for action, i, number in steps:
                world.step(action, i, Bits(number))
                is_consistent(world.devices[i])
            world.settle()
            dead = set[str]()
            for i, device in enumerate(world.devices):
                has_the_servers_rows(world, i)
                dead |= {letter.id for letter in device.dead_letters()}
            in_log = {logged.id for logged in world.server.log if logged.node != SERVER_NODE}
            assert set(world.made) == in_log | dead
            assert not in_log & dead
            world.counted["dead"] += len(dead)
            return world.counted
        finally:
            for device in world.devices:
                device.close()


def tell_many(examples: int) -> None:
    counted: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(STEPS)
    def told(steps: list[tuple[str, int, int]]) -> None:
        counted.update(tell(steps))

    told()
    print(counted)


def test_a_batch_waits_for_no_one_that_a_schema_change_refused() -> None:
    """The first batch is for a table that is dropped before it is sent, the second one for another."""
    tell([("write", 0, 0), ("write", 0, 157_129_157_223), ("ddl", 0, 43_843), ("write", 0, 234)])


@pytest.mark.timeout(400)
def test_every_history_ends_with_the_servers_rows_and_nothing_lost() -> None:
    tell_many(FEW)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_hundreds_of_histories_end_so() -> None:
    tell_many(MANY)
