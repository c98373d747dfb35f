"""Claims become lists of audiences by a database's rules, once a call; without rules nothing is sent to Postgres."""

from __future__ import annotations

import json

import pytest

from anabranch.runtime.credentials.claims import NO_CLAIMS, frozen
from anabranch.store.audiences.expression import array_text
from anabranch.store.audiences.rules import NO_RULES, AudienceRules, Membership, SetRules, is_audience
from anabranch.store.inbox.append import Arrival, parameters_of
from anabranch_ingest.audiences import NOTHING_CLAIMED, claimed

TEAMS = SetRules({"teams": "team"})
QUERIES = SetRules(memberships=(Membership("select 'x'", (), frozenset(), "SELECT 'x'::text"),))


def arrival(read: str | None = None, write: str | None = None) -> Arrival:
    return Arrival(1, "b", "n", "p", 0, "", b"", b"", "", read_audiences=read, write_audiences=write)


@pytest.mark.parametrize(
    ("rules", "claims", "read", "write"),
    [
        (AudienceRules(TEAMS), {"teams": ["t2", "t1", "t2"]}, '{"team:t1","team:t2"}', None),
        (AudienceRules(TEAMS), {"teams": "t1"}, '{"team:t1"}', None),
        (AudienceRules(TEAMS), {"teams": 7}, '{"team:7"}', None),
        (AudienceRules(TEAMS), {"team": "t1"}, "{}", None),
        (
            AudienceRules(TEAMS),
            {"teams": [True, None, {"a": 1}, ["t1"], "", "x" * 2_000, "a\0b", "\ud800"]},
            "{}",
            None,
        ),
        (AudienceRules(QUERIES), {"teams": "t1"}, None, None),
        (AudienceRules(TEAMS, TEAMS), {"teams": "t1"}, '{"team:t1"}', '{"team:t1"}'),
        (
            AudienceRules(TEAMS, SetRules({"edits": "team"})),
            {"teams": "t1", "edits": "t2"},
            '{"team:t1"}',
            '{"team:t2"}',
        ),
        # A principal that may write nothing by claims is not taken for one who may write what it reads.
        (AudienceRules(TEAMS, QUERIES), {"teams": "t1"}, '{"team:t1"}', "{}"),
        (AudienceRules(SetRules(), TEAMS), {"teams": "t1"}, None, '{"team:t1"}'),
    ],
)
def test_what_claims_give(rules: AudienceRules, claims: dict[str, object], read: str | None, write: str | None) -> None:
    found = claimed(rules, frozen(claims), "alice")
    assert (found.read, found.write) == (read, write)
    assert found.rules is rules


def test_without_rules_claims_are_not_looked_at() -> None:
    assert claimed(NO_RULES, frozen({"teams": ["t1"]}), "alice") is NOTHING_CLAIMED
    assert claimed(AudienceRules(), NO_CLAIMS, "alice") is NOTHING_CLAIMED


def test_without_audiences_a_statement_gets_empty_arrays() -> None:
    many = [arrival() for _ in range(100)]
    assert parameters_of([], many, 1)[-3:] == parameters_of([], [], 1)[-3:]


def test_a_list_is_sent_once_for_all_batches_that_have_it() -> None:
    read = array_text(f"team:{number}" for number in range(1_000))
    one, many = ([arrival(read, "{}")] * count for count in (1, 1_000))
    size = [sum(len(bytes(part.data)) for part in parameters_of([], rows, 1)[-3:]) for rows in (one, many)]
    assert size[1] - size[0] < 2 * 999 * 13


def test_names_are_quoted() -> None:
    assert array_text(["b", "a,{}", 'q"', "back\\", "NULL"]) == '{"NULL","a,{}","b","back\\\\","q\\""}'
    assert array_text([]) == "{}"


def test_texts_that_are_no_audience() -> None:
    assert is_audience("é" * 500)
    assert not any(map(is_audience, ["", "a\0", "é" * 501, "x" * 1_001, "a\udc00"]))


def test_all_claims_travel_where_row_level_security_asks_for_them() -> None:
    found = claimed(
        AudienceRules(rls_role="app_user"), frozen({"sub": "x", "org": {"id": 1}, "teams": ["t1"]}), "alice"
    )
    assert json.loads(found.claims or "") == {"sub": "alice", "org": {"id": 1}, "teams": ["t1"]}
