"""Dead letters and values that lost, once their columns are others: each value belongs to its column's identity."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.client.schema.altered import NOTE, TODO, Open, columns, is_consistent, rows, told

from anabranch.cli import dead as dead_command
from anabranch.client import ConflictEvent, SyncedDb
from anabranch.client.file.told import became
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.v1 import change_pb2, resolver_pb2, value_pb2
from anabranch.values import Kind, Table


def expand(ddl: Ddl) -> None:
    ddl.add_column("todo", "n_new", Kind.INT64, "bigint")


def contract(ddl: Ddl) -> None:
    ddl.drop_column("todo", "n")
    ddl.rename_column("todo", "n_new", "n")


def refused(device: SyncedDb, remote: MemoryRemote, **values: object) -> str:
    """Have an insert refused for a row that is there, with these values in it; give the letter's id."""
    remote.server.preset("todo", "new", {"id": "new", "title": "theirs"})
    letter = device.table("todo").insert({"id": "new", **values})
    assert device.sync()
    assert [one.id for one in device.dead_letters()] == [letter]
    return letter


def given(device: SyncedDb) -> list[dict[str, object]]:
    return [dict(row) for letter in device.dead_letters() for _, _, rows in letter.mutations for row in rows]


def live(remote: MemoryRemote, key: str) -> dict[str, object]:
    return dict(remote.server.live()["todo", key])


def test_a_column_that_is_gone_is_not_shown_as_another(device: SyncedDb, remote: MemoryRemote, tmp_path: Path) -> None:
    remote.alter(expand)
    device.read()
    letter = refused(device, remote, n=10, n_new=1000)
    assert given(device) == [{"id": "new", "n": 10, "n_new": 1000}]
    remote.alter(contract)
    device.read()
    assert given(device) == [{"id": "new", "n (gone)": 10, "n": 1000}]
    with pytest.raises(ValueError, match=r"todo has no column 'n \(gone\)' any more: leave it out"):
        device.replay(letter, {"id": "other"})
    with pytest.raises(ValueError, match=r"takes the column 'n \(gone\)'"):
        device.replay(letter, {"id": "other", "n (gone)": 5})
    assert given(device) == [{"id": "new", "n (gone)": 10, "n": 1000}], "the letter stays"
    file = str(tmp_path / "d.db")
    assert dead_command.main(["replay", file, letter, "--set", "id=other", "--leave-out", "n (gone)"]) == 0
    assert device.sync()
    is_consistent(device)
    assert live(remote, "other") == {"id": "other", "title": None, "n_new": 1000}


def test_a_value_of_a_column_that_is_gone_is_never_written_to_another(device: SyncedDb, remote: MemoryRemote) -> None:
    remote.alter(expand)
    device.read()
    letter = refused(device, remote, n=10)
    remote.alter(contract)
    device.read()
    with pytest.raises(ValueError, match=r"no column 'n \(gone\)'"):
        device.replay(letter, {"id": "other"})
    with pytest.raises(ValueError, match=r"no column 'n \(gone\)'"):
        device.replay(letter, {"id": "other", "n": 11})
    device.replay(letter, {"id": "other", "n": 11}, leave_out=["n (gone)"])
    assert device.sync()
    is_consistent(device)
    assert live(remote, "other")["n_new"] == 11
    assert remote.lost_values == []


