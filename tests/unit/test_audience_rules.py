"""Rules of audiences: what a token's claims give, and how rules are kept; and the parameter of membership queries."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.store.audiences import rules
from anabranch.store.audiences.queries import for_principals, names_principal
from anabranch.store.audiences.rules import (
    AudienceRules,
    Membership,
    SetRules,
    is_audience,
    rules_from_json,
    rules_to_json,
)

CLAIMED: list[tuple[Any, set[str]]] = [
    ({"teams": "t1"}, {"team:t1"}),
    ({"teams": ["t1", "t2", "t1"]}, {"team:t1", "team:t2"}),
    ({"teams": [1, -2, 2**70]}, {"team:1", "team:-2", f"team:{2**70}"}),
    ({"teams": [True, None, 1.5, {"a": "b"}, ["t3"], "t1"]}, {"team:t1"}),
    ({"teams": {"t1": True}}, set()),
    ({"teams": None}, set()),
    ({"teams": ["a\0b", "x" * 995, "x" * 996, ""]}, {"team:" + "x" * 995}),
    ({"teams": "ä" * 497}, {"team:" + "ä" * 497}),
    ({"teams": "ä" * 498}, set()),
    ({}, set()),
]


@pytest.mark.parametrize(("claims", "expected"), CLAIMED)
def test_a_claim_gives_the_audiences_of_its_values(claims: Any, expected: set[str]) -> None:
    assert SetRules({"teams": "team"}).claimed(claims) == expected


def test_a_claim_with_dots_is_looked_for_as_it_is_and_then_within_objects() -> None:
    found = SetRules({"https://app.example/teams": "team", "app.user.org": "org"}).claimed
    assert found({"https://app.example/teams": "t1"}) == {"team:t1"}
    assert found({"app": {"user": {"org": ["o1"]}}}) == {"org:o1"}
    assert found({"app.user.org": "o2", "app": {"user": {"org": "o1"}}}) == {"org:o2"}
    assert found({"app": {"user": "x"}}) == set()


def test_claims_give_no_more_audiences_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_CLAIMED", 3)
    assert len(SetRules({"teams": "team"}).claimed({"teams": list(range(10))})) == 3


@pytest.mark.parametrize("text", ["", "\0", "a\0", "x" * 1001, "ä" * 501])
def test_some_texts_are_no_audience(text: str) -> None:
    assert not is_audience(text)


KEPT = [
    AudienceRules(),
    AudienceRules(SetRules({"teams": "team"})),
    AudienceRules(SetRules({}, (Membership("select 'a'", ("t", "u"), frozenset({"u"}), "SELECT"),)), SetRules()),
    AudienceRules(SetRules({"a": "b"}), SetRules({"c": "d"}, (Membership("select 'b'", (), frozenset(), ""),))),
]


@pytest.mark.parametrize("one", KEPT)
def test_rules_are_read_as_they_were_kept(one: AudienceRules) -> None:
    assert rules_from_json(rules_to_json(one)) == one


def test_rules_are_none_where_they_give_nothing_and_forbid_nothing() -> None:
    assert [bool(one) for one in KEPT] == [False, True, True, True]
    assert rules_from_json({}) == AudienceRules()
    assert len(KEPT[2].memberships) == 1
    assert len(KEPT[3].memberships) == 1


QUERIES = [
    ("select :principal", "select P"),
    ("select :principal::text, x::principal", "select P::text, x::principal"),
    ("select :principals, :principal_", None),
    ("select (:principal)||:principal", "select (P)||P"),
    ("select ':principal', 'it''s :principal', E'\\':principal', \":principal\"", None),
    ("select $$ :principal $$, $a$ $$:principal$$ $a$", None),
    ("select 1 -- :principal", None),
    ("select 1 -- it's\n, :principal", "select 1 -- it's\n, P"),
    ("select /* :principal /* ' */ :principal */ :principal", "select /* :principal /* ' */ :principal */ P"),
    ("select 1 /* :principal", None),
    ("select a$b, :principal, c$b", "select a$b, P, c$b"),
    ("select type'x', E'a' || :principal", "select type'x', E'a' || P"),
]


@pytest.mark.parametrize(("query", "expected"), QUERIES)
def test_the_parameter_of_a_query_is_found_outside_of_texts_names_and_comments(
    query: str, expected: str | None
) -> None:
    assert for_principals(query, "P") == (expected or query)
    assert names_principal(query) == (expected is not None)
