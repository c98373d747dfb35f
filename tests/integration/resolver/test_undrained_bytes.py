"""Changes that wait to be drained are taken back only as far as their images fit into memory."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.store.capture import undrained
from anabranch.testkit.resolver_rig import ResolverRig


def test_more_bytes_than_are_held_are_waited_for_and_not_read(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig: ResolverRig = make_rig()
    table = rig.database.tables["todo"]
    rig.sql("insert into app.todo (id, title) values ('1', repeat('x', 100000)), ('2', 'small')")
    with rig.session() as session:
        assert undrained.rows_before(session, rig.database, table) == {"1": None, "2": None}
        monkeypatch.setattr(undrained, "MOST_BYTES", 100_000)
        monkeypatch.setattr(undrained, "_WAITING", b"it is not read")
        with pytest.raises(undrained.UndrainedError):
            undrained.rows_before(session, rig.database, table)
