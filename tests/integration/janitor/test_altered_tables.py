"""The log of a table that was altered since is cut like any other: its proof goes by the columns that it had."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.compactor.conftest import Lake, make_lake, spark
from tests.integration.janitor.test_conflict_proof import sweep

from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
__all__ = ["make_lake", "spark"]


def register_anew(lake: Lake, name: str, change: str) -> None:
    """Alter a table and register it anew."""
    lake.sql(change)
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.remove_table(conn, "app", name)
        registration.add_table(conn, "app", name)


@pytest.mark.slow
def test_promise_8_columns_that_came_and_went_do_not_hold_the_floor_for_ever(make_lake: Callable[..., Lake]) -> None:
    lake = make_lake("note", "create table note (id text primary key, body text, old text)")
    writer = lake.writer()
    writer.insert("note", [("a", "x", "o"), ("b", "y", None)])
    writer.update("note", ("a",), {"body": "z", "old": "p"})
    lake.compact()
    register_anew(lake, "note", "alter table note add column extra bigint default 7, drop column old")
    writer = lake.writer()
    writer.insert("note", [("c", "x", 1)])
    writer.update("note", ("a",), {"extra": 2})
    lake.compact()
    # Back again, as another type.
    register_anew(lake, "note", "alter table note add column old bigint, drop column extra")
    writer = lake.writer()
    last = writer.insert("note", [("d", "x", 2**62)])
    lake.compact()
    swept = sweep(lake)
    assert swept.bounds[0].hold.name != "PROOF", swept.bounds[0].detail
    assert swept.floor == last
    assert lake.sql("select count(*) from anabranch.log") == [(0,)]
