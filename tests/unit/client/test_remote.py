"""Where credentials may go without TLS."""

from __future__ import annotations

import pytest

from anabranch.client.remote import is_loopback


@pytest.mark.parametrize(
    ("address", "stays"),
    [
        ("localhost:7400", True),
        ("127.0.0.1:7400", True),
        ("127.8.8.8:7400", True),
        ("[::1]:7400", True),
        ("unix:/run/anabranch.sock", True),
        ("localhost.example.com:7400", False),
        ("127.example.com:7400", False),
        ("[::1:2]:7400", False),
        ("192.168.0.7:7400", False),
        ("gateway:7400", False),
    ],
)
def test_only_what_is_this_machine_is_loopback(address: str, stays: bool) -> None:
    assert is_loopback(address) is stays
