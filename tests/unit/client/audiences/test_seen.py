"""The rows of restricted tables on a device: by its first pull, by the log, and where its set has changed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.audiences.teams import ROWS, Open, Teams, held, is_right, jobs

from anabranch.client import CallFailed, Change, State
from anabranch.client.file import row_audiences
from anabranch.merge import MutationType
from anabranch.v1 import change_pb2, errors_pb2, value_pb2, verdict_pb2


def test_a_first_pull_brings_what_the_principal_may_see(opened: Open, remote: Teams) -> None:
    device = opened()
    assert jobs(device) == {"j0": "j0", "j1": "j1", "j4": "j4"}
    device.read()
    is_right(device, remote)
    assert remote.calls["pull"] == 1


def test_rows_come_and_go_as_they_move(opened: Open, remote: Teams) -> None:
    device = opened()
    told: list[Change] = []
    device.on_change(told.append)
    remote.set("j0", team="b")
    remote.set("j2", team="a")
    remote.set("j5", title="another team's")
    remote.set("j4", team="b")
    remote.set("j4", team="a", title="back")
    remote.set("j7", team="a")
    remote.set("j8", team=None)
    device.read()
    is_right(device, remote)
    assert [(c.type, c.key[0]) for c in told if c.key != ("j4",)] == [
        ("delete", "j0"),
        ("insert", "j2"),
        ("insert", "j7"),
    ]
    assert remote.calls["pull"] == 1


@pytest.mark.parametrize("effects", [1, 2, 5])
def test_a_group_in_parts_changes_the_set_once(opened: Open, remote: Teams, effects: int) -> None:
    remote.part_effects, remote.page_parts = effects, 1
    device = opened()
    job = [("job", MutationType.UPDATE, key, {"title": "moved", "team": "b"}) for key in ("j0", "j1", "j4")]
    assert remote.write(job, {"alice": frozenset({"team:b"})})
    device.read()
    is_right(device, remote)


def test_a_lost_audience_takes_its_rows_at_once(opened: Open, remote: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_audiences, "_AT_ONCE", 1)
    remote.server.sets["alice"] = frozenset({"team:a", "team:b"})
    device = opened()
    told: list[Change] = []
    device.on_change(told.append)
    remote.member_of("b")
    device.read()
    is_right(device, remote)
    assert sorted((c.type, c.key[0], c.origin) for c in told) == [
        ("delete", "j0", "remote"),
        ("delete", "j1", "remote"),
    ]
    assert remote.calls["pull"] == 1


def test_what_is_queued_on_a_lost_row_is_refused_and_shows_nothing(opened: Open, remote: Teams) -> None:
    device = opened()
    batch = device.table("job").update({"id": "j0", "title": "mine"})
    remote.member_of("b")
    device.read()
    assert "j0" not in jobs(device)
    assert device.status().unsent == 1
    device.sync()
    assert [letter.id for letter in device.dead_letters()] == [batch]
    is_right(device, remote)


def test_an_own_batch_may_move_a_row_out_of_sight(opened: Open, remote: Teams) -> None:
    remote.server.sets["alice"] = frozenset({"team:a", "team:b"})
    device = opened()
    device.table("job").update({"id": "j0", "team": "b"})
    assert device.sync()
    remote.member_of("a")
    device.read()
    is_right(device, remote)
    # Another team's, to which nothing may be written: it is refused, and shown as it was.
    device.table("job").update({"id": "j1", "team": "b"})
    assert device.sync()
    assert [letter.reason for letter in device.dead_letters()] == ["FORBIDDEN"]
    is_right(device, remote)


def test_an_update_of_all_columns_in_any_order_brings_a_row(
    opened: Open, remote: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opened()
    remote.set("j2", team="a")
    told = remote._effect

    def reversed_columns(effect: Any) -> bytes:
        message = change_pb2.Effect.FromString(told(effect))
        columns, values = list(message.columns)[::-1], list(message.values)[::-1]
        return change_pb2.Effect(
            table=message.table, type=message.type, columns=columns, values=values
        ).SerializeToString()

    monkeypatch.setattr(remote, "_effect", reversed_columns)
    device.read()
    is_right(device, remote)
    assert "j2" in jobs(device)
    assert remote.calls["pull"] == 1


def test_the_servers_row_of_a_verdict_goes_with_the_row(opened: Open, remote: Teams) -> None:
    remote.server.sets["alice"] = frozenset({"team:a", "team:b"})
    device = opened()
    batches = [device.table("job").update({"id": key, "title": "mine"}) for key in ("j0", "j2")]
    verdicts = []
    for batch, key in zip(batches, ("j0", "j2"), strict=True):
        row = value_pb2.NamedRow(columns=["id", "title"], values=[value(key), value("secret")])
        mutation = verdict_pb2.MutationVerdict(table="job", key=[value(key)], server_row=row)
        verdicts.append(
            verdict_pb2.Verdict(
                batch_id=batch,
                status=verdict_pb2.VERDICT_STATUS_REJECTED,
                position=remote.server.head,
                reason=errors_pb2.REASON_CONSTRAINT,
                mutations=[mutation],
            )
        )
    with device._file.transaction() as tx:
        device._sender._note(tx, verdicts, remote.state())
    remote.member_of("a")
    device.read()
    assert [letter.server_row for letter in device.dead_letters()] == [{"id": "j0", "title": "secret"}, None]
    is_right(device, remote)


def value(text: str) -> value_pb2.Value:
    return value_pb2.Value(string_value=text)


def test_another_token_shows_other_rows(opened: Open, remote: Teams) -> None:
    device = opened()
    device.read()
    remote.server.claims["alice"] = frozenset({"team:c"})
    device.read()
    is_right(device, remote)
    remote.server.claims["alice"] = frozenset({"team:b"})
    device.read()
    is_right(device, remote)
    assert held(device) == {"team:a", "team:b"}


def test_nothing_is_kept_where_no_table_is_restricted(opened: Open) -> None:
    remote = Teams(restricted=False)
    device = opened(on=remote)
    remote.set("j0", title="changed")
    device.read()
    assert jobs(device).keys() == ROWS.keys()
    for ours in ("_db_held", "_db_row_audiences", "_db_audience_sums"):
        assert device.execute(f"SELECT count(*) FROM {ours}").fetchone() == (0,)
    assert device._file.current().held_digest == b""
    assert remote.calls["pull"] == 1


def test_a_table_that_becomes_restricted_shows_nothing_until_it_is_pulled(opened: Open, remote: Teams) -> None:
    open_to_all = Teams(restricted=False)
    device = opened(on=open_to_all)
    device.read()
    device.close()
    remote.server.head = open_to_all.server.head
    device = opened(on=remote, start=False)
    with device._file.transaction() as tx:
        tx.set(describe_due=1)
    remote.cut_pull_after = 0
    device.start(background=False)
    with pytest.raises(CallFailed):
        device.read()
    assert jobs(device) == {}
    device.read()
    is_right(device, remote)


def test_sums_of_an_audience_that_differ_are_told_and_mended(opened: Open, remote: Teams) -> None:
    device = opened()
    device.read()
    states: list[State] = []
    device.on_state(states.append)
    # As if the server had changed a row of which the log did not tell.
    remote.server.preset("job", "j0", {"id": "j0", "team": "a", "title": "untold"})
    remote.set("j1", title="told")
    device.read()
    assert device.status().disagreeing == ("job",)
    assert [s.table for s in states if s.kind == "sums_disagree"] == ["job"]
    assert device.repair("job").agrees
    is_right(device, remote)
    assert [s.kind for s in states if s.kind.startswith("sums")] == ["sums_disagree"]


def test_damaged_audiences_are_found_and_mended(opened: Open, remote: Teams) -> None:
    device = opened()
    device.read()
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_row_audiences SET audiences = ? WHERE key = 'j0'", ('["team:b"]',))
    assert device.verify() == ("job",)
    assert device.repair("job").pulled
    device.read()
    is_right(device, remote)


def test_a_row_with_unreadable_audiences_goes_with_any_loss(opened: Open, remote: Teams) -> None:
    device = opened()
    device.read()
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_row_audiences SET audiences = 'nothing' WHERE key = 'j0'")
    remote.member_of("b")
    device.read()
    assert "j0" not in jobs(device)
    device.read()
    is_right(device, remote)


def test_a_set_that_a_page_tells_elsewhere_begins_the_log_anew(opened: Open, remote: Teams) -> None:
    device = opened()
    device.read()
    applier = device._reader._following
    applier.restart(device.status().cursor - 1)
    page = change_pb2.Page(
        reached=remote.position(remote.server.head), audiences=change_pb2.Audiences(values=["team:c"])
    )
    assert applier.page(page).anew
    assert held(device) == {"team:a"}
    applier.restart(device.status().cursor)
    assert not applier.page(page).anew
    assert held(device) == {"team:c"}
    assert jobs(device) == {}
    device.read()
    is_right(device, remote)
