"""Describe is ahead of a device whose log is still to be read: it overtakes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.unit.client.schema.altered import (
    NOTE,
    VISIT,
    Open,
    agrees,
    columns,
    in_file,
    is_consistent,
    phases,
    rows,
    states,
    told,
)

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.values import Kind, Table


def every_change(ddl: Ddl) -> None:
    ddl.rename_table("todo", "task")
    ddl.rename_column("todo", "title", "subject")
    ddl.drop_column("todo", "n")
    ddl.add_column("todo", "priority", Kind.INT64, "bigint", initial=3)
    ddl.create(VISIT, [{"id": "v", "at": 1}])
    ddl.drop_table("note")


def describe_now(device: SyncedDb) -> None:
    with device._file.transaction() as tx:
        tx.set(describe_due=1)
    device._reader._describing.now()


def test_tables_stay_as_the_log_left_them_until_it_brings_the_change(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k1", "title": "mine", "n": 8})
    remote.alter(lambda ddl: ddl.update("todo", "k0", n=100))
    remote.alter(lambda ddl: ddl.insert("note", {"id": "n", "body": "still"}))
    remote.alter(every_change)
    events = told(device)
    describe_now(device)
    assert in_file(device) == {"todo", "note"}
    assert columns(device, "todo") == ["id", "title", "n"]
    assert rows(device, "todo")[1] == ("k1", "mine", 8)
    is_consistent(device)
    assert not events
    status = device.status()
    assert status.schema_version == 1
    assert device.sync()
    agrees(device, remote)


def test_policies_and_sure_refusals_are_taken_at_once(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    described = remote.schema.described

    def with_rules(*arguments: Any) -> Any:
        messages = described(*arguments)
        messages[0].columns[1].enum_labels.extend(["a", "b"])
        messages[0].columns[2].policy = "max"
        return messages

    remote.schema.described = with_rules  # type: ignore[method-assign,assignment]
    describe_now(device)
    with pytest.raises(ValueError, match=r"todo\.title: takes one of 'a', 'b'"):
        device.table("todo").update({"id": "k1", "title": "c"})
    device.table("todo").update({"id": "k1", "n": 0})
    assert rows(device, "todo", "n")[1] == (1,), "the greater one is shown"
    device.read()
    with pytest.raises(ValueError, match=r"todo\.subject: takes one of 'a', 'b'"):
        device.table("todo").update({"id": "k1", "subject": "c"})
    is_consistent(device)


def test_a_table_made_from_describe_is_altered_by_no_earlier_change(opened: Open, remote: MemoryRemote) -> None:
    remote.alter(lambda ddl: ddl.add_column("todo", "a", initial="x"))
    remote.alter(lambda ddl: ddl.rename_column("todo", "a", "b"))
    device = opened(tables=["note"])
    remote.alter(lambda ddl: ddl.add_column("todo", "c", initial="y"))
    remote.alter(lambda ddl: ddl.update("todo", "k1", c="z"))
    device.choose_tables(None)
    device.read()
    agrees(device, remote, pulls=2)


def test_a_pull_of_an_earlier_moment_than_the_description_goes_on_with_the_log(
    opened: Open, remote: MemoryRemote
) -> None:
    """As from a base that was published before: its rows have today's columns, the log behind it the earlier ones."""
    remote.alter(lambda ddl: ddl.insert("todo", {"id": "a", "title": "a", "n": 1}))
    earlier = remote.server.head
    chunks = remote._chunks

    def of_earlier(request: Any) -> Any:
        for response in chunks(request):
            response.as_of.CopyFrom(remote.position(earlier))
            if response.table == "todo":
                response.sum.hash = b"of other columns"
            yield response

    remote.alter(lambda ddl: (ddl.drop_column("todo", "n"), ddl.add_column("todo", "c", initial="x")))
    remote._chunks = of_earlier  # type: ignore[method-assign]
    device = opened()
    assert device.status().cursor == earlier
    events = told(device)
    del remote._chunks
    device.read()
    assert "sums_disagree" not in states(events)
    agrees(device, remote)


def test_an_insert_of_before_a_column_came_has_its_initial_value(opened: Open, remote: MemoryRemote) -> None:
    earlier = remote.server.head
    remote.alter(lambda ddl: ddl.insert("todo", {"id": "a", "title": "a", "n": 1}))
    remote.alter(lambda ddl: ddl.add_column("todo", "c", initial="x"))
    chunks = remote._chunks

    def of_earlier(request: Any) -> Any:
        for response in chunks(request):
            response.as_of.CopyFrom(remote.position(earlier))
            yield response

    live = dict(remote.server.rows)
    del remote.server.rows["todo", "a"]
    remote._chunks = of_earlier  # type: ignore[method-assign]
    device = opened()
    remote.server.rows = live
    del remote._chunks
    device.read()
    agrees(device, remote)
    assert rows(device, "todo", "id", "c")[0] == ("a", "x")


def test_a_rename_between_description_and_pull_is_noticed(opened: Open, remote: MemoryRemote) -> None:
    device = opened(start=False)
    pull, altered = remote.pull, list[int]()

    def altering(request: Any) -> Any:
        if not altered:
            altered.append(
                remote.alter(lambda ddl: (ddl.rename_table("note", "remark"), ddl.rename_column("todo", "n", "m")))
            )
        return pull(request)

    remote.pull = altering  # type: ignore[method-assign]
    device.start(background=False)
    assert "note" in in_file(device)
    device.read()
    agrees(device, remote)


