"""A page of many effects leaves what its effects leave one by one.

Two oracles. Effects are folded by a reader of this file's own, which looks at each value by itself: what ``Folder``
makes of them, column by column, is the same, of tables with columns of every kind, whoever serialized the effects, and
also where one does not fit. And a file with queued writes of its own is copied: one copy reads the log in the smallest
parts, a page for each, the other one all at once, through changes of rows, audiences and tables; then both files hold
the same, and their apps were told of changes that end in the same rows.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.properties import test_audience_histories as with_audiences
from tests.properties import test_schema_histories as with_schema

from anabranch.client import Change, SyncedDb
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.overlay.rebase import Patch
from anabranch.client.reading.effects import DELETE, INSERT, UPDATE, Folded, Folder
from anabranch.testkit.cell_strategies import cells
from anabranch.testkit.own_folder import MEMORY
from anabranch.v1 import change_pb2, value_pb2
from anabranch.values import Cell, Column, Kind, Table, key_text
from anabranch.values.cells import Literal
from anabranch.values.messages import column_reader, column_writer

EVERY = [Column(f"c{k.value}", k, "x", element_kind=Kind.DOUBLE if k is Kind.ARRAY else None) for k in Kind]
TABLES = {
    "all": Table("all", (*EVERY[3:], Column("id", Kind.STRING, "text"), *EVERY[:3]), ("id",)),
    "two": Table("two", (Column("b", Kind.BOOL, "bool"), Column("n", Kind.INT64, "int8"), EVERY[3]), ("n", "b")),
    "key": Table("key", (Column("id", Kind.UUID, "uuid"), Column("n", Kind.INT64, "int8", initial=(7,))), ("id",)),
}
KEYS: dict[str, list[tuple[Cell, ...]]] = {
    "all": [("",), ("a",), ("ä",)],
    "two": [(1, True), (1, False), (-1, True)],
    "key": [("6d9f0f80-0000-4000-8000-00000000000a",)],
}
NOT_SYNCED = "elsewhere"


@st.composite
def effects(draw: st.DrawFn) -> change_pb2.Effect:
    name = draw(st.sampled_from([*TABLES, *TABLES, NOT_SYNCED]))
    table = TABLES.get(name, TABLES["two"])
    kind = draw(st.sampled_from([INSERT, UPDATE, UPDATE, DELETE, 4]))
    key = draw(st.sampled_from(KEYS[table.name]))
    rest = [c for c in table.columns if c.name not in table.key_columns]
    if kind != INSERT or draw(st.integers(0, 5)) == 0:
        rest = [c for c in rest if draw(st.booleans())] if kind in (INSERT, UPDATE) else []
    columns = [*(table.by_name[name] for name in table.key_columns), *rest]
    if draw(st.integers(0, 4)) == 0:
        # As the table has them, or a serializer that knows one more.
        columns = draw(st.sampled_from([list(table.columns), [*columns, Column("later", Kind.STRING, "text")]]))
    given_cells = dict(zip(table.key_columns, key, strict=True))
    values = []
    for column in columns:
        cell = given_cells.get(column.name, ...)
        if cell is ...:
            cell = draw(cells(column.kind, column.element_kind))
            if column.kind in (Kind.TIMESTAMP, Kind.ARRAY) and draw(st.integers(0, 9)) == 0:
                cell = Literal("a text")
            if column.kind is Kind.UUID and cell is not None and draw(st.booleans()):
                cell = str(cell).upper()
        values.append(column_writer(column)(cell))
    if draw(st.integers(0, 60)) == 0:
        if draw(st.booleans()):
            values.append(value_pb2.Value())
        else:
            values[-1] = value_pb2.Value()
    return change_pb2.Effect(table=name, type=kind, columns=[c.name for c in columns], values=values)  # type: ignore[arg-type]


@st.composite
def serialized(draw: st.DrawFn) -> bytes:
    effect = draw(effects())
    if draw(st.integers(0, 9)) == 0:
        # A field of a later release.
        effect.MergeFromString(b"\x2a\x01x")
    if draw(st.integers(0, 4)):
        return effect.SerializeToString()
    parts = [change_pb2.Effect(table=effect.table), change_pb2.Effect(type=effect.type)]
    parts += [change_pb2.Effect(columns=effect.columns), change_pb2.Effect(values=effect.values)]
    return b"".join(part.SerializeToString() for part in draw(st.permutations(parts)))


whose = st.none() | st.frozensets(st.sampled_from("xyz"), min_size=1)
groups = st.lists(st.lists(st.tuples(serialized(), whose), max_size=6), min_size=1, max_size=6)


class OneByOne:
    """The rules of the contract, effect by effect and value by value."""

    def __init__(self, tables: Mapping[str, DeviceTable], skip: Mapping[str, int]) -> None:
        self.tables, self.skip = tables, skip
        self.patches: dict[str, dict[str, Patch]] = {}
        self.misfits: set[str] = set()

    def add(self, data: bytes, audiences: frozenset[str] | None, position: int) -> None:
        effect = change_pb2.Effect.FromString(data)
        table = self.tables.get(effect.table)
        if table is None or effect.type not in (INSERT, UPDATE, DELETE) or position <= self.skip.get(effect.table, 0):
            return
        try:
            self.change(table, effect, audiences, position)
        except ValueError:
            self.misfits.add(effect.table)

    def change(
        self, table: DeviceTable, effect: change_pb2.Effect, whose: frozenset[str] | None, position: int
    ) -> None:
        names, columns = table.table.column_names, table.table.by_name
        given = {
            name: column_reader(columns[name])(value)
            for name, value in zip(effect.columns, effect.values, strict=True)
            if name in columns
        }
        key = tuple(given[name] for name in table.table.key_columns)
        patches, text = self.patches.setdefault(effect.table, {}), key_text(key)
        audiences = whose if table.restricted else None
        if effect.type == DELETE:
            patches[text] = (key, None, None, position, None)
            return
        is_whole = effect.type == INSERT or tuple(effect.columns) == names
        if is_whole or (table.restricted and given.keys() == set(names)):
            row = tuple(given.get(name, blank) for name, blank in zip(names, table.blank, strict=True))
            patches[text] = (key, row, None, position, audiences)
            return
        places = {names.index(name): cell for name, cell in given.items()}
        old = patches.get(text)
        if old is None:
            patches[text] = (key, None, places, position, audiences)
        elif old[1] is not None:
            row = tuple(places.get(i, cell) for i, cell in enumerate(old[1]))
            patches[text] = (key, row, None, position, audiences or old[4])
        elif old[2] is not None:
            patches[text] = (key, None, {**old[2], **places}, position, audiences)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=groups, restricted=st.sampled_from([(), ("all", "key")]), skip=st.sampled_from([{}, {"all": 2}]))
def test_effects_read_by_column_are_those_read_one_by_one(
    groups: Sequence[Sequence[tuple[bytes, frozenset[str] | None]]], restricted: Sequence[str], skip: dict[str, int]
) -> None:
    tables = {name: DeviceTable(table, restricted=name in restricted) for name, table in TABLES.items()}
    folder, folded, expected = Folder(tables, skip), Folded(), OneByOne(tables, skip)
    for position, group in enumerate(groups, 1):
        batch = change_pb2.LoggedBatch(id="b", effects=[data for data, _ in group])
        if restricted:
            batch.audiences.extend(change_pb2.Audiences(values=audiences or ()) for _, audiences in group)
        folder.fold(change_pb2.LoggedGroup(position=position, batches=[batch]), folded)
        for data, audiences in group:
            expected.add(data, frozenset(audiences or ()) if restricted else None, position)
    folded.read()
    assert folded.misfits.keys() == expected.misfits
    fitting = {name: patches for name, patches in expected.patches.items() if name not in expected.misfits}
    assert told(folded.patches) == told(fitting)


def told(patches: Mapping[str, Mapping[str, Patch]]) -> list[tuple[Any, ...]]:
    """Patches by what they say, NaN and the sign of zeros included."""
    return sorted(
        (table, text, repr((key, row, changes and sorted(changes.items()), position, whose and sorted(whose))))
        for table, of_table in patches.items()
        for text, (key, row, changes, position, whose) in of_table.items()
    )


KEPT = (
    "SELECT tbl, key, hex(row) FROM _db_base",
    "SELECT name, stage, count, hex(hash), disagrees FROM _db_tables",
    "SELECT tbl, key, audiences FROM _db_row_audiences",
    "SELECT tbl, audience, count, hex(hash) FROM _db_audience_sums",
    "SELECT id, hex(value) FROM _db_mutations_queue",
    "SELECT cursor_ms, schema_version FROM _db_state",
)


def held(path: Path) -> list[Any]:
    """All that a file says of rows, and its place in the log."""
    conn = sqlite3.connect(path)
    try:
        conn.create_collation("decimal", lambda a, b: (a > b) - (a < b))
        named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '_db%' ORDER BY name"
        found = [(name, sorted(conn.execute(f'SELECT * FROM "{name}"'), key=repr)) for (name,) in conn.execute(named)]
        return [*found, *((sql, sorted(conn.execute(sql), key=repr)) for sql in KEPT)]
    finally:
        conn.close()


def followed(world: Any, steps: Sequence[tuple[Any, ...]], folder: Path) -> Counter[str]:
    """The counts of ``both_ways``, after the steps of a history."""
    try:
        for step in steps:
            world.step(*step)
        return both_ways(world, folder)
    finally:
        for device in world.devices:
            device.close()


def assert_told(counted: Counter[str]) -> None:
    """Some of the histories had a queue, and the log was read in other pages."""
    assert counted["queued"]
    assert counted["pages 0"] > 2 * counted["pages 1"]


def both_ways(world: Any, folder: Path) -> Counter[str]:
    """Read the log into copies of the first device's file: in the smallest parts, and at once."""
    device, remote = world.devices[0], world.remotes[0]
    told: list[list[tuple[Any, ...]]] = []
    files: list[list[Any]] = []
    counted: Counter[str] = Counter(queued=device.status().queued)
    device.close()
    for number, (page_parts, part_effects) in enumerate([(1, 1), (100_000, 100_000)]):
        copy = folder / f"copy{number}.db"
        shutil.copy(folder / world.FILE, copy)
        remote.page_parts, remote.part_effects, calls = page_parts, part_effects, remote.calls.get("get", 0)
        shown: dict[tuple[str, Any], Any] = {}
        with_rows = SyncedDb(copy, remote, "d", **world.OPENED, now_ms=lambda: world.now)
        for table in with_rows._file.tables().values():
            for row in with_rows.execute(f'SELECT * FROM "{table.sql_name}"'):
                shown[table.sql_name, row[0]] = None

        def hear(change: Change, shown: dict[tuple[str, Any], Any] = shown) -> None:
            if change.type == "delete":
                shown.pop((change.table, change.key[0]), None)
            else:
                shown[change.table, change.key[0]] = dict(change.row or {})

        with_rows.on_change(hear)
        with_rows.read()
        with_rows.close()
        counted[f"pages {number}"] = remote.calls["get"] - calls
        told.append(sorted(shown.items(), key=repr))
        files.append(held(copy))
    assert files[0] == files[1]
    assert [row for row, _ in told[0]] == [row for row, _ in told[1]]
    return counted


