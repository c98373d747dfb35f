"""Every rejection by the rules has words for people."""

from __future__ import annotations

from anabranch.merge import RejectionReason
from anabranch_conflict_resolver.group.rules import MESSAGES


def test_every_reason_of_the_rules_has_its_words() -> None:
    """CONSTRAINT comes with the words of its cause."""
    assert MESSAGES.keys() == set(RejectionReason) - {RejectionReason.CONSTRAINT}
