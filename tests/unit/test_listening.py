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
    assert understood(GROUPS_CHANNEL, "3:17:") == Heard(3, 17, ())
    assert understood(CATALOG_CHANNEL, "3") == Heard(3, 0, ())


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        (CATALOG_CHANNEL, ""),
        (CATALOG_CHANNEL, "x"),
        (GROUPS_CHANNEL, ""),
        (GROUPS_CHANNEL, "1:2"),
        (GROUPS_CHANNEL, "a:b:c"),
        (CATALOG_CHANNEL, "9" * 5_000),
        (CATALOG_CHANNEL, "2147483648"),
        (CATALOG_CHANNEL, "-1"),
        (CATALOG_CHANNEL, "1_0"),
        (CATALOG_CHANNEL, "\u0663"),
        (GROUPS_CHANNEL, "3:9223372036854775808:A"),
        (GROUPS_CHANNEL, f"3:{'9' * 5_000}:A"),
        (GROUPS_CHANNEL, "3:17:" + "A" * 65),
        (GROUPS_CHANNEL, "3:17:A;no traceparent"),
    ],
)
def test_what_anybody_may_send_is_none_of_ours(channel: str, payload: str) -> None:
    assert understood(channel, payload) is None
