"""Audiences that come and go while the background follows the log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.audiences.teams import Teams, held, is_right, jobs

from anabranch.client import CallFailed, SyncedDb
from anabranch.client.reading import gains
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2


class Streaming(Teams):
    """Lets devices subscribe."""

    def subscribe(self, request: change_pb2.SubscribeRequest) -> Any:
        self._called("subscribe", request.node_state)
        return Followed(self, request)


class Followed:
    """A stream of the log, until it is cancelled."""

    def __init__(self, remote: Streaming, request: change_pb2.SubscribeRequest) -> None:
        self._remote = remote
        self._page = change_pb2.GetRequest(node_state=request.node_state, after=request.after)
        self._is_first = True
        self._cancelled = False

    def __iter__(self) -> Followed:
        return self

    def __next__(self) -> change_pb2.SubscribeResponse:
        while not self._cancelled:
            answer = self._remote.get(self._page)
            self._page.page_token = answer.next_page_token
            if not answer.next_page_token:
                self._page.after = answer.page.reached.server_timestamp_ms
            if not self._is_first:
                # The reader has changed with the groups before.
                answer.page.ClearField("audiences")
            if self._is_first or answer.page.groups:
                self._is_first = False
                return change_pb2.SubscribeResponse(page=answer.page, state=answer.state, sums=answer.sums)
            time.sleep(0.01)
        raise CallFailed("CANCELLED", "", "cancelled", again=True)

    def cancel(self) -> None:
        self._cancelled = True


@pytest.mark.slow
@pytest.mark.parametrize("slice_s", [0.0, 100.0])
def test_the_background_follows_what_the_principal_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_s: float
) -> None:
    monkeypatch.setattr(gains, "SLICE_S", slice_s)
    remote = Streaming()
    remote.chunk_rows = 1
    with SyncedDb(tmp_path / "d.db", remote, "d") as device:
        for teams in (["a", "b"], ["b"], ["b", "c"], ["a"], []):
            remote.member_of(*teams)
            remote.set("j4", title=f"seen by {teams}")
            until(
                lambda: (
                    device.status().cursor == remote.server.head
                    and not device._file.current().gains_due
                    and held(device) == set(remote.server.sets["alice"])
                ),
                20.0,
                lambda: f"the device has {jobs(device)} of {held(device)}",
            )
            is_right(device, remote)
