"""Tables that were changed on the server while the device had writes under way, or the log still held older rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.client import State, SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryTable
from anabranch.v1 import change_pb2, errors_pb2, position_pb2, resolver_pb2, value_pb2, verdict_pb2
from anabranch.values import Column, Kind, Table


class Changed(MemoryRemote):
    """A server whose tables become others: ``version`` is that of the schema."""

    version = 1

    def state(self) -> position_pb2.ServerState:
        state = super().state()
        state.schema_version = self.version
        return state

    def become(self, *tables: Table) -> None:
        self.version += 1
        self.tables = {t.name: t for t in tables}

    def refuse(self, device: SyncedDb, reason: errors_pb2.Reason.ValueType, message: str) -> None:
        """Have every unsent batch rejected, as a resolver does whose tables are others."""
        ids = device.execute("SELECT id FROM _db_mutations_queue ORDER BY id").fetchall()
        self.refusals = [
            verdict_pb2.Verdict(
                batch_id=i, status=verdict_pb2.VERDICT_STATUS_REJECTED, position=7, reason=reason, message=message,
                mutations=[verdict_pb2.MutationVerdict(table="todo")],
            )
            for (i,) in ids
        ]  # fmt: skip
        self.get_verdict = self._refused  # type: ignore[method-assign]
        device._sender._ask([i for (i,) in ids])

    def _refused(self, request: resolver_pb2.GetVerdictRequest) -> resolver_pb2.GetVerdictResponse:
        return resolver_pb2.GetVerdictResponse(verdicts=self.refusals, state=self.state())


@pytest.fixture
def changed(remote: MemoryRemote) -> Changed:
    return Changed(remote.server, list(remote.tables.values()), remote.now_ms)


@pytest.fixture
def device(tmp_path: Path, changed: Changed) -> SyncedDb:
    made = SyncedDb(tmp_path / "d.db", changed, "d")
    made.start(background=False)
    return made


def todo(*columns: tuple[str, Kind], key: str = "id") -> Table:
    types = {Kind.STRING: "text", Kind.INT64: "bigint"}
    return Table("todo", tuple(Column(name, kind, types[kind]) for name, kind in columns), (key,))


def test_a_dropped_table_ends_in_one_readable_dead_letter_for_each_batch(device: SyncedDb, changed: Changed) -> None:
    device.table("todo").update({"id": "k0", "title": "mine", "n": 5})
    device.table("todo").delete("k1")
    changed.become()
    device.read()
    changed.refuse(device, errors_pb2.REASON_UNKNOWN_TABLE, 'there is no synced table "todo"')
    first, second = device.dead_letters()
    assert (first.reason, first.table) == ("UNKNOWN_TABLE", "todo")
    assert first.mutations == (("update", "todo", ({"id": "k0", "title": "mine", "n": 5},)),)
    assert second.mutations == (("delete", "todo", ({"id": "k1"},)),)
    with pytest.raises(ValueError, match=r"there is no synced table 'todo'$"):
        device.replay(first.id)
    assert len(device.dead_letters()) == 2
    assert device.status().queued == 0


@pytest.mark.parametrize(
    "after",
    [
        todo(("id", Kind.STRING), ("name", Kind.STRING), ("n", Kind.INT64)),
        todo(("key", Kind.STRING), ("title", Kind.STRING), ("n", Kind.INT64), key="key"),
        todo(("id", Kind.STRING), ("title", Kind.INT64), ("n", Kind.INT64)),
    ],
    ids=["a renamed column", "a renamed key", "another kind"],
)
def test_a_changed_column_ends_in_one_readable_dead_letter_and_stops_nothing(
    device: SyncedDb, changed: Changed, after: Table
) -> None:
    batch = device.table("todo").update({"id": "k0", "title": "mine"})
    changed.server.rows.clear()
    changed.server.tables = {"todo": MemoryTable(dict.fromkeys(after.column_names))}
    row = {c.name: "k9" if c.kind is Kind.STRING else 1 for c in after.columns}
    changed.server.preset("todo", "k9", row)
    changed.become(after)
    device.read()
    assert device.execute("SELECT n FROM todo").fetchall() == [(1,)]
    changed.refuse(device, errors_pb2.REASON_UNKNOWN_COLUMN, 'the table has no column "title"')
    (letter,) = device.dead_letters()
    assert (letter.id, letter.reason) == (batch, "UNKNOWN_COLUMN")
    assert letter.mutations == (("update", "todo", ({"id": "k0", "title": "mine"},)),)
    assert device.status().queued == 0
    assert device.table_sums()["todo"][0] == 1


def test_a_letter_of_a_renamed_column_is_replayed_under_its_new_name(device: SyncedDb, changed: Changed) -> None:
    device.table("todo").update({"id": "k0", "title": "mine", "n": 5})
    after = todo(("id", Kind.STRING), ("name", Kind.STRING), ("n", Kind.INT64))
    changed.server.tables = {"todo": MemoryTable({"id": None, "name": None, "n": None})}
    changed.server.rows.clear()
    changed.server.preset("todo", "k0", {"id": "k0", "name": "theirs", "n": 0})
    changed.become(after)
    device.read()
    changed.refuse(device, errors_pb2.REASON_UNKNOWN_COLUMN, 'the table has no column "title"')
    (letter,) = device.dead_letters()
    with pytest.raises(ValueError, match="no column 'title'"):
        device.replay(letter.id)
    with pytest.raises(ValueError, match="gives the column 'nope'"):
        device.replay(letter.id, leave_out=["nope"])
    device.replay(letter.id, {"name": "mine"}, leave_out=["title"])
    assert device.dead_letters() == []
    assert device.execute("SELECT * FROM todo").fetchall() == [("k0", "mine", 5)]


@pytest.mark.parametrize("columns", [["id", "n"], ["n"]], ids=["another kind", "no key"])
def test_a_row_of_the_log_that_does_not_fit_sets_its_table_aside_and_stops_no_other(
    device: SyncedDb, changed: Changed, columns: list[str]
) -> None:
    """As after a column was made anew as another type: the log still has rows of the old one."""
    states: list[State] = []
    device.on_state(states.append)
    values = {"id": value_pb2.Value(string_value="k0"), "n": value_pb2.Value(string_value="once a text")}
    effect = change_pb2.Effect(
        table="todo", type=change_pb2.EFFECT_TYPE_UPDATE, columns=columns, values=[values[c] for c in columns]
    )
    changed.server.head += 1
    group = change_pb2.LoggedGroup(
        position=changed.server.head,
        batches=[change_pb2.LoggedBatch(id="x", effects=[effect.SerializeToString()])],
    )
    page = change_pb2.Page(groups=[group], reached=changed.position(changed.server.head))
    for _ in range(2):
        device._reader._paging.page(page)
    assert device.status().cursor == changed.server.head
    assert [s.table for s in states if s.kind == "set_aside"] == ["todo"]
    pulls = device.status().pulls
    device.read()
    assert device.status().pulls == pulls + 1
    assert device.execute("SELECT n FROM todo WHERE id = 'k0'").fetchone() == (0,)
