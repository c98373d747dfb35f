"""Many runs of random changes against a model: after each, the base, every change with the values before it, and the
table as it was after each earlier group are what the model says.

Files and parts are taken for small, so that a base has several buckets, runs have fewer parts than buckets or more, and
what is read is read by several tasks. Deltas and history files are put together early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
from psycopg import sql
from tests.integration.compactor.conftest import Lake

from anabranch.columnar.lake import LakeTable
from anabranch.columnar.row_states import BaseRows, Change, as_of
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.values import Cell, Column, Table, key_text
from anabranch.values.cells import Literal
from anabranch.values.parquet import file_codecs
from anabranch.values.postgres_text import element_printer
from anabranch.wire.effects import Effect

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

Row = tuple[Cell, ...]
Key = tuple[Cell, ...]
TYPES = {1: "insert", 2: "update", 3: "delete", 4: "none"}
Told = tuple[str, Key, Row | None, dict[str, Cell]]
"""A change: its type, key, the row after it, and what was before of the columns that it changed."""

VISIT = """
create table visit (note text, id text collate "C", at timestamptz, price numeric(6,2), part int,
                    "a.b" double precision, primary key (at, id))
"""
TAG = "create table tag (id text primary key)"
LATE = 'create table late (kind uuid primary key, anabranch text, "position" bytea)'
TIMES: Sequence[Cell] = (0, -1, Literal("294270-06-01 00:00:00+00"), Literal("294271-06-01 00:00:00+00"), 2**63 - 1)
FIRST_ROWS = 300


def visit(random: Random) -> Row:
    """A row of table visit."""
    name = random.choice(["", "é", "a b", "x"]) + str(random.randrange(60))
    price = random.choice([None, "NaN", "0.00", "-9999.99", "12.30"])
    note = random.choice([None, "", "n" * 300, "short"])
    double = random.choice([None, -0.0, 0.0, float("nan"), 1e300])
    return note, name, random.choice(TIMES), price, random.choice([None, 1, 2]), double


def tag(random: Random) -> Row:
    """A row of table tag."""
    return (random.choice(["", " ", "t"]) * random.randrange(1, 12),)


def late(random: Random) -> Row:
    """A row of table late."""
    name = f"00000000-0000-0000-0000-0000000000{random.randrange(16):02x}"
    return name, random.choice([None, "", "own"]), random.choice([None, b"", b"\x00\xff"])


ROWS: dict[str, Callable[[Random], Row]] = {"visit": visit, "tag": tag, "late": late}


def put(writer: LogWriter, table: Table, key: Key, row: Row | None) -> None:
    """Have Postgres hold a row, or none of this key. Keys may be moments that statements for rows don't take."""

    def texts(columns: Sequence[Column], cells: Row) -> list[str | None]:
        return [None if cell is None else element_printer(c.kind)(cell) for c, cell in zip(columns, cells, strict=True)]

    def given(columns: Sequence[Column]) -> list[sql.Composable]:
        return [sql.SQL("%s::text::" + column.postgres_type) for column in columns]

    name, columns = sql.Identifier("app", table.name), table.columns
    keys = [columns[i] for i in table.key_index]
    where = [sql.SQL("{} = {}").format(sql.Identifier(c.name), g) for c, g in zip(keys, given(keys), strict=True)]
    delete = sql.SQL("delete from {} where {}").format(name, sql.SQL(" and ").join(where))
    writer.conn.execute(delete, texts(keys, key))
    if row is not None:
        insert = sql.SQL("insert into {} values ({})").format(name, sql.SQL(", ").join(given(columns)))
        writer.conn.execute(insert, texts(columns, row))


def same(cells: object) -> str:
    """Cells so that NaN is itself, and -0.0 is not 0.0."""
    return repr(cells)


def told(change: Change, names: Sequence[str]) -> str:
    """A change of the lake's as the model tells it. What a batch left as it was may be a row that is not there."""
    known = change.row if change.complete else None
    row = None if known is None else tuple(known[name] for name in names)
    return same((change.type, change.key, row, change.before))


def shown(rows: Mapping[Key, Mapping[str, Cell]], names: Sequence[str]) -> dict[str, str]:
    """The lake's rows, to compare."""
    return {same(key): same(tuple(row[name] for name in names)) for key, row in rows.items()}


