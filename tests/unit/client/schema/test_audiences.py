"""Restricted tables whose schema changes: the sums of each audience go on, and whose rows are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.audiences.teams import NOTE, Teams, held, of_job
from tests.unit.client.schema.altered import states, told

from anabranch.client import SyncedDb
from anabranch.client.file import audience_sums
from anabranch.testkit.memory_audiences import sums_of
from anabranch.testkit.memory_schema import Ddl
from anabranch.values import Kind


@pytest.fixture
def remote() -> Teams:
    return Teams()


@pytest.fixture
def device(tmp_path: Path, remote: Teams) -> Iterator[SyncedDb]:
    with closing(SyncedDb(tmp_path / "d.db", remote, "d")) as made:
        made.start(background=False)
        yield made


def is_right(device: SyncedDb, remote: Teams, pulls: int = 1) -> None:
    """The rows of the principal's audiences and no others, with the sums of each, as the server has them."""
    table = remote.tables["job"]
    mine = remote.server.sets["alice"]
    named = [dict(zip(table.column_names, row, strict=True)) for row in remote.rows(table)]
    visible = sorted(tuple(row.values()) for row in named if mine.intersection(of_job(row)))
    columns = ", ".join(column.sql_name for column in table.columns)
    assert device.execute(f"SELECT {columns} FROM {table.sql_name} ORDER BY id").fetchall() == visible
    assert held(device) == mine
    theirs = {s.audience: (s.count, s.hash) for s in sums_of(table, remote.rows(table), of_job, set()) if s.audience}
    kept = audience_sums.all_of(device._file.reader(), "job")
    assert kept == {one: theirs.get(one, (0, bytes(16))) for one in mine}
    assert device.verify() == ()
    status = device.status()
    assert (status.queued, status.disagreeing, status.cursor, status.pulls) == (0, (), remote.server.head, pulls)


CHANGES: dict[str, Callable[[Ddl], object]] = {
    "added": lambda ddl: ddl.add_column("job", "c", initial="x"),
    "added with values": lambda ddl: ddl.add_column("job", "c", values=lambda row: f"of {row['id']}"),
    "dropped": lambda ddl: ddl.drop_column("job", "title"),
    "renamed": lambda ddl: ddl.rename_table("job", "task").rename_column("job", "title", "subject"),
    "retyped": lambda ddl: ddl.retype("job", "title", Kind.INT64, "bigint", lambda cell: int(str(cell)[1:])),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("queued", [False, True])
def test_sums_of_audiences_go_on(device: SyncedDb, remote: Teams, change: str, queued: bool) -> None:
    remote.member_of("a", "b")
    device.read()
    if queued:
        device.table("job").update({"id": "j1", "team": "b"})
        device.table("job").delete("j2")
    events = told(device)
    remote.alter(CHANGES[change])
    device.read()
    assert device.status().disagreeing == ()
    assert device.sync()
    assert "sums_disagree" not in states(events)
    is_right(device, remote)
    remote.member_of("b")
    remote.alter(lambda ddl: ddl.insert("job", {"id": "new", "team": "b"}))
    device.read()
    is_right(device, remote)


def test_a_change_while_an_audience_is_pulled(device: SyncedDb, remote: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first chunk is of before, the next of after."""
    remote.chunk_rows = 1
    remote.member_of("a", "b", "c")
    chunks, altered = remote._chunks, list[int]()

    def altering(request: Any) -> Any:
        for number, response in enumerate(chunks(request)):
            yield response
            if not altered and number == 0:
                altered.append(remote.alter(CHANGES["dropped"]))
                return

    monkeypatch.setattr(remote, "_chunks", altering)
    device.read()
    device.read()
    is_right(device, remote)


def test_a_restricted_table_comes_empty_and_whole(device: SyncedDb, remote: Teams) -> None:
    """All of its rows are among the group's effects: no audience of it is owed."""
    other = replace(NOTE, name="visit")

    def come(ddl: Ddl) -> None:
        ddl.create(other)
        ddl._server.tables = {
            **ddl._server.tables,
            "visit": replace(ddl._server.tables["visit"], audience=lambda row: ["team:a"]),
        }
        ddl.insert("visit", {"id": "v1", "title": "seen"})

    remote.alter(come)
    device.read()
    assert device.execute("SELECT id FROM visit").fetchall() == [("v1",)]
    assert device.status().pulls == 1
    assert remote.calls.get("pull", 0) == 1
    kept = audience_sums.all_of(device._file.reader(), "visit")
    assert {audience: count for audience, (count, _) in kept.items()} == {"team:a": 1}
    assert device.verify() == ()
