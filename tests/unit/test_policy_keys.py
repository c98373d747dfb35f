from __future__ import annotations

from typing import Any

import pytest

from anabranch.merge.columns import check_policy
from anabranch.merge.model import Policy
from anabranch.store.catalog.policy import PolicyError, database_policy, effective, table_policy


def test_what_is_left_out_has_its_default() -> None:
    policy = database_policy({})
    assert policy.model_dump() == {
        "order": "server",
        "resurrect": False,
        "delete": "rejects",
        "park_ms": 30_000,
        "retention_days": 30,
        "max_absence_days": None,
        "on_rewind": "dead_letter",
        "pull_base_max_age_minutes": 360,
        "new_tables": "none",
    }
    assert policy.absence_days == 30


def test_the_absence_follows_the_retention_unless_it_is_given() -> None:
    assert database_policy({"retention_days": 9}).absence_days == 9
    assert database_policy({"retention_days": 9, "max_absence_days": 3}).absence_days == 3


def test_only_what_was_given_is_kept() -> None:
    assert database_policy({"order": "server"}).given() == {"order": "server"}
    assert table_policy({"columns": {"n": "max"}}).given() == {"columns": {"n": "max"}}


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"ordr": "edit"}, "ordr is no policy"),
        ({"order": "newest"}, "order: "),
        ({"park_ms": -1}, "park_ms: "),
        ({"park_ms": "5"}, "park_ms: "),
        ({"park_ms": 1.5}, "park_ms: "),
        ({"resurrect": 1}, "resurrect: "),
        *(({"retention_days": days}, "retention_days: ") for days in (6, 0, -30, 36_501, 10**30, 7.5, "30", True)),
        *(({"max_absence_days": days}, "max_absence_days: ") for days in (0, -1, 36_501, "7")),
        ({"columns": {}}, "columns is no policy"),
    ],
)
def test_a_wrong_key_of_a_database_is_named(policy: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        database_policy(policy)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"park_ms": 1}, "park_ms is no policy"),
        ({"columns": {"n": "sum"}}, "columns.n: "),
        ({"columns": ["n"]}, "columns: "),
        ({"delete": "loses"}, "delete: "),
    ],
)
def test_a_wrong_key_of_a_table_is_named(policy: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        table_policy(policy)
    assert told in str(caught.value)


def test_every_wrong_key_is_named_at_once() -> None:
    with pytest.raises(PolicyError) as caught:
        database_policy({"order": "x", "color": 1, "delete": "y"})
    assert all(key in str(caught.value) for key in ("order", "color", "delete"))


def test_a_table_lays_its_own_over_the_databases() -> None:
    database = database_policy({"order": "edit", "resurrect": True, "delete": "wins"})
    assert effective(database, table_policy({})) == Policy("edit", True, "wins", {})
    own = table_policy(
        {"order": "server", "resurrect": False, "delete": "rejects", "columns": {"a": "lww", "n": "min"}}
    )
    assert effective(database, own) == Policy("server", False, "rejects", {"n": "min"})


@pytest.mark.parametrize("column", ["lww", "reject", "counter", "max", "min", "union", "function:notes"])
@pytest.mark.parametrize("delete", ["rejects", "wins"])
@pytest.mark.parametrize("order", ["server", "edit"])
def test_the_rules_know_whatever_can_be_set(order: str, delete: str, column: str) -> None:
    check_policy(
        effective(database_policy({"order": order, "delete": delete}), table_policy({"columns": {"c": column}}))
    )
