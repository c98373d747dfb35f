"""The fault run's DDL is valid by itself, so that whatever Postgres refuses in a run is somebody else's fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.torture import changing_tables
from anabranch.testkit.torture.alterer import KINDS, Alterer

TURNS = 200


def altered(databases: TestDatabases, record: Path, seed: int, turns: int = TURNS) -> list[dict[str, object]]:
    """The record of an alterer that is the only one in a database that nothing syncs."""
    url = databases.fresh()
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute(f"create schema written; {changing_tables.SQL}".encode())
    alterer = Alterer({"url": url, "seed": seed, "record": str(record)})
    for _ in range(turns):
        alterer.next()
    alterer.close()
    databases.release(url)
    return [json.loads(line) for line in record.read_text().splitlines()]


@pytest.mark.parametrize("seed", [1, 2, 1001])
def test_every_kind_comes_and_none_is_refused(databases: TestDatabases, tmp_path: Path, seed: int) -> None:
    lines = altered(databases, tmp_path / "record", seed)
    assert [line for line in lines if "failed" in line] == []
    assert {line["did"] for line in lines} == KINDS.keys()


def test_a_seed_gives_the_same_statements(databases: TestDatabases, tmp_path: Path) -> None:
    assert altered(databases, tmp_path / "one", 7, 60) == altered(databases, tmp_path / "other", 7, 60)


def test_one_that_is_started_again_goes_on_with_the_kinds_that_are_left(
    tmp_path: Path, databases: TestDatabases
) -> None:
    record = tmp_path / "record"
    record.write_text("".join(json.dumps({"did": kind, "sql": []}) + "\n" for kind in sorted(KINDS)[1:]))
    lines = altered(databases, record, 5, 8)
    assert sorted(KINDS)[0] in {line["did"] for line in lines}
