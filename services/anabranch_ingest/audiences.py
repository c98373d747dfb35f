"""The audiences that a caller's claims give by a database's rules, as the inbox keeps them beside its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.store.audiences.expression import array_text
from anabranch.store.audiences.rules import NO_RULES, AudienceRules, claims_text


@dataclass(frozen=True, slots=True)
class ClaimedSets:
    """The audiences that claims give by ``rules``, as ``Arrival`` has them: ``read`` is None where no rule of reading
    is about claims, ``write`` where there are no rules of writing. ``claims``: all of them as JSON, where row-level
    security asks for them."""

    rules: AudienceRules = NO_RULES
    read: str | None = None
    write: str | None = None
    claims: str | None = None


NOTHING_CLAIMED = ClaimedSets()


def claimed(rules: AudienceRules, claims: Mapping[str, Any], subject: str) -> ClaimedSets:
    """The audiences that a token's claims give, for a principal of the name ``subject``."""
    if not rules:
        return NOTHING_CLAIMED
    read = array_text(rules.read.claimed(claims)) if rules.read.claims else None
    # Rules of writing that are not about claims give nobody anything here; None would mean those of reading.
    write = None if rules.write is None else array_text(rules.write.claimed(claims))
    return ClaimedSets(rules, read, write, claims_text(subject, claims) if rules.rls_role else None)
