"""The claims of a caller's token, as nobody can change them: what a rule may ask about a principal beyond its name.

They stay in memory as long as a token is known or a stream is open. Their bytes are bounded by the token's own
(``tokens.MAX_TOKEN_BYTES``). How many values a claim has, and how deep they stand, is bounded here: a rule may be asked
for each of them. They are never shown: neither a log nor an error has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from anabranch.errors import ServerError

MAX_CLAIM_VALUES = 1_000
"""The most values in one claim: the elements of a list, and all that stands in these."""
MAX_CLAIM_DEPTH = 32
"""How deep lists and objects may stand in each other."""

Claim: TypeAlias = "str | int | float | bool | tuple[Claim, ...] | Claims | None"


class ClaimsError(ServerError):
    """The claims are beyond a limit, which the message names; or they are no JSON."""


class Claims(Mapping[str, Claim]):
    """Claims by name. Lists are tuples in them, and objects are ``Claims``."""

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Claim] | None = None) -> None:
        self._values: dict[str, Claim] = dict(values or {})
        self._hash: int | None = None

    def __getitem__(self, name: str) -> Claim:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._values.items()))
        return self._hash

    def __repr__(self) -> str:
        return f"<{len(self._values)} claims>"


NO_CLAIMS = Claims()


def frozen(claims: Mapping[str, Any]) -> Claims:
    """Claims as JSON gave them. Raises ClaimsError."""
    # The claim's own value is one more than those in it.
    return Claims({name: _frozen(value, [MAX_CLAIM_VALUES + 1], 1) for name, value in claims.items()})


def _frozen(value: Any, left: list[int], depth: int) -> Claim:
    left[0] -= 1
    if left[0] < 0:
        raise ClaimsError(f"a claim has more than {MAX_CLAIM_VALUES} values")
    if depth > MAX_CLAIM_DEPTH:
        raise ClaimsError(f"the values of a claim stand more than {MAX_CLAIM_DEPTH} deep in each other")
    if isinstance(value, Mapping):
        return Claims({name: _frozen(one, left, depth + 1) for name, one in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_frozen(one, left, depth + 1) for one in value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ClaimsError("the claims are no JSON")