def test_a_column_that_is_gone_has_its_identity_where_nothing_else_has_it(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    letter = refused(device, remote, title="mine", n=10)
    remote.alter(lambda ddl: ddl.drop_column("todo", "n"))
    device.read()
    assert given(device) == [{"id": "new", "title": "mine", "n": 10}]
    with pytest.raises(ValueError, match="no column 'n'"):
        device.replay(letter, {"id": "other"})
    device.replay(letter, {"id": "other"}, leave_out=["n"])
    assert device.sync()
    is_consistent(device)


def test_a_letter_of_a_renamed_column_finds_it_though_another_has_its_name(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    letter = refused(device, remote, title="mine")

    def swap(ddl: Ddl) -> None:
        ddl.rename_column("todo", "title", "former_title")
        ddl.add_column("todo", "title", initial="fresh")

    remote.alter(swap)
    device.read()
    assert given(device) == [{"id": "new", "former_title": "mine"}]
    device.replay(letter, {"id": "other"})
    assert device.sync()
    is_consistent(device)
    assert live(remote, "other")["title"] == "mine"


def test_a_value_of_a_retyped_column_is_sent_as_it_was(device: SyncedDb, remote: MemoryRemote) -> None:
    letter = refused(device, remote, n=45)
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", lambda cell: f"{cell} minutes"))
    device.read()
    assert given(device) == [{"id": "new", "n": 45}]
    device.replay(letter, {"id": "other"})
    is_consistent(device)
    assert rows(device, "todo", "id", "n")[-1] == ("other", None), "it is not shown until it is cast"
    assert device.sync()
    is_consistent(device)
    assert live(remote, "other")["n~2"] == "45 minutes"


def test_an_update_of_a_retyped_column_alone_is_replayed(device: SyncedDb, remote: MemoryRemote) -> None:
    batch = device.table("todo").update({"id": "k1", "n": 45})
    del remote.server.rows["todo", "k1"]
    assert device.sync()
    remote.server.preset("todo", "k1", {"id": "k1", "title": "again"})
    remote.alter(lambda ddl: ddl.update("todo", "k1", n=1))
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", lambda cell: f"{cell} minutes"))
    remote.floor = remote.server.head
    device.read()
    device.replay(batch)
    assert device.sync()
    assert live(remote, "k1")["n~2"] == "45 minutes"


@pytest.mark.parametrize("edit", ["set", "leave out"])
def test_a_value_of_a_retyped_column_can_be_another_or_none(device: SyncedDb, remote: MemoryRemote, edit: str) -> None:
    letter = refused(device, remote, title="mine", n=45)
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", str))
    device.read()
    if edit == "set":
        device.replay(letter, {"id": "other", "n": "an hour"})
    else:
        device.replay(letter, {"id": "other"}, leave_out=["n"])
    assert device.sync()
    is_consistent(device)
    assert live(remote, "other")["n~2"] == ("an hour" if edit == "set" else None)


def test_a_value_of_a_column_that_was_made_anew_is_judged_by_the_server(device: SyncedDb, remote: MemoryRemote) -> None:
    letter = refused(device, remote, title="mine", n=45)
    remote.alter(lambda ddl: ddl.drop_column("todo", "n"))
    remote.alter(lambda ddl: ddl.add_column("todo", "n", Kind.INT64, "bigint", initial=7))
    device.read()
    device.replay(letter, {"id": "other"})
    assert device.sync()
    is_consistent(device)
    assert live(remote, "other")["n~2"] is None
    assert remote.lost_values == [("todo", "other", "n", 45)]


def test_a_table_that_is_gone_is_not_shown_as_another(device: SyncedDb, remote: MemoryRemote) -> None:
    letter = refused(device, remote, title="mine")

    def change(ddl: Ddl) -> None:
        ddl.drop_table("todo")
        ddl.rename_table("note", "todo")
        ddl.rename_column("note", "body", "title")

    remote.alter(change)
    device.read()
    (found,) = device.dead_letters()
    assert (found.table, found.mutations[0][1]) == ("todo", "todo")
    with pytest.raises(ValueError, match="no synced table 'todo'"):
        device.replay(letter)
    assert len(device.dead_letters()) == 1
    assert ("note", "new") not in remote.server.live()


def test_a_table_is_found_by_its_identity(device: SyncedDb, remote: MemoryRemote) -> None:
    letter = refused(device, remote, title="mine")

    def swap(ddl: Ddl) -> None:
        ddl.rename_table("todo", "task")
        ddl.create(Table("todo~2", NOTE.columns, ("id",), renamed="todo"), [])

    remote.alter(swap)
    device.read()
    device.replay(letter, {"id": "other"})
    assert device.sync()
    assert live(remote, "other")["title"] == "mine"


def newer(opened: Open, remote: MemoryRemote) -> SyncedDb:
    """A device of an app that knows a column which came later."""
    device = opened()
    remote.alter(lambda ddl: ddl.add_column("todo", "prio", Kind.INT64, "bigint"))
    device.read()
    return device


def older(opened: Open, device: SyncedDb) -> SyncedDb:
    """The same file, with the app of before."""
    device.close()
    rolled_back = opened(schema_version=1)
    rolled_back.sync()
    return rolled_back


def test_an_earlier_app_replays_what_it_does_not_know(opened: Open, remote: MemoryRemote) -> None:
    device = newer(opened, remote)
    letter = refused(device, remote, title="mine", prio=5)
    rolled_back = older(opened, device)
    assert columns(rolled_back, "todo")[-1] == "_DB_new_prio"
    assert given(rolled_back) == [{"id": "new", "title": "mine"}]
    rolled_back.replay(letter, {"id": "other", "title": "ours"})
    is_consistent(rolled_back)
    assert rolled_back.sync()
    assert live(remote, "other") == {"id": "other", "title": "ours", "n": None, "prio": 5}
    assert rolled_back.dead_letters() == []


def test_an_earlier_app_replays_an_update_of_what_it_does_not_know(opened: Open, remote: MemoryRemote) -> None:
    device = newer(opened, remote)
    batch = device.table("todo").update({"id": "k1", "prio": 5})
    before = remote.server.rows.pop(("todo", "k1"))
    assert device.sync()
    assert [one.id for one in device.dead_letters()] == [batch]
    remote.server.rows["todo", "k1"] = before
    rolled_back = older(opened, device)
    rolled_back.replay(batch)
    assert rolled_back.sync()
    assert live(remote, "k1")["prio"] == 5


def test_an_earlier_app_may_leave_out_what_it_does_not_know(opened: Open, remote: MemoryRemote) -> None:
    device = newer(opened, remote)
    letter = refused(device, remote, title="mine", prio=5)
    rolled_back = older(opened, device)
    with pytest.raises(ValueError, match="takes the column 'prio'"):
        rolled_back.replay(letter, {"prio": 6})
    rolled_back.replay(letter, {"id": "other"}, leave_out=["prio"])
    assert rolled_back.sync()
    assert live(remote, "other")["prio"] is None


def test_an_earlier_app_replays_values_of_any_kind_of_columns_that_went(opened: Open, remote: MemoryRemote) -> None:
    kinds = {"b": (Kind.BYTES, "bytea"), "a": (Kind.BOOL, "boolean"), "d": (Kind.DOUBLE, "double precision")}
    kinds |= {"m": (Kind.DECIMAL, "numeric")}

    def add(ddl: Ddl) -> None:
        for name, (kind, of) in kinds.items():
            ddl.add_column("todo", name, kind, of)

    def drop(ddl: Ddl) -> None:
        for name in kinds:
            ddl.drop_column("todo", name)

    remote.alter(add)
    device = opened(schema_version=2)
    remote.alter(drop)
    device.read()
    letter = refused(device, remote, b=b"\x01", a=True, d=1.5, m="1.10")
    device.replay(letter, {"id": "other"})
    assert device.sync()
    lost = {column: cell for _, key, column, cell in remote.lost_values if key == "other"}
    first = {column: cell for _, key, column, cell in remote.lost_values if key == "new"}
    assert lost == first
    assert lost.keys() == kinds.keys()


def test_a_value_that_lost_its_column_is_not_put_into_another(device: SyncedDb, remote: MemoryRemote) -> None:
    """Neither by the event of it, nor by the list of the server."""
    events = told(device)
    device.on_conflict(events.append)
    loser = change_pb2.Loser(
        table="todo",
        key=[value_pb2.Value(string_value="k1")],
        column="n",
        value=value_pb2.Value(int64_value=7),
        batch_id=device.table("todo").update({"id": "k1", "n": 7}),
        winner_batch_id="of the change",
        cause=change_pb2.LOSS_CAUSE_COLUMN_DROPPED,
    )
    remote.alter(expand)
    remote.alter(contract)
    device.read()
    group = change_pb2.LoggedGroup(
        position=remote.server.head + 1, batches=[change_pb2.LoggedBatch(id=loser.batch_id, losers=[loser])]
    )
    device._reader._paging.page(change_pb2.Page(groups=[group], reached=remote.position(group.position)))
    (event,) = (one for one in events if isinstance(one, ConflictEvent))
    assert (event.column, event.losing_value, event.cause) == ("n (gone)", 7, "COLUMN_DROPPED")
    listed = resolver_pb2.Conflict(
        table="todo",
        key=loser.key,
        column="n",
        losing_value=loser.value.SerializeToString(),
        cause=loser.cause,
    )
    remote.list_conflicts = lambda request: resolver_pb2.ListConflictsResponse(  # type: ignore[method-assign]
        conflicts=[listed]
    )
    (conflict,) = device.conflicts()
    assert (conflict.column, conflict.losing_value) == ("n (gone)", 7)
    for lost in (event, conflict):
        with pytest.raises(ValueError, match=r"todo has no column 'n \(gone\)'"):
            device.restore(lost)
    remote.alter(lambda ddl: ddl.rename_column("todo", "n_new", "n_new"))
    device.read()
    remote.alter(lambda ddl: ddl.add_column("todo", "n", Kind.INT64, "bigint"))
    device.read()
    (conflict,) = device.conflicts()
    assert conflict.column == "n (gone)", "one that was made anew is another, too"
    for lost in (event, conflict):
        with pytest.raises(ValueError, match=r"todo has no column 'n \(gone\)'"):
            device.restore(lost)


def test_a_value_is_put_back_into_its_column_whatever_that_is_called_by_then(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    lost = resolver_pb2.Conflict(
        table="todo",
        key=[value_pb2.Value(string_value="k1")],
        column="title",
        losing_value=value_pb2.Value(string_value="lost").SerializeToString(),
    )
    remote.list_conflicts = lambda request: resolver_pb2.ListConflictsResponse(  # type: ignore[method-assign]
        conflicts=[lost]
    )
    (conflict,) = device.conflicts()

    def swap(ddl: Ddl) -> None:
        ddl.rename_table("todo", "task")
        ddl.rename_column("todo", "title", "former_title")
        ddl.add_column("todo", "title")
        ddl.create(Table("todo~2", TODO.columns, ("id",), renamed="todo"), [{"id": "k1", "title": "its own"}])

    remote.alter(swap)
    device.read()
    device.restore(conflict)
    assert device.sync()
    assert live(remote, "k1")["title"] == "lost"
    assert remote.server.live()["todo~2", "k1"]["title"] == "its own"


@pytest.mark.parametrize(
    ("identity", "there", "now"),
    [
        ("n", ("id", "n~2"), "n~2"),
        ("n~2", ("id", "n~3"), "n~3"),
        ("n", ("id", "n~3"), "n~3"),
        ("N", ("id", "n~2"), "n~2"),
        ("n", ("id", "n_new", "nn~2", "n~x", "~2"), ""),
        ("n~2", ("id", "n"), ""),
        ("n", ("n~2", "n~3"), ""),
        ("n", (), ""),
    ],
)
def test_a_retyped_column_is_told_by_its_identity(identity: str, there: tuple[str, ...], now: str) -> None:
    assert became(identity, there) == now
