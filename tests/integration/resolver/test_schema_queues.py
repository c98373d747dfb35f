"""Queues that were written before tables were altered keep their worth: values find the columns that theirs became."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.integration.resolver.altering import alter, lost, settle, told
from tests.integration.resolver.calls import resolver_process

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2, verdict_pb2

BILL = "create table bill (id text primary key, amount text, n integer, note text)"


@pytest.fixture
def bills(make_rig: Any) -> ResolverRig:
    rig: ResolverRig = make_rig(BILL, {"bill": None})
    rig.sql("insert into app.bill values ('1', '12', 1, 'a'), ('2', '5', 2, 'b'), ('3', null, 3, 'c')")
    settle(rig)
    return rig


def test_values_are_cast_as_postgres_casts_them_and_refused_alone_where_it_cannot(bills: ResolverRig) -> None:
    a, b = bills.node("a"), bills.node("b")
    a.see()
    b.see()
    made = [
        a.make(("update", "bill", [{"id": "1", "amount": "42"}])),
        a.make(("update", "bill", [{"id": "2", "amount": "forty-two " + "x" * 200}])),
        a.make(("insert", "bill", [{"id": "4", "amount": "7", "n": 4}, {"id": "5", "n": 5}])),
        b.make(("update", "bill", [{"id": "2", "note": "B"}])),
    ]
    alter(bills, "alter table bill alter column amount type integer using amount::integer")
    settle(bills)
    sent = [a.send(one) for one in made[:3]] + [b.send(made[3])]
    settle(bills)
    assert [bills.outcome(one) for one in sent] == [["APPLIED"], "VALUE_NOT_CAST", ["APPLIED"], ["APPLIED"]]
    verdict = bills.verdict(sent[1])
    assert verdict is not None
    assert (
        'column "amount" was text when the batch was made and is integer now: the value "forty-two xx'
        in verdict.message
    )
    assert "SQLSTATE 22P02" in verdict.message
    assert len(verdict.message) < 300
    [refused] = verdict.mutations
    assert (refused.table, refused.index) == ("bill", 0)
    assert bills.rows("bill", "id", "amount", "note") == [
        ("1", 42, "a"),
        ("2", 5, "B"),
        ("3", None, "c"),
        ("4", 7, None),
        ("5", None, None),
    ]


def test_a_value_goes_through_every_type_that_its_column_had(bills: ResolverRig) -> None:
    a = bills.node("a")
    a.see()
    made = a.make(("update", "bill", [{"id": "1", "n": 45}]))
    alter(bills, "alter table bill alter column n type text using n::text")
    settle(bills)
    alter(bills, "alter table bill alter column n type numeric(6,1) using n::numeric")
    settle(bills)
    sent = a.send(made)
    settle(bills)
    assert bills.outcome(sent) == ["APPLIED"]
    assert [str(n) for (n,) in bills.sql("select n from app.bill order by id")] == ["45.0", "2.0", "3.0"]


def test_a_retyped_column_remembers_who_wrote_it(bills: ResolverRig) -> None:
    """Whoever has not seen a value overwrites it knowingly to nobody: the older value is kept."""
    a, b = bills.node("a"), bills.node("b")
    a.see()
    b.see()
    late = b.make(("update", "bill", [{"id": "1", "amount": "99"}]))
    a.update("bill", {"id": "1", "amount": "42"})
    settle(bills)
    alter(bills, "alter table bill alter column amount type integer using amount::integer")
    settle(bills)
    sent = b.send(late)
    settle(bills)
    assert bills.outcome(sent) == ["OVERWROTE"]
    assert lost(bills) == [("1", "amount~2", 42, 0)]
    again = a.update("bill", {"id": "1", "amount~2": 7})
    settle(bills)
    assert bills.outcome(again) == ["OVERWROTE"]


def test_nothing_is_left_of_an_update_of_gone_columns_and_an_insert_still_inserts(bills: ResolverRig) -> None:
    a = bills.node("a")
    a.see()
    made = [
        a.make(("update", "bill", [{"id": "1", "note": "gone"}, {"id": "2", "note": None}])),
        a.make(("insert", "bill", [{"id": "4", "amount": "1", "n": 4, "note": "n"}, {"id": "5", "note": None}])),
        a.make(("update", "bill", [{"id": "none", "note": "x"}])),
        a.make(("update", "bill", [{"id": "1", "note": "y"}]), ("update", "bill", [{"id": "1", "n": 11}])),
    ]
    alter(bills, "alter table bill drop column note")
    settle(bills)
    head = bills.head
    sent = [a.send(one) for one in made]
    settle(bills)
    assert [bills.outcome(one) for one in sent] == [
        ["SUPERSEDED"],
        ["APPLIED"],
        "ROW_NOT_FOUND",
        ["SUPERSEDED", "APPLIED"],
    ]
    verdict = bills.verdict(sent[0])
    assert verdict is not None
    assert list(verdict.mutations[0].columns) == ["note"]
    assert lost(bills) == [
        ("1", "note", "gone", 1),
        ("2", "note", None, 1),
        ("4", "note", "n", 1),
        ("1", "note", "y", 1),
    ]
    kinds = [(key, kind) for _, key, kind, _ in told(bills, head)]
    assert kinds == [("1", "NONE"), ("2", "NONE"), ("4", "INSERT"), ("5", "INSERT"), ("1", "NONE"), ("1", "UPDATE")]


def test_an_update_that_wrote_nothing_moves_no_history(bills: ResolverRig) -> None:
    a, b = bills.node("a"), bills.node("b")
    a.see()
    b.see()
    made = a.make(("update", "bill", [{"id": "1", "note": "gone"}]))
    alter(bills, "alter table bill drop column note")
    settle(bills)
    a.send(made)
    settle(bills)
    written = b.update("bill", {"id": "1", "n": 5})
    deleted = b.delete("bill", {"id": "1"})
    settle(bills)
    assert [bills.outcome(one) for one in (written, deleted)] == [["APPLIED"], ["APPLIED"]]


def test_names_that_are_no_identities_are_those_in_sql(bills: ResolverRig) -> None:
    alter(bills, "alter table bill rename to invoice", "alter table invoice rename column note to remark")
    settle(bills)
    a = bills.node("a")
    a.see()
    sent = a.update("invoice", {"id": "1", "remark": "by a stranger"})
    settle(bills)
    assert bills.outcome(sent) == ["APPLIED"]
    assert told(bills)[-1] == ("bill", "1", "UPDATE", {"id": "1", "note": "by a stranger"})


@pytest.mark.slow
def test_a_dry_run_says_the_same(bills: ResolverRig, migrated_url: str, tmp_path: Path) -> None:
    a = bills.node("a")
    a.see()
    cast = a.make(("update", "bill", [{"id": "1", "amount": "42", "note": "gone"}]))
    refused = a.make(("update", "bill", [{"id": "1", "amount": "many"}]))
    alter(
        bills,
        "alter table bill alter column amount type integer using amount::integer",
        "alter table bill drop column note",
    )
    settle(bills)
    with resolver_process(bills, migrated_url, tmp_path) as service:
        answer = service.explain(a, cast)
        assert answer.verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED
        [effect] = answer.effects
        assert list(effect.columns) == ["id", "amount~2"]
        [loser] = answer.losers
        assert (loser.column, loser.value.string_value) == ("note", "gone")
        assert loser.cause == change_pb2.LOSS_CAUSE_COLUMN_DROPPED
        assert service.explain(a, refused).verdict.message.startswith('column "amount" was text')
        a.send(cast)
        bills.until_left()
        [listed] = service.all_conflicts()
        assert (listed.column, listed.cause) == ("note", change_pb2.LOSS_CAUSE_COLUMN_DROPPED)
        assert listed.winning_batch_id == loser.winner_batch_id
