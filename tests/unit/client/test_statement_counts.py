"""The statements that SQLite runs for what a device reads: a count that grows costs every device, on every change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import SyncedDb
from anabranch.client.reading import sums
from anabranch.merge import MutationType, Policy
from anabranch.testkit.file_statements import FileStatements, counted
from anabranch.testkit.memory_messages import AnswerStream
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.v1 import change_pb2
from anabranch.values import Column, Kind, Table

A_LIVE_CHANGE = 13
"""BEGIN, COMMIT; the state; where the file stands; SAVEPOINT, RELEASE; the row, read and written; its table's sum; the
state's change; the writer let in and out; and once a second the position that is kept."""
A_HEARTBEAT = 4
"""BEGIN, COMMIT; the state; where the file stands."""


@pytest.fixture(autouse=True)
def standing_is_true() -> None:
    """The check of other tests has a statement of its own."""


class Following(MemoryRemote):
    """Lets a device subscribe: each of ``changes`` is that number of rows changed by SQL, or 0 for a heartbeat. ``ran``
    has how many statements each message has cost, to the moment when the next one is asked for."""

    changes: tuple[int, ...] = ()
    statements: FileStatements
    ran: list[int]

    def subscribe(self, request: change_pb2.SubscribeRequest) -> Any:
        return AnswerStream(self._messages(request))

    def _messages(self, request: change_pb2.SubscribeRequest) -> Iterator[change_pb2.SubscribeResponse]:
        after, self.ran = request.after, []
        for rows in self.changes:
            answer = change_pb2.SubscribeResponse(state=self.state())
            if rows:
                change(self, rows)
                asked = change_pb2.GetRequest(db_name="d", node_state=request.node_state, after=after)
                page = self.get(asked)
                after = page.page.reached.server_timestamp_ms
                answer = change_pb2.SubscribeResponse(page=page.page, state=page.state, sums=page.sums)
            self.statements.forget()
            yield answer
            self.ran.append(self.statements.count)


def change(remote: MemoryRemote, rows: int) -> None:
    title = f"changed at {remote.server.head}"
    assert remote.write([("todo", MutationType.UPDATE, f"k{i}", {"title": title}) for i in range(rows)])


def a_device(folder: Path, remote: MemoryRemote) -> SyncedDb:
    remote.part_effects = remote.page_parts = remote.chunk_rows = 100_000
    device = SyncedDb(folder / "device.db", remote, "d", "device")
    device.start(background=False)
    return device


def a_server(rows: int, more_tables: int = 0) -> tuple[MemoryServer, list[Table]]:
    names = ["todo", *(f"more{n}" for n in range(more_tables))]
    columns = {"id": None, "title": None}
    server = MemoryServer({name: MemoryTable(columns) for name in names}, Policy(), park_ms=1000)
    server.head = 1_000
    for i in range(rows):
        server.preset("todo", f"k{i}", {"id": f"k{i}", "title": "first"})
    text = (Column("id", Kind.STRING, "text"), Column("title", Kind.STRING, "text"))
    return server, [Table(name, text, ("id",)) for name in names]


def followed(folder: Path, changes: tuple[int, ...], rows: int, more_tables: int = 0) -> list[int]:
    server, tables = a_server(rows, more_tables)
    clock = iter(range(2_000_000, 3_000_000, 10))
    remote = Following(server, tables, lambda: next(clock))
    device = a_device(folder, remote)
    remote.changes = changes
    with counted(device) as remote.statements:
        device._reader.follow(lambda: False, lambda: None)
    assert not sums.disagreements(device._file.reader())
    shown = dict(device.execute("SELECT id, title FROM todo").fetchall())
    assert shown == {key: row["title"] for (_, key), row in server.live().items()}
    device.close()
    return remote.ran


@pytest.mark.parametrize("more_tables", [0, 20])
def test_a_live_change_and_a_heartbeat_cost_so_many_statements(tmp_path: Path, more_tables: int) -> None:
    ran = followed(tmp_path, (1, 1, 1, 0, 0), rows=1, more_tables=more_tables)
    assert max(ran[:3]) <= A_LIVE_CHANGE
    assert ran[3:] == [A_HEARTBEAT, A_HEARTBEAT]


def test_a_page_of_many_changes_costs_one_statement_for_fifty_rows(tmp_path: Path) -> None:
    first, few, many = followed(tmp_path, (1, 100, 400), rows=400)
    assert few - first <= 100 / 50
    assert many - few <= 300 / 50 + 1


def test_a_page_by_get_costs_little_more(tmp_path: Path) -> None:
    server, tables = a_server(1)
    remote = MemoryRemote(server, tables, lambda: server.head + 2_000)
    device = a_device(tmp_path, remote)
    change(remote, 1)
    with counted(device) as statements:
        device._reader.read()
    assert statements.having("UPDATE _db_state") == 1
    assert statements.count <= A_LIVE_CHANGE + 8
    device.close()


def test_what_is_queued_is_looked_for_where_something_is(tmp_path: Path) -> None:
    """The other way: with a batch in the queue nothing of it is left out."""
    server, tables = a_server(2)
    remote = MemoryRemote(server, tables, lambda: server.head + 2_000)
    device = a_device(tmp_path, remote)
    device.table("todo").update({"id": "k1", "title": "mine"})
    change(remote, 1)
    with counted(device) as statements:
        device._reader.read()
    assert statements.having("FROM _db_mutations_queue WHERE seen ORDER BY id") == 1
    assert device.flush()
    device.read()
    assert device.status().queued == 0
    assert device.execute("SELECT title FROM todo WHERE id = 'k1'").fetchone() == ("mine",)
    device.close()