class Model:
    """The rows of the tables, the changes that were told of them, and their state after each group."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.writer = lake.writer()
        self.rows: dict[str, dict[Key, Row]] = {"visit": {}, "tag": {}}
        self.told: dict[str, list[Told]] = {name: [] for name in ROWS}
        self.were: list[tuple[int, dict[str, dict[Key, Row]]]] = []

    def know(self, name: str) -> None:
        """Go on with a table that was registered meanwhile."""
        self.rows[name] = {}
        self.writer = self.lake.writer()

    def group(self, random: Random, names: Sequence[str], most: int, least: int = 1) -> None:
        """Commit some random changes as one group: so many of each table."""
        batches, writes = [], []
        for name in names:
            effects = []
            for _ in range(random.randrange(least, most + 1)):
                key, effect, write = self.change(random, name)
                effects.append((key_text(key), effect))
                writes.append(write)
            losers = [(effects[0][0], "note", b"")] if name == "visit" and random.random() < 0.5 else []
            batches.append(Logged(name, effects, losers))
        position = self.writer.commit(batches, lambda: [write() for write in writes])
        self.were.append((position, {name: dict(rows) for name, rows in self.rows.items()}))

    def change(self, random: Random, name: str) -> tuple[Key, Effect, Callable[[], object]]:
        """One random change: its key, its effect, and what does it."""
        table, builder, rows = self.writer.table(name), self.writer._builders[name], self.rows[name]
        row = ROWS[name](random)
        key = tuple(row[i] for i in table.key_index)
        before = rows.get(key)
        if random.random() < 0.1:
            self.told[name].append(("none", key, before, {}))
            return key, builder.none(key), lambda: None
        if before is None:
            effect, after, old = builder.insert(row), row, {}
        elif len(row) == len(key) or random.random() < 0.3:
            effect, after = builder.delete(before), None
            old = {n: c for n, c in zip(table.column_names, before, strict=True) if n not in table.key_columns}
        else:
            effect, after = builder.update(before, row), row
            old = {column: before[table.index[column]] for column in effect.changed}
        rows.pop(key, None)
        if after is not None:
            rows[key] = after
        self.told[name].append((TYPES[effect.type], key, after, old))
        return key, effect, lambda: put(self.writer, table, key, after)

    def check(self) -> None:
        """The newest manifest's files are what the model says."""
        manifest = self.lake.manifest()
        for name, rows in self.rows.items():
            table = self.writer.table(name)
            lake = LakeTable(self.lake.root, manifest, name, file_codecs)
            base, changes = BaseRows(lake.rows(), manifest.to_position), lake.whole_changes(lake.registrations[-1])
            assert shown(base.rows, table.column_names) == {same(key): same(row) for key, row in rows.items()}, name
            assert [told(change, table.column_names) for change in changes] == list(map(same, self.told[name])), name
            assert all(change.complete for change in changes if change.type != "none"), name
            for position, were in self.were:
                then = as_of(lake.table, [base], changes, position)
                wanted_then = {same(key): same(row) for key, row in were.get(name, {}).items()}
                assert shown(then, table.column_names) == wanted_then, (name, position)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_lake_is_what_the_model_says(
    make_lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    from anabranch_compactor import base, merge, plan, pull, units

    monkeypatch.setattr(plan, "CHANGES_PER_READ", 40)
    monkeypatch.setattr(pull, "PAGES_PER_READ", 2)
    monkeypatch.setattr(units, "FILE_BYTES", 16 * 1024)
    monkeypatch.setattr(units, "PART_ROWS", 60)
    monkeypatch.setattr(merge, "MOST_OF_A_SIZE", 12)
    monkeypatch.setattr(base, "MOST_DELTAS", 2)
    random = Random(seed)
    lake = make_lake("visit", VISIT)
    lake.add_table("tag", TAG)
    model = Model(lake)
    model.group(random, ["visit", "tag"], FIRST_ROWS, FIRST_ROWS)
    names = ["visit", "tag"]
    for run in range(6):
        if run == 3:
            lake.add_table("late", LATE)
            model.know("late")
            names.append("late")
        for _ in range(random.randrange(1, 4)):
            model.group(random, random.sample(names, random.randrange(1, len(names) + 1)), random.choice([1, 8, 150]))
        assert lake.compact().without_base == ()
        model.check()
    visits = lake.manifest().tables["visit"].base
    assert visits is not None
    assert len(visits.buckets) > 1
