"""A table and columns whose names in SQL are no longer their identities: the app knows the names, the wire the
identities."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli import dead as dead_command
from anabranch.client import Change, ConflictEvent, Progress, RowExists, RowMissing, State, SyncedDb
from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.testkit.unseen import write_unseen
from anabranch.v1 import batch_pb2, change_pb2, errors_pb2, resolver_pb2, value_pb2, verdict_pb2
from anabranch.values import Column, Kind, Table

LOCATION = Table(
    "site",
    (
        Column("id", Kind.STRING, "text", renamed="code"),
        Column("title", Kind.STRING, "text", renamed="subject"),
        Column("n", Kind.INT64, "bigint"),
    ),
    ("id",),
    renamed="location",
)


@pytest.fixture
def remote() -> MemoryRemote:
    server = MemoryServer({"site": MemoryTable({"id": None, "title": None, "n": None})}, Policy(), park_ms=1000)
    server.head = 1_000
    for i in range(3):
        server.preset("site", f"k{i}", {"id": f"k{i}", "title": f"title {i}", "n": i})
    return MemoryRemote(server, [LOCATION], lambda: time.time_ns() // 1_000_000)


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def device(tmp_path: Path, remote: MemoryRemote, told: list[Any]) -> Iterator[SyncedDb]:
    made = SyncedDb(tmp_path / "d.db", remote, "d")
    made.on_change(told.append)
    made.on_conflict(told.append)
    made.on_state(told.append)
    made.start(background=False)
    yield made
    made.close()


def rows(device: SyncedDb) -> list[tuple[Any, ...]]:
    return device.execute("SELECT code, subject, n FROM location ORDER BY code").fetchall()


def payload(device: SyncedDb) -> batch_pb2.DbMutationBatch:
    (value,) = device.execute("SELECT value FROM _db_mutations_queue ORDER BY id DESC LIMIT 1").fetchone()
    return batch_pb2.DbMutationBatch.FromString(value)


def test_the_file_has_the_names_and_batches_have_the_identities(device: SyncedDb, remote: MemoryRemote) -> None:
    assert rows(device) == [("k0", "title 0", 0), ("k1", "title 1", 1), ("k2", "title 2", 2)]
    device.table("location").update({"code": "k0", "subject": "mine"})
    (mutation,) = payload(device).mutations
    assert (mutation.table, list(mutation.columns)) == ("site", ["id", "title"])
    assert list(mutation.undo.columns) == ["title"]
    device.table("location").delete("k1")
    (mutation,) = payload(device).mutations
    assert (list(mutation.columns), list(mutation.undo.columns)) == (["id"], ["id", "title", "n"])
    device.table("location").insert({"code": "k9", "n": 4})
    assert device.sync()
    live = {key: dict(row) for (_, key), row in remote.server.live().items()}
    assert live == {
        "k0": {"id": "k0", "title": "mine", "n": 0},
        "k2": {"id": "k2", "title": "title 2", "n": 2},
        "k9": {"id": "k9", "title": None, "n": 4},
    }
    assert rows(device) == [("k0", "mine", 0), ("k2", "title 2", 2), ("k9", None, 4)]
    assert device.verify() == ()
    assert device.table_sums().keys() == {"location"}
    kept = {name for (name,) in device.execute("SELECT name FROM _db_tables")}
    assert kept == {"site"}


def test_events_name_what_the_app_knows(device: SyncedDb, told: list[Any], remote: MemoryRemote) -> None:
    told.clear()
    device.table("location").update({"code": "k0", "subject": "mine"})
    shown = {"code": "k0", "subject": "mine", "n": 0}
    assert told == [Change("location", "update", ("k0",), ("subject",), shown, "local")]
    assert device.sync()
    told.clear()
    assert remote.write([("site", MutationType.INSERT, "k8", {"id": "k8", "title": "sql", "n": 1})])
    assert remote.write([("site", MutationType.DELETE, "k1", {})])
    device.read()
    new = Change(
        "location", "insert", ("k8",), ("code", "subject", "n"), {"code": "k8", "subject": "sql", "n": 1}, "remote"
    )
    assert [e for e in told if isinstance(e, Change)] == [
        new,
        Change("location", "delete", ("k1",), (), None, "remote"),
    ]


def test_a_value_of_a_column_that_was_dropped_is_told_with_the_cause(
    device: SyncedDb, told: list[Any], remote: MemoryRemote
) -> None:
    batch = device.table("location").update({"code": "k0", "n": 7})
    key = [value_pb2.Value(string_value="k0")]
    remote.alter(lambda ddl: ddl.drop_column("site", "n"))
    device.read()
    told.clear()
    loser = change_pb2.Loser(
        table="site",
        key=key,
        column="n",
        value=value_pb2.Value(int64_value=7),
        batch_id=batch,
        winner_batch_id="of the change",
        cause=change_pb2.LOSS_CAUSE_COLUMN_DROPPED,
    )
    group = change_pb2.LoggedGroup(
        position=remote.server.head + 1, batches=[change_pb2.LoggedBatch(id=batch, losers=[loser])]
    )
    device._reader._paging.page(change_pb2.Page(groups=[group], reached=remote.position(group.position)))
    (lost,) = (e for e in told if isinstance(e, ConflictEvent))
    assert (lost.outcome, lost.column, lost.losing_value, lost.value_known) == ("lost", "n", 7, True)
    assert lost.cause == "COLUMN_DROPPED"
    with pytest.raises(ValueError, match="has no column"):
        device.restore(lost)


def test_losers_and_refusals_are_told_by_name(device: SyncedDb, told: list[Any], remote: MemoryRemote) -> None:
    batch = device.table("location").update({"code": "k0", "subject": "mine"})
    key = [value_pb2.Value(string_value="k0")]
    loser = change_pb2.Loser(
        table="site", key=key, column="title", value=value_pb2.Value(string_value="mine"), batch_id=batch
    )
    group = change_pb2.LoggedGroup(
        position=remote.server.head + 1, batches=[change_pb2.LoggedBatch(id="x", losers=[loser])]
    )
    device._reader._paging.page(change_pb2.Page(groups=[group], reached=remote.position(group.position)))
    (lost,) = (e for e in told if isinstance(e, ConflictEvent))
    assert (lost.table, lost.key, lost.column, lost.losing_value) == ("location", ("k0",), "subject", "mine")
    told.clear()
    refused = verdict_pb2.Verdict(
        batch_id=batch,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        reason=errors_pb2.REASON_UNKNOWN_COLUMN,
        mutations=[
            verdict_pb2.MutationVerdict(
                table="site",
                key=key,
                columns=["title"],
                server_row=value_pb2.NamedRow(
                    columns=["id", "title"], values=[*key, value_pb2.Value(string_value="theirs")]
                ),
            )
        ],
    )
    with device._file.transaction() as tx:
        device._sender._note(tx, [refused], remote.state())
    device._listeners.deliver()
    (event,) = (e for e in told if isinstance(e, ConflictEvent))
    assert (event.table, event.key, event.column) == ("location", ("k0",), "subject")
    assert event.server_row == {"code": "k0", "subject": "theirs"}
    (letter,) = device.dead_letters()
    assert (letter.table, letter.key) == ("location", ("k0",))
    assert letter.mutations == (("update", "location", ({"code": "k0", "subject": "mine"},)),)
    assert letter.server_row == {"code": "k0", "subject": "theirs"}
    assert letter.server_row_now == {"code": "k0", "subject": "title 0", "n": 0}
    verdict = device.verdict(batch)
    assert verdict is not None
    (mutation,) = verdict.mutations
    assert (mutation.table, mutation.columns, mutation.server_row) == (
        *("location", ("subject",)),
        {"code": "k0", "subject": "theirs"},
    )
    with pytest.raises(ValueError, match="gives the column 'title'"):
        device.replay(letter.id, leave_out=["title"])
    device.replay(letter.id, {"subject": "again"})
    assert rows(device)[0] == ("k0", "again", 0)
    assert payload(device).mutations[0].columns == ["id", "title"]


def test_the_dead_command_knows_the_names(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remote.server.preset("site", "k9", {"id": "k9"})
    batch = device.table("location").insert({"code": "k9", "n": 1})
    assert device.sync()
    file = str(tmp_path / "d.db")
    assert dead_command.main(["list", "--json", file]) == 0
    (letter,) = json.loads(capsys.readouterr().out)
    assert letter["tried"] == [{"type": "insert", "table": "location", "rows": [{"code": "k9", "n": 1}]}]
    assert (letter["table"], letter["key"]) == ("location", ["k9"])
    assert dead_command.main(["replay", file, batch, "--set", "code=k10", "--set", "n=7"]) == 0
    assert rows(device)[-2:] == [("k10", None, 7), ("k2", "title 2", 2)]


def test_errors_name_what_the_app_knows(device: SyncedDb) -> None:
    table = device.table("location")
    for call, message in (
        (lambda: device.table("site").delete("k0"), "there is no synced table 'site'"),
        (lambda: table.insert({"code": "k7", "title": "x"}), "location has no column 'title'"),
        (lambda: table.insert({"subject": "x"}), "location.code: the row gives no value"),
        (lambda: table.update({"code": "k0", "n": "many"}), r"location\.n: "),
        (lambda: table.delete({"id": "k0"}), "location: a key has exactly the columns code"),
        (lambda: device.verify("site"), "there is no synced table 'site'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(RowMissing, match="location has no row"):
        table.delete("nobody")
    with pytest.raises(RowExists, match="location has the row"):
        table.insert({"code": "k0"})
    with closing(sqlite3.connect(device._file.path)) as conn, pytest.raises(sqlite3.IntegrityError, match="location"):
        conn.execute("UPDATE location SET n = 9")


def test_a_damaged_table_is_found_and_repaired_by_its_name(device: SyncedDb, told: list[Any]) -> None:
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        write_unseen(conn, "UPDATE location SET n = 99 WHERE code = 'k0'")
    told.clear()
    assert device.verify("location") == ("location",)
    assert device.status().disagreeing == ("location",)
    assert [s.table for s in told if isinstance(s, State)] == ["location"]
    assert device.repair("location").rows == 1
    assert device.verify() == ()


def test_progress_and_states_of_a_pull_name_the_table(remote: MemoryRemote, tmp_path: Path) -> None:
    seen: list[Progress] = []
    states: list[State] = []
    device = SyncedDb(tmp_path / "p.db", remote, "d", tables=["location"])
    device.on_state(states.append)
    device.start(background=False, progress=seen.append)
    assert {p.table for p in seen} == {"location"}
    assert [(s.kind, s.detail) for s in states] == [("pulling", "location"), ("pulled", "location")]
    assert device.status().awaited == ()
    device.close()


def test_conflicts_are_listed_and_put_back_by_name(device: SyncedDb, remote: MemoryRemote) -> None:
    asked: list[resolver_pb2.ListConflictsRequest] = []

    def list_conflicts(request: resolver_pb2.ListConflictsRequest) -> resolver_pb2.ListConflictsResponse:
        asked.append(request)
        lost = resolver_pb2.Conflict(
            table="site",
            key=[value_pb2.Value(string_value="k1")],
            column="title",
            losing_value=value_pb2.Value(string_value="lost").SerializeToString(),
            cause=change_pb2.LOSS_CAUSE_COLUMN_DROPPED,
        )
        return resolver_pb2.ListConflictsResponse(conflicts=[lost])

    remote.list_conflicts = list_conflicts  # type: ignore[method-assign]
    (conflict,) = device.conflicts("location", "k1")
    assert (asked[0].table, asked[0].key[0].string_value) == ("site", "k1")
    assert (conflict.table, conflict.key, conflict.column, conflict.losing_value, conflict.cause) == (
        *("location", ("k1",)),
        *("subject", "lost", "COLUMN_DROPPED"),
    )
    device.restore(conflict)
    assert rows(device)[1] == ("k1", "lost", 1)


@pytest.mark.parametrize("choice", [["location"], ["site"]], ids=["its name", "its identity"])
def test_a_table_is_chosen_by_its_name_or_its_identity(remote: MemoryRemote, tmp_path: Path, choice: list[str]) -> None:
    device = SyncedDb(tmp_path / "c.db", remote, "d", tables=choice)
    device.start(background=False)
    assert rows(device)[0] == ("k0", "title 0", 0)
    assert device.status().awaited == ()
    device.table("location").update({"code": "k0", "subject": "mine"})
    device.choose_tables([])
    assert device.status().chosen == ()
    assert device.execute("SELECT name FROM sqlite_master WHERE name = 'location'").fetchall() == []
    device.choose_tables(choice)
    assert device.sync()
    assert rows(device)[0] == ("k0", "mine", 0)
    device.close()


def test_the_file_is_opened_again(device: SyncedDb, remote: MemoryRemote, tmp_path: Path) -> None:
    device.table("location").update({"code": "k0", "subject": "mine"})
    device.close()
    with closing(SyncedDb(tmp_path / "d.db", remote, "d")) as again:
        assert rows(again)[0] == ("k0", "mine", 0)
        again.start(background=False)
        assert again.sync()
        assert again.status().pulls == 1
