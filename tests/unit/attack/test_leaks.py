"""Planted leaks of every kind are found in what a device gets, and what it may get is none."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from anabranch.testkit.attack.history import History
from anabranch.testkit.attack.leaks import Caller, all_leaks, leaks
from anabranch.testkit.attack.marks import Marks, marks_in
from anabranch.testkit.attack.received import Received, Response
from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    errors_pb2,
    ingest_pb2,
    position_pb2,
    resolver_pb2,
    snapshot_pb2,
    value_pb2,
    verdict_pb2,
)

T1, T2 = frozenset({"team:t1"}), frozenset({"team:t2"})
MARKS = Marks()
MINE, MOVED, SECRET, LATER, LOST = (MARKS.new(a) for a in (T1, T1, T2, T1 | T2, T2))
ALICE = Caller("alice", T1, frozenset({"node-a"}))


@pytest.fixture
def history() -> History:
    past = History(frozenset({"job"}))
    past.put((10, 0), "job", "1", [MINE], T1)
    past.put((10, 1), "job", "2", [MOVED], T1)
    past.put((10, 2), "job", "3", [SECRET], T2)
    past.put((10, 3), "job", "4", [SECRET], T2)
    past.put((20, 0), "job", "2", [MOVED], T2)
    past.put((90, 0), "job", "5", [LATER], T1 | T2)
    past.lose((20, 0), LOST, T2, T2)
    return past


def kinds(history: History, message: Message, caller: Caller = ALICE, reached: int = 30) -> list[str]:
    received = Response("/m", type(message)).read(message.SerializeToString())
    return [leak.kind for leak in leaks(history, caller, received, reached)]


def text(value: str) -> value_pb2.Value:
    return value_pb2.Value(string_value=value)


def effect(*values: str) -> bytes:
    made = change_pb2.Effect(table="job", type=change_pb2.EFFECT_TYPE_INSERT, columns=["id", "title"])
    made.values.extend(map(text, values))
    return made.SerializeToString()


def page(*effects: bytes, node: str = "node-b", **more: Any) -> change_pb2.GetResponse:
    batch = change_pb2.LoggedBatch(id="b1", node=batch_pb2.Node(id=node), effects=effects)
    group = change_pb2.LoggedGroup(position=20, batches=[batch], **more)
    return change_pb2.GetResponse(page=change_pb2.Page(groups=[group]))


def table_sum(count: int, audience: str = "") -> position_pb2.TableSum:
    return position_pb2.TableSum(table="job", count=count, audience=audience, hash=bytes(16))


def arrow(*titles: str, compressed: bool = False) -> bytes:
    table = pa.table({"id": list(map(str, range(len(titles)))), "title": list(titles)})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_pull_shows_what_the_log_is_about_to_have(history: History) -> None:
    history.groups.extend([10, 20, 90])
    late = Received("/anabranch.v1.SnapshotService/Pull", reached=20, marks={LATER})
    assert leaks(history, ALICE, late, 20) == []
    history.groups.insert(2, 70)
    history.groups.insert(2, 60)
    assert [leak.kind for leak in leaks(history, ALICE, late, 20)] == ["value"]


def test_what_may_be_seen_is_no_leak(history: History) -> None:
    loser = change_pb2.Loser(table="job", key=[text("1")], column="title", value=text(MINE))
    answer = page(effect("1", MINE), effect("2", MOVED), sums=[table_sum(1, "team:t1"), table_sum(2, "team:t1")])
    answer.page.groups[0].batches[0].losers.append(loser)
    answer.page.groups[0].audience_change.gained.append("team:t1")
    answer.page.audiences.values.append("team:t1")
    answer.sums.append(position_pb2.TableSum(table="open", count=99))
    assert kinds(history, answer) == []
    pull = snapshot_pb2.PullResponse(table="job", arrow_ipc=arrow(MINE, MOVED), rows_done=2)
    assert kinds(history, pull) == []
    compared = snapshot_pb2.CompareResponse(sum=table_sum(2), sums=[snapshot_pb2.RangeSum(count=2)])
    assert kinds(history, compared) == []


def test_a_row_in_the_log(history: History) -> None:
    assert kinds(history, page(effect("3", SECRET))) == ["value"]
    assert kinds(history, change_pb2.SubscribeResponse(page=page(effect("3", SECRET)).page)) == ["value"]


def test_a_value_before_its_time(history: History) -> None:
    assert kinds(history, page(effect("5", LATER)), reached=89) == ["value"]
    assert kinds(history, page(effect("5", LATER)), reached=90) == []


def test_a_row_in_the_log_that_is_cut(history: History) -> None:
    whole = effect("3", SECRET)
    for cut in range(1, len(whole)):
        response = Response("/m", change_pb2.GetResponse)
        parts = [response.read(page(part).SerializeToString()) for part in (whole[:cut], whole[cut:])]
        assert [leak.kind for part in parts for leak in leaks(history, ALICE, part, 30)] == ["value"], cut


def test_a_row_in_a_pull(history: History) -> None:
    for compressed in (False, True):
        chunk = arrow(MINE, *["x"] * 200, SECRET, compressed=compressed)
        assert kinds(history, snapshot_pb2.PullResponse(table="job", arrow_ipc=chunk, rows_done=1)) == ["value"]
    # In parts, cut anywhere.
    chunk = arrow(MINE, SECRET)
    response = Response("/m", snapshot_pb2.PullResponse)
    found = []
    for start in range(0, len(chunk), 50):
        part = snapshot_pb2.PullResponse(table="job", arrow_ipc=chunk[start : start + 50])
        part.arrow_ipc_incomplete = start + 50 < len(chunk)
        found += leaks(history, ALICE, response.read(part.SerializeToString()), 30)
    assert {leak.kind for leak in found} == {"value"}
    assert all(SECRET in leak.what for leak in found)


def test_values_of_an_arrow_column_stand_side_by_side() -> None:
    assert marks_in(f"{MINE}{SECRET}{MOVED}".encode()) == {MINE, SECRET, MOVED}
    assert marks_in(b"secret- of nothing, secret-1-23") == set()
    with pytest.raises(ValueError, match="found again"):
        MARKS.new(["with a blank"])


def test_a_server_row_in_a_verdict(history: History) -> None:
    row = value_pb2.NamedRow(columns=["id", "title"], values=[text("3"), text(SECRET)])
    mutation = verdict_pb2.MutationVerdict(table="job", key=[text("3")], server_row=row)
    rejected = verdict_pb2.Verdict(batch_id="b", reason=errors_pb2.REASON_FORBIDDEN, mutations=[mutation])
    assert kinds(history, ingest_pb2.SendResponse(verdicts=[rejected])) == ["value"]
    assert kinds(history, resolver_pb2.GetVerdictResponse(verdicts=[rejected])) == ["value"]


def test_the_text_of_a_refusal(history: History) -> None:
    refused = verdict_pb2.Verdict(batch_id="b", message=f"Key (code)=({SECRET}) already exists.")
    assert kinds(history, ingest_pb2.SendResponse(verdicts=[refused])) == ["value"]
    history.send("alice", SECRET)
    assert kinds(history, ingest_pb2.SendResponse(verdicts=[refused])) == []


def test_a_value_that_lost(history: History) -> None:
    loser = change_pb2.Loser(table="job", key=[text("3")], column="title", value=text(LOST))
    answer = page(effect("1", MINE))
    answer.page.groups[0].batches[0].losers.append(loser)
    assert kinds(history, answer) == ["value"]
    conflict = resolver_pb2.Conflict(position=20, table="job", losing_value=text(LOST).SerializeToString())
    assert kinds(history, resolver_pb2.ListConflictsResponse(conflicts=[conflict])) == ["value"]


@pytest.mark.parametrize(
    "leaked", [table_sum(4), table_sum(2, "team:t2"), table_sum(4, "team:t1")], ids=["whole", "other", "never true"]
)
def test_a_sum(history: History, leaked: position_pb2.TableSum) -> None:
    messages: list[Message] = [
        page(effect("1", MINE), sums=[leaked]),
        change_pb2.GetResponse(sums=[leaked]),
        change_pb2.SubscribeResponse(sums=[leaked]),
        snapshot_pb2.PullResponse(table="job", done=True, sums=[leaked]),
        snapshot_pb2.PullResponse(table="job", done=True, sum=leaked),
    ]
    assert [kinds(history, message) for message in messages] == [["sum"]] * 5


def test_a_count(history: History) -> None:
    estimate = snapshot_pb2.Table(name="job", estimated_rows=1, restricted=True)
    assert kinds(history, snapshot_pb2.DescribeResponse(tables=[estimate])) == ["count"]
    assert kinds(history, snapshot_pb2.PullResponse(table="job", rows_done=3)) == ["count"]
    assert kinds(history, snapshot_pb2.CompareResponse(sum=table_sum(4))) == ["count"]
    ranges = [snapshot_pb2.RangeSum(count=3)]
    assert kinds(history, snapshot_pb2.CompareResponse(sum=table_sum(2), sums=ranges)) == ["count"]


def test_an_audience_and_a_batch(history: History) -> None:
    change = change_pb2.AudienceChange(gained=["team:t9"], lost=["team:t8"])
    assert kinds(history, page(effect("1", MINE), audience_change=change)) == ["audience", "audience"]
    answer = change_pb2.GetResponse()
    answer.page.audiences.values.extend(["team:t1", "team:t2"])
    assert kinds(history, answer) == ["audience"]
    assert kinds(history, snapshot_pb2.PullResponse(audiences=change_pb2.Audiences(values=["team:t2"]))) == ["audience"]
    assert kinds(history, page()) == ["batch"]
    assert kinds(history, page(node="node-a")) == []


def test_a_field_that_is_not_known_here(history: History) -> None:
    later = value_pb2.NamedRow(columns=[SECRET]).SerializeToString()
    # Field 15 of a later release, which parsers of this one keep aside.
    raw = bytes([15 << 3 | 2, len(later)]) + later
    received = Response("/m", change_pb2.GetResponse).read(raw)
    assert [leak.kind for leak in leaks(history, ALICE, received, 30)] == ["value"]


def test_a_value_that_nobody_has_written(history: History) -> None:
    received = Received("/m", marks={MARKS.new(T1)})
    assert "nobody that the history knows" in str(*leaks(history, ALICE, received, 30))


def test_positions_are_those_that_a_principal_had_been_told_of(history: History) -> None:
    late = Received("/get", marks={LATER})
    told = Received("/get", reached=95)
    assert [leak.kind for leak in all_leaks(history, [(ALICE, [late, told])])] == ["value"]
    assert all_leaks(history, [(ALICE, [told, late])]) == []
    assert all_leaks(history, [(ALICE, [told]), (ALICE, [late])]) == []
    assert len(all_leaks(history, [(Caller("bob", T1), [told]), (ALICE, [late])])) == 1
    # The moment of a pull comes with its end.
    pull = "/anabranch.v1.SnapshotService/Pull"
    chunks = [Received(pull, marks={LATER}), Received(pull, reached=95)]
    assert all_leaks(history, [(ALICE, chunks)]) == []
    twice = all_leaks(history, [(ALICE, [late, late])])
    assert [str(leak) for leak in twice] == [f"value: alice got {LATER} of team:t1+team:t2 at 0 by /get"]


def test_a_verdict_goes_by_the_claims_with_which_its_batch_was_sent(history: History) -> None:
    later = Caller("alice", T2)
    verdict = Received("/anabranch.v1.ConflictResolverService/GetVerdict", reached=30, marks={MINE})
    assert all_leaks(history, [(ALICE, []), (later, [verdict])]) == []
    assert len(all_leaks(history, [(later, [verdict])])) == 1
    assert len(all_leaks(history, [(ALICE, []), (later, [Received("/get", reached=30, marks={MINE})])])) == 1
