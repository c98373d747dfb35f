"""No name of a method ends a service: neither one that is no text, nor one that it does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.runtime.test_secrets import raw_call

from anabranch.store import migrate
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import get, running_echo

NAMES = (b"\xff", b"/anabranch.v1.ChangeService/\xff", b"/\xc3", b"nonsense", b"", b"/", b"/a/b/c", b"/no.Such/Method")


@pytest.mark.slow
def test_a_service_goes_on_after_any_name(databases: TestDatabases, tmp_path: Path) -> None:
    url = databases.fresh()
    migrate.upgrade(url)
    with running_echo(url, tmp_path, {}) as (echo, channel):
        key = echo.new_key("alice")
        for name in NAMES:
            headers = [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", name),
                (b":authority", b"localhost"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
            ]
            raw_call(echo.address, headers)
            assert get(channel, key).next_page_token == b"alice", name
        for method in ("/no.Such/Method", "/anabranch.v1.ChangeService/None"):
            call: Any = channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "not caught" not in echo.child.log_tail()
    databases.release(url)