def test_a_table_that_is_dropped_before_its_pull_is_left_out(opened: Open, remote: MemoryRemote) -> None:
    device = opened(tables=["todo"])
    device.choose_tables(None)
    pull, altered = remote.pull, list[int]()

    def altering(request: Any) -> Any:
        if not altered:
            altered.append(remote.alter(lambda ddl: ddl.drop_table("note")))
        return pull(request)

    remote.pull = altering  # type: ignore[method-assign]
    device.read()
    agrees(device, remote)


@pytest.mark.parametrize("where", ["behind the floor", "a new file"])
def test_without_a_log_todays_tables_are_taken_at_once(opened: Open, remote: MemoryRemote, where: str) -> None:
    device = opened()
    device.table("todo").update({"id": "k1", "title": "mine"})
    remote.alter(every_change)
    remote.alter(lambda ddl: ddl.add_column("todo", "later", initial="x"))
    if where == "a new file":
        device.clear()
        device.start(background=False)
        agrees(device, remote)
        return
    remote.floor = remote.server.head
    assert device.sync()
    agrees(device, remote, pulls=2)
    assert remote.server.live()["todo", "k1"]["title"] == "mine"


def test_a_restored_server_has_the_tables_of_before(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k1", "title": "sent before"})
    assert device.sync()
    server, schema = copy.deepcopy((remote.server, remote.schema))
    remote.alter(every_change)
    device.read()
    agrees(device, remote)
    device.table("task").update({"id": "k2", "subject": "after"})
    server.policy_of = lambda _: server.policy
    remote.server, remote.schema, remote.epoch = server, schema, "epoch-2"
    assert device.sync()
    agrees(device, remote, pulls=2)
    assert rows(device, "todo", "id", "title")[1:3] == [("k1", "sent before"), ("k2", "after")]


def test_a_registered_table_is_told_before_and_after(device: SyncedDb, remote: MemoryRemote) -> None:
    events = told(device)
    remote.server.tables = {**remote.server.tables, "visit": remote.server.tables["note"]}
    remote.tables = {**remote.tables, "visit": Table("visit", NOTE.columns, ("id",))}
    describe_now(device)
    device.read()
    agrees(device, remote, pulls=2)
    assert phases(events) == [(1, ("visit",), "before"), (1, ("visit",), "after")]
    assert remote.calls["describe"] == 3, "the pull itself asks once more"


def test_a_table_that_is_no_longer_synced_goes_also_where_the_server_is_always_ahead(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    describe = remote.describe

    def ahead(request: Any, timeout_s: float = 0) -> Any:
        remote.alter(lambda ddl: ddl.update("todo", "k0", n=remote.server.head % 1_000))
        return describe(request, timeout_s)

    remote.describe = ahead  # type: ignore[method-assign]
    remote.tables = {name: table for name, table in remote.tables.items() if name != "note"}
    version = remote.schema.version + 1
    state = remote.state

    def of_the_next_version() -> Any:
        answer = state()
        answer.schema_version = version
        return answer

    remote.state = of_the_next_version  # type: ignore[method-assign]
    device.read()
    device.read()
    assert in_file(device) == {"todo"}
    described = remote.calls["describe"]
    device.read()
    device.read()
    assert remote.calls["describe"] == described
    is_consistent(device)


def test_a_server_that_does_not_say_which_tables_came_has_them_pulled(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.schema.tells_created = False
    remote.alter(lambda ddl: ddl.create(VISIT, [{"id": "v", "at": 1}]))
    remote.alter(lambda ddl: ddl.insert("visit", {"id": "w", "at": 2}))
    device.read()
    agrees(device, remote, pulls=2)


WIDENED = [
    ("title", "character varying(3)", "character varying(10)", "12345"),
    ("title", "character(3)", "text", "12345"),
    ("n", "smallint", "integer", 40_000),
    ("n", "integer", "bigint", 2**40),
]


@pytest.mark.parametrize(("column", "narrow", "wide", "value"), WIDENED)
@pytest.mark.parametrize("known", ["asked at the write", "described ahead"])
def test_a_wider_type_holds_at_once(
    device: SyncedDb,
    remote: MemoryRemote,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    narrow: str,
    wide: str,
    value: Any,
    known: str,
) -> None:
    remote.alter(lambda ddl: ddl.relabel("todo", column, narrow))
    device.read()
    with pytest.raises(ValueError, match=r"takes at most|is outside|is character"):
        device.table("todo").update({"id": "k1", column: value})
    remote.alter(lambda ddl: ddl.relabel("todo", column, wide))
    if known == "described ahead":
        describe_now(device)
        remote.offline = True
    else:
        monkeypatch.setattr(type(device._syncing), "is_online", property(lambda _: True))
    device.table("todo").update({"id": "k1", column: value})
    remote.offline = False
    is_consistent(device)
    assert device.sync()
    agrees(device, remote)
    assert remote.server.live()["todo", "k1"][column] == value
