"""Notifications in our form are understood; any other ends nothing."""

from __future__ import annotations

import pytest

from anabranch.store.session.channels import CATALOG_CHANNEL, GROUPS_CHANNEL
from anabranch.store.session.listening import Heard, understood


def test_a_group_and_a_change_of_the_catalog() -> None:
    assert understood(GROUPS_CHANNEL, "3:17:A,B") == Heard(3, 17, ("A", "B"))
    assert understood(GROUPS_CHANNEL, "3:17:A;00-ab-cd-01") == Heard(3, 17, ("A",), "00-ab-cd-01")
    assert understood(GROUPS_CHANNEL, "3:17:A;00-ab-cd-01;AbC=") == Heard(3, 17, ("A",), "00-ab-cd-01", "AbC=")
    assert understood(GROUPS_CHANNEL, "3:17:A;;AbC=") == Heard(3, 17, ("A",), "", "AbC=")
    assert understood(CATALOG_CHANNEL, "3") == Heard(3, 0, ())


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        (CATALOG_CHANNEL, ""),
        (CATALOG_CHANNEL, "x"),
        (GROUPS_CHANNEL, ""),
        (GROUPS_CHANNEL, "1:2"),
        (GROUPS_CHANNEL, "a:b:c"),
    ],
)
def test_what_anybody_may_send_is_none_of_ours(channel: str, payload: str) -> None:
    assert understood(channel, payload) is None
