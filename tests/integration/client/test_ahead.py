"""A device far behind reads page after page of the real service, each asked for while the one before is applied."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client import SyncedDb
from anabranch.client.call_ahead import CallAhead
from anabranch.client.remote import RemoteDb
from anabranch.testkit import waiting
from anabranch.v1 import change_pb2

NOTE = {"note": "id text primary key, team text not null, body text not null"}
OF_TEAM = {"note": "'team:' || team"}
TEAMS = {"memberships": ["select 'team:a'"]}
ROWS, LETTERS = 48, 100_000
"""Pages have a MiB, so that these rows are on five of them at least."""


def fill(here: Any) -> None:
    """Many bytes of rows, and a change of some of them later on."""
    for team in ("a", "b"):
        here.sql(
            f"insert into note select '{team}' || i, '{team}', repeat(md5(i::text), {LETTERS // 32})"
            f" from generate_series(1, {ROWS // 2}) i"
        )
        here.sql(f"update note set body = body || ' (changed)' where id = '{team}1'")


@pytest.mark.slow
@pytest.mark.parametrize("restricted", [False, True], ids=["all see all", "a team's rows"])
def test_pages_are_asked_for_ahead_and_come_in_their_order(
    place: Any, monkeypatch: pytest.MonkeyPatch, restricted: bool
) -> None:
    here = place(NOTE, **({"audiences": OF_TEAM, "rules": TEAMS} if restricted else {}))
    device: SyncedDb = here.device("a")
    device.start(background=False)
    fill(here)
    asked: list[bytes] = []
    get_ahead = RemoteDb.get_ahead

    def noted(remote: RemoteDb, request: change_pb2.GetRequest) -> CallAhead[change_pb2.GetResponse]:
        asked.append(request.page_token)
        return get_ahead(remote, request)

    monkeypatch.setattr(RemoteDb, "get_ahead", noted)
    waiting.until(lambda: here.sql("select count(*) from anabranch.captured") == [(0,)], timeout_s=60.0)
    device.read()
    where = "where team = 'a'" if restricted else ""
    wanted = here.sql(f"select * from note {where} order by id")
    assert device.execute("SELECT * FROM note ORDER BY id").fetchall() == wanted
    assert asked
    assert all(asked), "a page ahead is one that follows another"
    assert device.status().disagreeing == ()
