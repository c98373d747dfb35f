"""Gained audiences, pulled in parts with the log going on, over cuts and deaths; and a device's choice of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from tests.unit.client.audiences.teams import Open, Teams, held, is_right, jobs
from tests.unit.client.older import before_audiences

from anabranch.client import CallFailed, FileDamaged, Progress, State, SyncedDb
from anabranch.client.file import layout
from anabranch.client.reading import gains
from anabranch.client.reading.arrow_rows import Chunk
from anabranch.testkit.memory_messages import AnswerStream
from anabranch.v1 import snapshot_pb2


def test_what_is_gained_is_pulled_and_nothing_else(
    opened: Open, remote: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opened()
    device.read()
    asked: list[Any] = []
    pull = remote.pull

    def noted(request: Any) -> Any:
        asked.append(request)
        return pull(request)

    monkeypatch.setattr(remote, "pull", noted)
    remote.member_of("a", "b")
    device.read()
    is_right(device, remote)
    (request,) = asked
    assert [(r.table, list(r.audiences)) for r in request.required] == [("job", ["team:b"])]


def test_gained_rows_that_are_ahead_of_the_log_are_compared_once_it_has_them(
    opened: Open, remote: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table with changes by SQL that are not in the log yet ends at the position where they are, and without sums."""
    device = opened()
    device.read()
    pull, pulls = remote.pull, list[Any]()

    def drained_meanwhile(request: Any) -> Any:
        pulls.append(request)
        for response in pull(request):
            if not response.done:
                yield response
                continue
            of_moment = snapshot_pb2.PullResponse()
            of_moment.CopyFrom(response)
            of_moment.ClearField("done")
            of_moment.ClearField("sums")
            of_moment.ClearField("audiences")
            of_moment.resume = b"z"
            yield of_moment
            remote.set("j4", title="by SQL")
            yield snapshot_pb2.PullResponse(
                table=response.table,
                done=True,
                as_of=remote.position(remote.server.head),
                audiences=response.audiences,
                state=remote.state(),
                without_sums=True,
            )

    monkeypatch.setattr(remote, "pull", lambda request: AnswerStream(drained_meanwhile(request)))
    remote.member_of("a", "b")
    device.read()
    is_right(device, remote)
    assert len(pulls) == 1, "the whole table was pulled"
    assert device.verify() == ()


def test_a_pull_of_gained_rows_that_is_cut_goes_on_where_it_was(opened: Open, remote: Teams) -> None:
    remote.chunk_rows = 1
    device = opened()
    device.read()
    remote.member_of("a", "b")
    remote.cut_pull_after = 2
    with pytest.raises(CallFailed):
        device.read()
    assert set(jobs(device)) == {"j0", "j1", "j2", "j3", "j4"}
    assert device.execute("SELECT gain, gain_resume FROM _db_tables WHERE name = 'job'").fetchone() == (
        '["team:b"]',
        b"j3",
    )
    # Rows that have come are kept up to date, and those that have not are not missed.
    remote.set("j2", title="changed")
    remote.set("j4", title="changed")
    remote.drop("j3")
    remote.set("j9", team="b")
    device.close()
    device = opened()
    device.read()
    is_right(device, remote)