class Audiences(with_audiences.World):
    FILE = "a.db"
    OPENED: ClassVar[dict[str, Any]] = {"node_name": with_audiences.PRINCIPALS[0]}


class Schema(with_schema.World):
    FILE = "0.db"
    OPENED: ClassVar[dict[str, Any]] = {}


FEW = 40
sql = with_audiences.sql
missed = st.lists(sql | sql | with_audiences.grant, min_size=2, max_size=12)
writes = st.lists(with_audiences.write, max_size=4)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_file_is_the_same_whatever_the_pages() -> None:
    counted: Counter[str] = Counter()

    @settings(max_examples=FEW, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(before=missed, own=writes, after=missed)
    def tell(before: list[Any], own: list[Any], after: list[Any]) -> None:
        steps = [*before, ("read", 0, 1), *((action, 0, argument) for action, _, argument in own), *after]
        with TemporaryDirectory(dir=MEMORY) as name:
            counted.update(followed(Audiences(Path(name), 3, 2), steps, Path(name)))

    tell()
    assert_told(counted)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_file_is_the_same_whatever_the_pages_when_tables_change() -> None:
    steps = st.lists(st.tuples(st.sampled_from(["sql", "sql", "ddl"]), st.just(1), st.integers(0, 2**60)), min_size=2)
    own = st.lists(st.tuples(st.just("write"), st.just(0), st.integers(0, 2**60)), max_size=4)
    counted: Counter[str] = Counter()

    @settings(max_examples=FEW, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(own=own, after=steps)
    def tell(own: list[Any], after: list[Any]) -> None:
        steps = [(action, i, with_schema.Bits(number)) for action, i, number in [*own, *after]]
        with TemporaryDirectory(dir=MEMORY) as name:
            counted.update(followed(Schema(Path(name)), steps, Path(name)))

    tell()
    assert_told(counted)
