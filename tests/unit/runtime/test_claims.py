"""The claims that a principal carries: frozen, bounded, and never shown."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.runtime.credentials.claims import (
    MAX_CLAIM_DEPTH,
    MAX_CLAIM_VALUES,
    NO_CLAIMS,
    Claims,
    ClaimsError,
    frozen,
)
from anabranch.runtime.credentials.principal import Principal
from anabranch.testkit.key_sets import nested


def test_claims_are_those_of_the_token_and_nobody_changes_them() -> None:
    raw: dict[str, Any] = {"sub": "alice", "groups": ["a", {"b": [1, None, True]}], "rate": 1.5}
    made = frozen(raw)
    raw["groups"].append("c")
    raw["more"] = 1
    assert dict(made) == {"sub": "alice", "groups": ("a", Claims({"b": (1, None, True)})), "rate": 1.5}
    assert not hasattr(made, "__setitem__")
    with pytest.raises(TypeError):
        made["groups"][0] = "z"  # type: ignore[index]
    assert hash(made) == hash(frozen({"rate": 1.5, "sub": "alice", "groups": ["a", {"b": [1, None, True]}]}))
    assert made != frozen({"sub": "bob"})


def test_a_principal_does_not_show_its_claims() -> None:
    principal = Principal("alice", "device", "shop", None, frozen({"address": "planted", "x": [{"y": "planted"}]}))
    assert "planted" not in f"{principal!r} {principal.claims!r} {principal.claims['x']!r}"
    assert Principal("alice", "device", "shop", None).claims == NO_CLAIMS == {}


def test_claims_are_taken_up_to_their_limits_and_not_beyond() -> None:
    half = [1] * (MAX_CLAIM_VALUES // 2 - 1)
    # Each claim has values of its own.
    most = frozen({"x": [1] * MAX_CLAIM_VALUES, "y": [half, half], "z": 1})
    assert len(most["x"]) == MAX_CLAIM_VALUES  # type: ignore[arg-type]
    assert frozen({str(number): 1 for number in range(2 * MAX_CLAIM_VALUES)})
    assert frozen({"x": nested(MAX_CLAIM_DEPTH)})
    beyond: list[dict[str, Any]] = [
        {"x": [1] * (MAX_CLAIM_VALUES + 1)},
        {"x": {str(number): 1 for number in range(MAX_CLAIM_VALUES + 1)}},
        {"x": [half, [*half, 1]]},
        {"x": nested(MAX_CLAIM_DEPTH + 1)},
        {"x": nested(900)},
        {"x": b"bytes"},
        {"x": object()},
    ]
    for claims in beyond:
        with pytest.raises(ClaimsError):
            frozen(claims)