def test_the_log_goes_on_between_the_chunks(opened: Open, remote: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gains, "SLICE_S", 0.0)
    remote.chunk_rows = 1
    device = opened()
    device.read()
    remote.member_of("a", "b")
    seen: list[dict[str, str]] = []
    get = remote.get

    def meanwhile(request: Any) -> Any:
        if len(seen) < 6:
            seen.append(jobs(device))
            remote.set("j1", title=f"the log goes on: {len(seen)}")
        return get(request)

    monkeypatch.setattr(remote, "get", meanwhile)
    device.read()
    monkeypatch.undo()
    between = [rows for rows in seen if "j2" in rows and "j3" not in rows]
    assert between
    device.read()
    is_right(device, remote)


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_death_in_a_pull_of_gained_rows_loses_nothing(
    opened: Open, remote: Teams, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    remote.chunk_rows = 1
    device = opened()
    device.read()
    remote.member_of("a", "b")
    put, calls = gains.Gains._put, [0]

    def dies(*arguments: Any) -> bool:
        done = put(*arguments)
        calls[0] += 1
        if calls[0] == chunk + 1:
            raise RuntimeError("dies before the commit")
        return done

    monkeypatch.setattr(gains.Gains, "_put", dies)
    with pytest.raises(RuntimeError):
        device.read()
    monkeypatch.undo()
    assert device._file.current().gains_due
    device.close()
    device = opened()
    device.read()
    is_right(device, remote)


def test_what_is_lost_while_it_is_pulled_leaves_no_row(opened: Open, remote: Teams) -> None:
    remote.chunk_rows = 1
    device = opened()
    device.read()
    remote.member_of("a", "b", "c")
    remote.cut_pull_after = 2
    with pytest.raises(CallFailed):
        device.read()
    remote.member_of("a", "c")
    device.read()
    is_right(device, remote)
    remote.member_of("a", "b")
    device.read()
    is_right(device, remote)


def test_an_audience_that_is_lost_and_comes_back_is_pulled_from_its_beginning(opened: Open, remote: Teams) -> None:
    remote.chunk_rows = 1
    device = opened()
    device.read()
    states: list[State] = []
    device.on_state(states.append)
    remote.member_of("a", "b", "c")
    remote.cut_pull_after = 2
    with pytest.raises(CallFailed):
        device.read()
    remote.member_of("a", "c")
    remote.member_of("a", "b", "c")
    device._reader._pages()
    device.read()
    is_right(device, remote)
    assert "set_aside" not in {state.kind for state in states}


def test_the_log_is_read_up_to_the_moment_of_a_pull_first(
    opened: Open, remote: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gains, "SLICE_S", 0.0)
    remote.chunk_rows = 1
    device = opened()
    device.read()
    remote.member_of("a", "b")
    pull = remote.pull

    def busy(request: Any) -> Any:
        remote.set("j3", title=f"{device.status().cursor}")
        return pull(request)

    monkeypatch.setattr(remote, "pull", busy)
    device.read()
    is_right(device, remote)


def test_rows_that_the_file_may_not_hold_are_not_stored(opened: Open, remote: Teams) -> None:
    device = opened()
    device.read()
    rows = [("x1", "z", "theirs"), ("x2", "z+a", "both's"), ("x3", None, "nobody's")]
    chunk = Chunk(3, rows, [["team:z"], ["team:a", "team:z"], []])
    with device._file.transaction() as tx:
        assert gains._patches(tx, tx.tables["job"], chunk).keys() == {"x2"}


def test_pending_writes_stay_on_top_of_gained_rows(opened: Open, remote: Teams) -> None:
    remote.server.sets["alice"] = frozenset({"team:a", "team:b"})
    device = opened()
    device.table("job").update({"id": "j2", "title": "mine"})
    remote.member_of("a")
    device.read()
    assert "j2" not in jobs(device)
    remote.member_of("a", "b")
    device.read()
    assert jobs(device)["j2"] == "mine"
    assert device.sync()
    is_right(device, remote)
    assert remote.server.live()["job", "j2"]["title"] == "mine"


def test_progress_is_told_of_gained_rows(opened: Open, remote: Teams) -> None:
    remote.chunk_rows = 1
    device = opened()
    device.read()
    remote.member_of("a", "b")
    remote.cut_pull_after = 0
    with pytest.raises(CallFailed):
        device.read()
    told: list[Progress] = []
    device._reader.prepare(told.append)
    assert [(p.table, p.done) for p in told] == [("job", False), ("job", False), ("job", True)]
    device.read()
    is_right(device, remote)


def test_a_device_may_choose_of_its_audiences(opened: Open, remote: Teams) -> None:
    remote.server.sets["alice"] = frozenset({"team:a", "team:b", "team:c"})
    device = opened(audiences=["team:a", "team:x"])
    device.read()
    is_right(device, remote)
    assert held(device) == {"team:a"}
    remote.member_of("a", "b", "x")
    device.read()
    is_right(device, remote)
    device.close()
    device = opened(audiences=["team:b"], start=False)
    assert jobs(device) == {}, "what it gives up is gone before any call"
    assert held(device) == set()
    device.start(background=False)
    device.read()
    is_right(device, remote)
    device.close()
    device = opened()
    device.read()
    is_right(device, remote)
    assert held(device) == {"team:a", "team:b", "team:x"}


def test_tables_and_audiences_are_chosen_together(opened: Open, remote: Teams) -> None:
    remote.server.sets["alice"] = frozenset({"team:a", "team:b"})
    device = opened(tables=["note"], audiences=["team:b"])
    device.read()
    assert held(device) == {"team:b"}
    device.choose_tables(["note", "job"])
    device.read()
    is_right(device, remote)
    assert set(jobs(device)) == {"j2", "j3", "j4"}
    device.choose_tables(["note"])
    assert device.execute("SELECT count(*) FROM _db_row_audiences").fetchone() == (0,)
    assert device.execute("SELECT count(*) FROM _db_audience_sums").fetchone() == (0,)
    device.read()


@pytest.mark.parametrize("wrong", ["team:a", b"team:a", [1], [""], ["a\0b"], ["ä" * 501]])
def test_what_is_no_audience_is_refused(opened: Open, wrong: Any) -> None:
    with pytest.raises(ValueError, match="audience"):
        opened(audiences=wrong)


def test_a_damaged_choice_is_named(opened: Open) -> None:
    device = opened(audiences=["team:a"])
    device.close()
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        conn.execute("UPDATE _db_state SET audience_choice = '[1]'")
    with pytest.raises(FileDamaged, match="the audiences that it has chosen"):
        opened(start=False)


def test_an_emptied_file_keeps_the_choice_and_no_audience(opened: Open, remote: Teams) -> None:
    device = opened(audiences=["team:a"])
    device.read()
    device.clear()
    assert held(device) == set()
    current = device._file.current()
    assert (current.held_digest, current.chosen_audiences) == (b"", frozenset({"team:a"}))
    device.start(background=False)
    device.read()
    is_right(device, remote)


def test_a_file_of_the_format_before_has_its_rows_and_no_audiences(opened: Open) -> None:
    remote = Teams(restricted=False)
    device: SyncedDb = opened(on=remote)
    device.table("job").update({"id": "j0", "title": "mine"})
    device.close()
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        before_audiences(conn)
        conn.execute("PRAGMA user_version = 7")
    device = opened(on=remote)
    assert device.execute("PRAGMA user_version").fetchone() == (layout.FORMAT,)
    assert device.sync()
    assert jobs(device)["j0"] == "mine"
    assert device.status().disagreeing == ()


def test_behind_the_floor_all_is_taken_anew(opened: Open, remote: Teams) -> None:
    device = opened()
    device.read()
    remote.member_of("b", "c")
    remote.set("j5", title="later")
    remote.floor = remote.server.head
    device.read()
    is_right(device, remote)
