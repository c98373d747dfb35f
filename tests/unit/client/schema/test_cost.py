"""The cost of following a schema change: nothing that grows with a table's rows, where no row changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from anabranch.client import Schema, SyncedDb
from anabranch.merge import Policy, RowState
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.values import Column, Kind, Table

FEW, MANY = 1_000, 300_000
TODO = Table(
    "todo",
    (Column("id", Kind.STRING, "text"), Column("title", Kind.STRING, "text"), Column("n", Kind.INT64, "bigint")),
    ("id",),
)
FREE: dict[str, Callable[[Ddl], object]] = {
    "NULL": lambda ddl: ddl.add_column("todo", "a"),
    "a constant": lambda ddl: ddl.add_column("todo", "b", Kind.DOUBLE, "double precision", initial=0.0),
    "a name": lambda ddl: ddl.rename_column("todo", "title", "subject"),
    "a table's name": lambda ddl: ddl.rename_table("todo", "task"),
}


class Files:
    """A device's file with few rows and one with many, and servers that have none of them: rows are no matter here."""

    def __init__(self, folder: Path) -> None:
        self.devices: dict[int, SyncedDb] = {}
        self.remotes: dict[int, MemoryRemote] = {}
        for rows in (FEW, MANY):
            server = MemoryServer({"todo": MemoryTable(dict.fromkeys(TODO.column_names))}, Policy(), park_ms=1000)
            server.head = 1_000
            remote = MemoryRemote(server, [TODO], lambda: time.time_ns() // 1_000_000)
            remote.chunk_rows = MANY
            for i in range(rows):
                server.rows["todo", f"k{i}"] = RowState({"id": f"k{i}", "title": f"title {i}", "n": i}, None)
            device = SyncedDb(folder / f"{rows}.db", remote, "d")
            device.start(background=False)
            # It sums up all of its rows at every change, which takes longer than what is measured.
            sums = remote.sums()
            remote.sums = lambda sums=sums: sums  # type: ignore[method-assign,misc]
            server.rows.clear()
            device.table("todo").update({"id": "k1", "title": "queued"})
            self.devices[rows], self.remotes[rows] = device, remote

    def steps(self, rows: int, change: Callable[[Ddl], object]) -> int:
        """Steps of SQLite's machine, in hundreds, for one change."""
        self.remotes[rows].alter(change)
        counted = [0]

        def count() -> int:
            counted[0] += 1
            return 0

        device = self.devices[rows]
        device._file._write.set_progress_handler(count, 100)
        device.read()
        device._file._write.set_progress_handler(None, 100)
        assert device.status().schema_version == self.remotes[rows].schema.version
        return counted[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    made = Files(tmp_path_factory.mktemp("cost"))
    yield made
    for device in made.devices.values():
        device.close()


@pytest.mark.slow
@pytest.mark.parametrize("change", FREE)
def test_what_changes_no_row_costs_the_same_for_any_number_of_rows(files: Files, change: str) -> None:
    few, many = files.steps(FEW, FREE[change]), files.steps(MANY, FREE[change])
    assert abs(many - few) <= max(20, few // 2), (few, many)


def add(number: int, ddl: Ddl) -> object:
    return ddl.add_column("todo", f"c{number}", Kind.INT64, "bigint", initial=number)


@pytest.mark.slow
def test_it_takes_milliseconds(files: Files) -> None:
    took = []
    for i in range(5):
        files.remotes[MANY].alter(partial(add, i))
        began = time.perf_counter()
        files.devices[MANY].read()
        took.append(time.perf_counter() - began)
    print(f"a column added to {MANY} rows: {min(took) * 1000:.1f} ms")
    assert min(took) < 0.25
    table = files.devices[MANY]._file.tables()["todo"]
    (found,) = files.devices[MANY].execute(f"SELECT count(*) FROM {table.quoted} WHERE c4 = 4").fetchone()
    assert found == MANY


def note(device: SyncedDb, told: list[tuple[str, int]], event: Schema) -> None:
    """Note the changes that the file has seen: others than the schema's may come before and after."""
    told.append((event.phase, device._file._write.total_changes))


def test_base_images_are_converted_for_rows_of_the_queue_alone(tmp_path: Path) -> None:
    """By the bytes that are written: the queue's rows, and not the table's."""
    sizes = []
    told: list[tuple[str, int]] = []
    for rows in (10, 2_000):
        server = MemoryServer({"todo": MemoryTable(dict.fromkeys(TODO.column_names))}, Policy(), park_ms=1000)
        server.head = 1_000
        remote = MemoryRemote(server, [TODO], lambda: time.time_ns() // 1_000_000)
        remote.chunk_rows = rows
        for i in range(rows):
            server.preset("todo", f"k{i}", {"id": f"k{i}", "title": "x" * 100, "n": i})
        device = SyncedDb(tmp_path / f"{rows}.db", remote, "d")
        device.start(background=False)
        try:
            device.table("todo").update([{"id": f"k{i}", "title": "queued"} for i in range(5)])
            device.on_schema(partial(note, device, told))
            remote.alter(lambda ddl: ddl.add_column("todo", "c", initial="x"))
            device.read()
            (_, before), (_, after) = told
            assert [phase for phase, _ in told] == ["before", "after"]
            sizes.append(after - before)
            told.clear()
        finally:
            device.close()
    assert sizes[0] == sizes[1]
    assert sizes[0] < 40
